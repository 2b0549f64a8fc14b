#include "launcher/cluster/bundle_upload.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

namespace shardrun::launcher {

using base::Code;
using base::Error;
using base::Result;

Result<BundleUpload> plan_bundle_upload(const ClusterConfig& config, const std::string& bundle,
                                        const std::string& hash, const std::string& script_file,
                                        const std::string& region) {
  const NodeScript& script = config.on_node_configured;
  if (!script.script.starts_with("s3://"))
    return Error(Code::kInvalid,
                 "--bundle: it is uploaded beside the script of [on_node_configured], and there is none in a "
                 "bucket; write "
                 "script = \"s3://bucket/on-node.sh\" there");
  if (std::find(script.arguments.begin(), script.arguments.end(), "--bundle") != script.arguments.end())
    return Error(Code::kInvalid,
                 "--bundle: the args of [on_node_configured] name a bundle already; remove it there or here");
  if (hash.size() != 64 || hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    return Error(Code::kInvalid, fmt::format("{}: sha256sum answered '{}'", bundle, hash));
  const std::string folder = script.script.substr(0, script.script.rfind('/') + 1);
  const std::string place = folder + std::filesystem::path(bundle).filename().string();
  BundleUpload upload;
  for (const auto& [from, to] : {std::pair(bundle, place), std::pair(script_file, script.script)}) {
    std::vector<std::string> command = {"aws", "s3", "cp", "--only-show-errors", from, to};
    if (!region.empty()) command.insert(command.end(), {"--region", region});
    upload.commands.push_back(std::move(command));
  }
  upload.script = script;
  upload.script.arguments.insert(upload.script.arguments.end(), {"--bundle", place, "--sha256", hash});
  return upload;
}

}  // namespace shardrun::launcher

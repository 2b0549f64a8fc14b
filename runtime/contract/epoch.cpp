#include "runtime/contract/epoch.h"

#include <charconv>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::contract {

using base::Code;
using base::Error;
using base::Result;

namespace {
constexpr std::string_view kStagePrefix = ".writing_";
}  // namespace

Result<int> read_epoch(const record::RunDir& run) {
  ASSIGN_OR_RETURN(auto text, base::read_file(run.epoch(), /*limit_bytes=*/64));
  int epoch = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), epoch);
  if (failure != std::errc() || *end != '\n' || epoch < 0) {
    return Error(Code::kCorrupt, run.epoch() + ": holds no attempt's number");
  }
  return epoch;
}

Result<void> write_epoch(const record::RunDir& run, int attempt) {
  return base::write_file_atomically(run.epoch(), fmt::format("{}\n", attempt), record::kFileMode);
}

Result<void> check_epoch(const record::RunDir& run, int attempt) {
  const auto epoch = read_epoch(run);
  if (!epoch && epoch.error().code() == Code::kNotFound) return {};
  if (!epoch) return epoch.error();
  if (*epoch <= attempt) return {};
  return Error(Code::kRefused, fmt::format("{}: attempt {} has begun, so attempt {} may not write any more",
                                           run.root, *epoch, attempt));
}

std::string checkpoint_directory(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  const std::string& given = spec.checkpoint.directory;
  if (given.empty()) return record::RunDir{plan.run_directory}.checkpoints();
  return given.front() == '/' ? given : plan.working_directory + "/" + given;
}

std::string checkpoint_stage(const std::string& checkpoint_directory, const std::string& run_id,
                             int attempt) {
  return fmt::format("{}/{}{}_{}", checkpoint_directory, kStagePrefix, run_id, attempt);
}

Result<void> fence_checkpoints(const std::string& checkpoint_directory, const std::string& run_id,
                               int attempt) {
  namespace fs = std::filesystem;
  RETURN_IF_ERROR(base::make_directories(checkpoint_directory));
  const std::string stage = checkpoint_stage(checkpoint_directory, run_id, attempt);
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(checkpoint_directory, failure)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kStagePrefix) || entry.path() == stage) continue;
    // The name goes first, in one step: whoever still writes in it cannot publish from it any more.
    const fs::path condemned = checkpoint_directory + "/.fenced" + name;
    fs::remove_all(condemned, failure);
    fs::rename(entry.path(), condemned, failure);
    if (failure) return Error(Code::kIo, fmt::format("{}: {}", entry.path().string(), failure.message()));
    fs::remove_all(condemned, failure);
  }
  return base::make_directories(stage);
}

}  // namespace shardrun::contract

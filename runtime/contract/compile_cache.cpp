#include "runtime/contract/compile_cache.h"

#include <fmt/format.h>

namespace shardrun::contract {

Result<std::string> compile_cache_folder(const spec::JobSpec& spec, const std::string& working_directory,
                                         const EnvironmentLookup& lookup) {
  const std::string& given = spec.precompile.cache;
  if (!given.empty()) return given.front() == '/' ? given : working_directory + "/" + given;
  const auto home = lookup("HOME");
  if (!home || !home->starts_with('/')) {
    const bool may_write = spec.program.trainer.empty();
    return base::Error(base::Code::kInvalid, fmt::format("{}: HOME names no folder for what is cached; {}",
                                                         spec.origin("precompile"),
                                                         may_write ? "write [precompile] cache" : "set it"));
  }
  return *home + "/.cache/shardrun/compile";
}

}  // namespace shardrun::contract

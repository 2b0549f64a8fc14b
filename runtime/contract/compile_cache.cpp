#include "runtime/contract/compile_cache.h"

#include <fmt/format.h>

namespace shardrun::contract {

Result<std::string> compile_cache_folder(const spec::JobSpec& spec, const std::string& working_directory,
                                         const EnvironmentLookup& lookup) {
  const std::string& given = spec.precompile.cache;
  if (!given.empty()) return given.front() == '/' ? given : working_directory + "/" + given;
  const auto home = lookup("HOME");
  if (!home || !home->starts_with('/')) {
    return base::Error(base::Code::kInvalid,
                       fmt::format("{}: HOME names no folder for compiled code; write [precompile] cache",
                                   spec.origin("precompile")));
  }
  return *home + "/.cache/shardrun/compile";
}

}  // namespace shardrun::contract

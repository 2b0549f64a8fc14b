#include "runtime/tools/named_checkpoints.h"

#include <filesystem>
#include <system_error>

namespace shardrun::tools {

namespace fs = std::filesystem;
using base::Code;
using base::Error;

base::Result<NamedCheckpoints> find_checkpoints(const std::string& folder) {
  std::error_code failure;
  const fs::path path = fs::canonical(folder, failure);
  if (failure) return Error(Code::kNotFound, fmt::format("{}: {}", folder, failure.message()));
  if (const int64_t step = checkpoint::parse_step_name(path.filename().string()); step >= 0)
    return NamedCheckpoints{{path.parent_path().string(), 1}, {step}};
  if (fs::exists(path / "manifest.json", failure))
    return Error(Code::kInvalid, fmt::format("{}: a checkpoint's folder is named as it was written, e.g. {}",
                                             path.string(), checkpoint::step_name(120)));
  NamedCheckpoints named{{path.string(), 1}, {}};
  ASSIGN_OR_RETURN(named.steps, named.store.steps());
  if (named.steps.empty())
    return Error(Code::kNotFound, fmt::format("{}: holds no complete checkpoint", path.string()));
  return named;
}

}  // namespace shardrun::tools

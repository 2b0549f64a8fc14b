#include "runtime/base/state_folder.h"

#include <cstdlib>

namespace shardrun::base {

Result<std::string> state_folder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/shardrun";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.local/state/shardrun";
  return Error(Code::kInvalid, "neither XDG_STATE_HOME nor HOME names a folder for shardrun's state");
}

}  // namespace shardrun::base

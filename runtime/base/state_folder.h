// Where this user's state of shardrun lies: $XDG_STATE_HOME/shardrun, or ~/.local/state/shardrun.
//
// Thread rule: reads the environment; call while nobody changes it.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace shardrun::base {

// Not made. kInvalid when neither variable names an absolute folder.
Result<std::string> state_folder();

}  // namespace shardrun::base

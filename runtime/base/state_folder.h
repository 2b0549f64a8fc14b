// Where shardrun keeps this user's state: $XDG_STATE_HOME/shardrun, or ~/.local/state/shardrun.
//
// Thread rule: it reads the environment; call it while nobody changes that.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace shardrun::base {

// Does not create the folder. kInvalid when neither variable names an absolute folder.
Result<std::string> state_folder();

}  // namespace shardrun::base

// Status, as all of this plugin's code names it.
#pragma once

#include "plugins/common/status.h"

namespace shardrun::ofi {

using common::Status;

}  // namespace shardrun::ofi

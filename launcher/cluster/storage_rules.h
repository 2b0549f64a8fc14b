// The rules of launcher/cluster/rules.h about file systems: where they are mounted, and what may be asked of them.
//
// Thread rule: pure functions.
#pragma once

#include "launcher/cluster/spec.h"
#include "runtime/spec/spec_reader.h"

namespace shardrun::launcher {

// Reports the first rule that does not hold in `reading`, unless that has an error already.
void check_storage(const ClusterConfig& config, spec::SpecReading& reading);

}  // namespace shardrun::launcher

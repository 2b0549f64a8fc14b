// What `shardrun cluster create --bundle` uploads beside the nodes' script, and what that script is then told.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/cluster/spec.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct BundleUpload {
  std::vector<std::vector<std::string>> commands;  // of `aws`, in their order, each an argument vector
  NodeScript script;  // which takes the bundle from there, and no other by its hash
};

// Returns how the archive at `bundle`, whose sha256 is `hash`, and the nodes' script, which lies at `script_file` here, come into
// the bucket of [on_node_configured] of `config`. Errors: kInvalid if there is no such script in a bucket, if it is told
// of a bundle already, or if `hash` is none.
base::Result<BundleUpload> plan_bundle_upload(const ClusterConfig& config, const std::string& bundle,
                                              const std::string& hash, const std::string& script_file,
                                              const std::string& region);

}  // namespace shardrun::launcher

// Epoch: which attempt of a run may write. The fencing token of a run directory.
//
// The file `epoch` holds the number of the newest attempt and is replaced by an atomic rename before the attempt's
// first process starts. Whoever is about to publish something in the name of an older attempt reads a larger number
// and must not. docs/decisions/0015 says what this covers and what the checkpoint store does beyond it.
//
// Thread rule: free functions.
#pragma once

#include "runtime/base/result.h"
#include "runtime/contract/run_dir.h"

namespace shardrun::contract {

// kNotFound before the first attempt, kCorrupt when the file holds no number, kIo.
base::Result<int> read_epoch(const RunDir& run);
// kIo.
base::Result<void> write_epoch(const RunDir& run, int attempt);
// kRefused when a later attempt has begun, naming both. A run without the file has no rule to break.
base::Result<void> check_epoch(const RunDir& run, int attempt);

}  // namespace shardrun::contract

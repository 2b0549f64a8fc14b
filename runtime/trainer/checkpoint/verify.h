// Reads checkpoints whole, to say what is damaged before somebody needs them.
//
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/trainer/checkpoint/store.h"

namespace shardrun::checkpoint {

struct Verified {
  int files = 0;
  int64_t elements = 0;             // in all files: masters and moments
  int64_t not_finite = 0;           // of them
  std::vector<base::Error> damage;  // the first of each file, or why the manifest cannot be read
};

// Reads the manifest and every byte of every file of the checkpoint of `step`, and compares all checksums.
Verified verify(const Store& store, int64_t step);

}  // namespace shardrun::checkpoint

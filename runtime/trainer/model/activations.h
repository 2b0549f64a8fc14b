// How much of its activations a model keeps between forward and backward, and where.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>

#include "runtime/base/memory.h"

namespace shardrun::model {

// What backward computes again so that forward need not keep it.
enum class Checkpointing {
  kNone,
  kSelective,  // norms and activation functions: one pass over memory each
  kFull,       // everything of a layer but its input
};

// What the model will hold; it allocates exactly these, once, in create().
struct ActivationBytes {
  int64_t resident = 0;
  int64_t offloaded =
      0;  // in a file, of which two layers' worth is in memory at a time; or pinned, beside a GPU's
  int64_t offload_window = 0;
};

using base::Cursor;

}  // namespace shardrun::model

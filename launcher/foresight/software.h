// What --software says: whose kernels and collectives a prediction is of, and what of them is otherwise than usual.
//
//   torchtitan                                a stack as its publications ran it
//   torchtitan,compile,async_tp,reduce=bf16   the same with other traits
//   megatron,tensor=8,pipeline=8,chunks=5     and with degrees that the spec of the built-in trainer has no words for
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "launcher/forecast/constants.h"
#include "launcher/forecast/search.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct Software {
  Traits traits;
  Given given;
  int tensor_parallel = 0;  // 0: the search chooses
  bool gpt_blocks = false;  // feed-forward networks of two matrices, not gated
};

// Errors: kInvalid for a stack or a word that nobody knows, with those that there are, and for a value that is no degree.
base::Result<Software> parse_software(const std::string& text);

}  // namespace shardrun::launcher

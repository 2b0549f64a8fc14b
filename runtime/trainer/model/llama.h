// Llama: forward and explicit backward of a decoder of Llama's family, one block at a time.
//
// runtime/plan/model/llama.h says what its blocks are and how a tensor group shares them.
//
// Shapes: B micro-batch, T sequence length, C hidden, H heads, K kv heads, D elements of a head, F ffn, V vocabulary, N = B·T.
// Thread rule: as model.h.
// Source: Touvron et al. 2023 (Llama 2); layout and numerics follow Hugging Face's models (plan/model/llama.h names them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/llama.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/model/options.h"

namespace shardrun::model {

using plan::LlamaConfig;

class Llama : public Model {
 public:
  // kInvalid as check() says, or for a tensor group that does not divide the model; kIo without that much memory.
  static Result<std::unique_ptr<Llama>> create(const LlamaConfig& config, const ModelOptions& options);
};

}  // namespace shardrun::model

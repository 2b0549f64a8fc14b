// Decoder: a Llama that predicts one token after another, on a CPU, with the keys and values of what it has read kept.
//
// Activations are fp32 whatever the weights are stored in, so a checkpoint in bf16 gives what it gives in fp32, at half the bytes
// a token. A prompt goes through in one piece, by the trainer's ops; single tokens by kernels/decode.h.
// Thread rule: thread-compatible; the OpenMP threads of the calling thread compute.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/result.h"
#include "runtime/plan/model/llama.h"
#include "runtime/trainer/generate/weights.h"

namespace shardrun::generate {

class Decoder {
 public:
  // Reads at most `capacity` tokens in all. kInvalid as check() of the configuration says.
  static Result<std::unique_ptr<Decoder>> create(const plan::LlamaConfig& config, ModelWeights weights,
                                                 int64_t capacity);
  virtual ~Decoder() = default;

  // Reads the tokens, at least one and each in [0, vocab), behind those that it has read. Returns the logits (vocab) of
  // what follows the last; they are valid until the next call.
  virtual std::span<const float> feed(std::span<const int32_t> tokens) = 0;

  // Forgets what was read behind the first `tokens` tokens, at most as many as were read.
  virtual void go_back(int64_t tokens) = 0;

  // Returns the bytes of kept keys and values of a token.
  static int64_t bytes_per_token(const plan::LlamaConfig& config);
};

}  // namespace shardrun::generate

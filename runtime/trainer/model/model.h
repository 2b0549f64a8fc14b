// Model: forward and explicit backward of a network, one block at a time. Llama and BERT implement it.
//
// The sharding engine owns parameters and gradients; the model owns activations. The parameters of one block are
// one flat buffer (BlockLayout), gathered before use and released after. A block may be used twice, as tied
// embeddings are: `visits` is the order of uses.
// One micro-step:  set_batch; forward(0 … last visit); loss(); backward(last … 0). A stage of a pipeline has some of the blocks, and
// begins and ends at its border().
//
// Errors: only those of the communicators that a tensor-parallel model was given; a model alone has none.
// Parameters, gradients and activations lie in the memory of ModelOptions::backend; batches come from the host's.
// Shapes: B micro-batch, T sequence length, N = B·T, V vocabulary.
// Thread rule: thread-compatible; the ops inside use the OpenMP threads of the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/block_layout.h"

namespace shardrun::model {

using base::Result;
using plan::BlockLayout;
using plan::ParameterInfo;

class Fp8State;  // fp8_state.h

// One micro-batch. Spans that a model does not need may be empty.
struct Batch {
  std::span<const int32_t> tokens;   // (B,T), in [0,V)
  std::span<const int32_t> targets;  // (B,T); -1 carries no loss
  // (B,T): the column at which each token's document begins; empty: 0.
  std::span<const int32_t> document_begins;
  std::span<const int32_t> lengths;        // (B): tokens of each row that are not padding; empty: T
  std::span<const int32_t> segments;       // (B,T): BERT's token types; empty: 0
  std::span<const int32_t> next_sentence;  // (B): BERT's label, 0 or 1, -1 carries no loss; empty: -1
  // What the gradient is multiplied with: 1/(tokens that carry loss in the global batch) makes the sum over ranks
  // and micro-steps the mean. The other is the same for what counts by sequences: BERT's next sentences, the balance of experts.
  float loss_scale = 1.0F;
  float sequence_scale = 0.0F;
  // Whether backward comes after this forward: the loss may then be computed there, where its gradient is, and is known
  // after the backward of the last visit.
  bool backward_follows = false;
  // Of a stage of a pipeline: which of its chunks is computed, and where the activations of that chunk's layers lie until backward
  // (plan::HeldLayers), which outlives the turn. Both are given again before the backward, where another turn came in between.
  int chunk = 0;
  std::span<const int> held;
};

// Where a chunk of a stage of a pipeline meets its neighbours: the residual stream that comes in, of the batch that was set, and the
// one that goes out, each valid until the next forward; and what comes in as the gradient of the second and leaves as that of
// the first. All are as long.
struct StageBorder {
  std::span<std::byte> input, output, gradient;
};

// Sums of cross-entropies of a micro-batch, in nats, and how many there were; and the sum of what counts by sequences.
struct Loss {
  double sum = 0.0;
  int64_t tokens = 0;
  double sequence_sum = 0.0;
  int64_t sequences = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  // Those that are trained.
  virtual const std::vector<BlockLayout>& blocks() const = 0;
  // As many blocks that stay as they are, whose parameters lie beside those; empty: all are trained.
  virtual const std::vector<BlockLayout>& frozen() const = 0;
  // Block of each visit, in forward order: of a stage, its own, chunk by chunk.
  virtual std::span<const int> visits() const = 0;
  virtual StageBorder border() { return {}; }

  // Returns the scales of a model with fp8; null without fp8.
  virtual Fp8State* fp8() { return nullptr; }

  // Copies what it keeps.
  virtual void set_batch(const Batch& batch) = 0;
  // `parameters`: the visited block's flat buffer in the compute dtype; `frozen`: that of its frozen part.
  virtual Result<void> forward(int visit, std::span<const std::byte> parameters,
                               std::span<const std::byte> frozen = {}) = 0;
  // Returns the loss of the micro-batch, after forward of the last visit, or its backward (Batch::backward_follows).
  // Waits for a GPU.
  virtual Loss loss() const = 0;
  // The two sums of it (tokens, sequences), in the backend's memory, without waiting; valid until set_batch().
  virtual const double* loss_sums() const = 0;
  // Writes the visited block's flat fp32 gradient of this visit, or adds it to what is there (`accumulate`: see
  // ModelOptions). Visit 0 of an architecture that looks up (spec::Architecture) needs no parameters.
  virtual Result<void> backward(int visit, std::span<const std::byte> parameters, std::span<float> gradient,
                                bool accumulate = false, std::span<const std::byte> frozen = {}) = 0;
};

}  // namespace shardrun::model

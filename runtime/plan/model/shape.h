// ModelShape: a model as those see it who only count, a published one of another stack among them: the sizes that every
// architecture has.
//
// Thread rule: plain values.
#pragma once

#include "runtime/spec/architecture.h"

namespace shardrun::plan {

struct ModelShape {
  int layers = 0, hidden = 0, kv_width = 0, ffn = 0, ffn_matrices = 3, vocab = 0;
  // Whether the classifier uses the embedding's matrix, so that a micro-step visits that block twice.
  bool tied = false;
  int experts = 0;          // of a layer; 0: one feed-forward for all tokens
  int expert_parallel = 1;  // ranks that share them
  bool adapted = false;     // its weights are frozen, and adapters beside them are trained
  const spec::Architecture* architecture = &spec::kArchitectures.front();
  int attention_width = 0;  // of all query heads; 0: hidden

  double query_width() const { return attention_width > 0 ? attention_width : hidden; }
  // Returns the parameters of a layer's products, attention's projections among them, and of two norms.
  double layer_parameters() const {
    const double d = hidden;
    return 2.0 * d * query_width() + 2.0 * d * kv_width + static_cast<double>(ffn_matrices) * d * ffn +
           2.0 * d;
  }
  double table_parameters() const { return static_cast<double>(vocab) * hidden; }
  double parameters() const { return layers * layer_parameters() + (tied ? 1.0 : 2.0) * table_parameters(); }
  // Returns the FLOPs of forward and backward without recomputation; half of the attention matrix where it is causal.
  double flops_per_token(int sequence_length) const {
    const double attention =
        (architecture->causal ? 6.0 : 12.0) * layers * query_width() * static_cast<double>(sequence_length);
    return 6.0 * (layers * layer_parameters() + table_parameters()) + attention;
  }
  // Returns those of the linear layers of blocks alone: without attention's scores and the head.
  double linear_flops_per_token() const { return 6.0 * layers * (layer_parameters() - 2.0 * hidden); }
};

}  // namespace shardrun::plan

#include "launcher/forecast/memory.h"

namespace shardrun::launcher {
namespace {

constexpr double kBf16 = 2.0;
constexpr double kStateBytes = 16.0;  // of a parameter: fp32 master, two moments, gradient
constexpr double kMomentBytes = 8.0;
constexpr double kContext = 3e9;  // CUDA context, kernels' workspaces, NCCL's buffers
constexpr double kFragmentation = 0.06;
constexpr double kLogitBytes = 10.0;  // bf16 logits, their fp32 copy and its gradient

// Of one layer: what backward reads. Norms, projections, the attention's output, the feed-forward's products.
double layer_activations(const ModelShape& model, double tokens) {
  return kBf16 * tokens *
         (12.0 * model.hidden + 2.0 * model.kv_width + (model.ffn_matrices + 1.0) * model.ffn);
}

}  // namespace

MemoryForecast forecast_memory(const ModelShape& model, const Layout& layout, const Traits& traits) {
  const double tensor = layout.tensor_parallel;
  const double tokens = static_cast<double>(layout.micro_batch) * layout.sequence_length;
  const double mine = model.parameters() / (static_cast<double>(layout.shard_degree) * tensor);
  const bool keeps = layout.strategy == contract::Strategy::kShardGradOp || layout.shard_degree == 1;
  MemoryForecast memory;
  memory.state = (layout.optimizer_offload ? kStateBytes - kMomentBytes : kStateBytes) * mine;
  const double whole = keeps ? model.parameters() : 2.0 * model.layer_parameters() + model.table_parameters();
  memory.gathered =
      (kBf16 * whole + traits.reduce_bytes * (2.0 * model.layer_parameters() + model.table_parameters())) /
      tensor;
  const double layer = layer_activations(model, tokens) / tensor;
  const double kept = kBf16 * tokens * model.hidden / tensor;  // of a layer: its input
  const double layers = layout.activation_offload ? 2.0 : model.layers;
  switch (layout.checkpointing) {
    case contract::Checkpointing::kFull:
      memory.activations = layers * kept + layer;
      break;
    case contract::Checkpointing::kSelective:
      memory.activations = layers * 0.5 * layer + layer;
      break;
    case contract::Checkpointing::kNone:
      memory.activations = layers * layer;
      break;
  }
  memory.logits = kLogitBytes * tokens * model.vocab / tensor;
  memory.overhead = kContext + kFragmentation * memory.total();
  return memory;
}

}  // namespace shardrun::launcher

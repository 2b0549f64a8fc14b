#include "launcher/forecast/memory.h"

#include <algorithm>

#include "runtime/plan/pipeline.h"

namespace shardrun::launcher {
namespace {

constexpr double kBf16 = 2.0;
constexpr double kMomentBytes = 8.0;
constexpr double kContext = 3e9;         // CUDA context, kernels' workspaces, NCCL's buffers
constexpr double kFragmentation = 0.04;  // of a caching allocator; what is planned at the start loses none
constexpr double kSelective = 0.33;      // of a layer's activations: every other product, and attention's

// Returns the bytes of one layer that backward reads. Two residuals, two norms, the heads, the attention's output, the feed-forward's
// products. Gated networks in eager mode also keep norms in fp32, rotated heads and the gate's activation; what is
// fused computes the last product again.
double layer_activations(const ModelShape& model, double tokens, bool fused) {
  const bool gated = model.ffn_matrices == 3;
  const double hidden = gated && !fused ? 12.0 : 6.0;
  const double products = fused ? model.ffn_matrices - 1.0 : gated ? 4.0 : 2.0;
  return kBf16 * tokens * (hidden * model.hidden + 2.0 * model.kv_width + products * model.ffn);
}

// Returns the bytes of fp8 of one layer while it runs, where scales are delayed: an input, a weight, and a gradient in rows and in columns.
double fp8_bytes(const ModelShape& model, double tokens) {
  const double c = model.hidden, qkv = c + 2.0 * model.kv_width, up = (model.ffn_matrices - 1.0) * model.ffn;
  const double inputs = std::max<double>(c, model.ffn), outputs = std::max({c, qkv, up});
  return tokens * (inputs + 2.0 * outputs) + c * std::max(qkv, up);
}

double state_bytes(const ModelShape& model, const Layout& layout, const Traits& traits, int per_node) {
  const double shards =
      static_cast<double>(layout.shard_degree) * layout.tensor_parallel * layout.given.pipeline;
  const double moments = std::min(kMomentBytes, traits.optimizer_bytes);
  const double optimizer = traits.optimizer_bytes - (layout.optimizer_offload ? moments : 0.0);
  const double ranks = static_cast<double>(layout.nodes) * per_node;
  return model.parameters() * ((traits.state_bytes - traits.optimizer_bytes) / shards +
                               optimizer / (traits.shards_optimizer ? std::max(shards, ranks) : shards));
}

// Whole blocks, one ahead, and their gradients, where they are not part of the state.
double gathered_bytes(const ModelShape& model, const Layout& layout, const Traits& traits) {
  if (layout.shard_degree == 1 && traits.shards_optimizer) return 0.0;
  const bool converts = layout.optimizer_offload && traits.streams_moments;
  const bool keeps =
      spec::rules_of(layout.strategy).keeps_parameters || (layout.shard_degree == 1 && !converts);
  const double blocks = 2.0 * model.layer_parameters() + model.table_parameters();
  return (kBf16 * (keeps ? model.parameters() / layout.given.pipeline : blocks) +
          traits.reduce_bytes * blocks) /
         layout.tensor_parallel;
}

// The first stage of a pipeline holds most: as many micro-batches as there are stages, each with its share of the layers, or of chunks
// the more that interleaving needs.
double kept_bytes(const ModelShape& model, const Layout& layout, const Traits& traits, double layer,
                  double input) {
  const plan::Stage first{0, layout.given.pipeline, layout.given.pipeline_chunks};
  const int64_t parts = std::min(first.warm_up() + 1, first.chunks * layout.accumulation);
  const double layers =
      static_cast<double>(model.layers) / (first.stages * first.chunks) * static_cast<double>(parts);
  const double inputs = (layout.activation_offload ? 2.0 : layers) * input;
  switch (layout.checkpointing) {
    case spec::Checkpointing::kFull:
      return inputs + layer;
    case spec::Checkpointing::kSelective:
      return inputs + layers * std::max(0.0, (traits.selective > 0.0 ? kSelective : 1.0) * layer - input) +
             layer;
    case spec::Checkpointing::kNone:
      break;
  }
  return layers * layer;
}

}  // namespace

MemoryForecast forecast_memory(const ModelShape& one_expert, const Layout& layout, const Traits& traits,
                               int per_node) {
  const Given& given = layout.given;
  ModelShape model = one_expert, held = one_expert;
  model.ffn *= given.active_experts;
  held.ffn *= given.experts / given.expert_parallel;
  const double tensor = layout.tensor_parallel;
  const double tokens =
      static_cast<double>(layout.micro_batch) * layout.sequence_length / given.context_parallel;
  const double layer = layer_activations(model, tokens, traits.fused) / tensor;
  MemoryForecast memory;
  memory.state = state_bytes(whole_model(one_expert, layout), layout, traits, per_node);
  memory.gathered = gathered_bytes(held, layout, traits);
  memory.activations = kept_bytes(model, layout, traits, layer, kBf16 * tokens * model.hidden / tensor);
  if (layout.fp8 && traits.delayed_scales) memory.activations += fp8_bytes(model, tokens) / tensor;
  memory.logits = traits.logit_bytes * tokens * model.vocab / tensor;
  memory.overhead = kContext + (traits.python ? kFragmentation * memory.total() : 0.0);
  return memory;
}

plan::MemoryPlan planned_memory(plan::RankOptions job, const Layout& layout, const plan::RankPlace& place) {
  job.keeps_parameters = spec::rules_of(layout.strategy).keeps_parameters;
  job.checkpointing = layout.checkpointing;
  job.activation_offload = layout.activation_offload;
  job.optimizer_offload = layout.optimizer_offload;
  job.micro_batch = layout.micro_batch;
  job.gradient_accumulation = layout.accumulation;
  const int64_t replicas =
      place.world_size / (layout.shard_degree * layout.tensor_parallel * job.stage.stages);
  const plan::Degrees degrees{static_cast<int>(layout.shard_degree), static_cast<int>(replicas),
                              layout.tensor_parallel};
  return plan::job_memory(job, degrees, place).memory;
}

}  // namespace shardrun::launcher

#include "launcher/plan/model_size.h"

#include <algorithm>

namespace shardrun::launcher {
namespace {

constexpr int64_t kShardAlignment =
    32;  // elements; of runtime/shard/layout.h, which a launcher may not include

}  // namespace

ModelSize model_size(const contract::JobSpec& spec, const contract::BatchPlan& batch) {
  const contract::ModelSpec& model = spec.model;
  const int64_t ranks = batch.data_parallel;
  const int64_t C = model.hidden, F = model.ffn, V = model.vocab;
  const int64_t key_values = C / model.heads * model.kv_heads;
  const int64_t embedding = V * C;
  const int64_t layer =
      2 * C + 2 * C * C + 2 * key_values * C + 3 * C * F;  // norms, q and o, k and v, feed-forward
  const int64_t head = C + V * C;
  ModelSize size;
  size.parameters = embedding + model.layers * layer + head;
  size.blocks = model.layers + 2;

  const auto shard = [&](int64_t block) {
    const int64_t unit = ranks * kShardAlignment;
    return (block + unit - 1) / unit * kShardAlignment;
  };
  const int64_t elements = shard(embedding) + model.layers * shard(layer) + shard(head);
  const bool half = spec.precision.parameters == contract::Precision::kBf16;
  const bool accumulates = batch.gradient_accumulation > 1;
  size.master_bytes = elements * (half ? 4 + 2 : 4);
  size.moment_bytes = elements * 8;
  size.gradient_bytes = elements * 4;
  const int64_t largest_shard = shard(std::max({embedding, layer, head}));
  const int64_t largest_block = largest_shard * ranks;
  if (ranks > 1) {
    const int64_t gathered = (spec.sharding.prefetch + 1) * largest_block * (half ? 2 : 4);
    size.gathered_bytes = gathered + 2 * (largest_block + (accumulates ? largest_shard : 0)) * 4;
  } else {
    size.gathered_bytes = accumulates ? largest_block * 4 : 0;
  }
  return size;
}

}  // namespace shardrun::launcher

#include "launcher/plan/model_size.h"

#include <algorithm>

namespace shardrun::launcher {

ModelSize model_size(const contract::ModelSpec& model, int64_t ranks, contract::Precision precision) {
  const int64_t C = model.hidden, F = model.ffn, V = model.vocab;
  const int64_t key_values = C / model.heads * model.kv_heads;
  const int64_t embedding = V * C;
  const int64_t layer =
      2 * C + 2 * C * C + 2 * key_values * C + 3 * C * F;  // norms, q and o, k and v, feed-forward
  const int64_t head = C + V * C;
  ModelSize size;
  size.parameters = embedding + model.layers * layer + head;
  size.blocks = model.layers + 2;
  const auto shard = [&](int64_t block) { return (block + ranks - 1) / ranks; };
  const int64_t elements = shard(embedding) + model.layers * shard(layer) + shard(head);
  const int64_t compute_bytes = precision == contract::Precision::kBf16 ? 2 : 4;
  size.master_bytes = elements * 4 + (precision == contract::Precision::kBf16 ? elements * 2 : 0);
  size.moment_bytes = elements * 8;
  size.gradient_bytes = elements * 4;
  if (ranks > 1) size.gathered_bytes = 2 * std::max({embedding, layer, head}) * (compute_bytes + 4);
  return size;
}

}  // namespace shardrun::launcher

#include "runtime/plan/model/adapters.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace shardrun::plan {
namespace {

using spec::LoraMatrix;

// The matrix without its place in the adapters' buffer.
Adapter place_of(const LlamaConfig& config, LoraMatrix matrix) {
  const int64_t C = config.hidden, F = config.ffn, D = config.head_elements();
  const int64_t Q = config.heads * D, KV = config.kv_heads * D, QKV = Q + 2 * KV;
  switch (matrix) {
    case LoraMatrix::kQ:
      return {matrix, C, Q, 0, QKV};
    case LoraMatrix::kK:
      return {matrix, C, KV, Q, QKV};
    case LoraMatrix::kV:
      return {matrix, C, KV, Q + KV, QKV};
    case LoraMatrix::kO:
      return {matrix, Q, C, 0, C};
    case LoraMatrix::kGate:
      return {matrix, C, F, 0, 2 * F};
    case LoraMatrix::kUp:
      return {matrix, C, F, F, 2 * F};
    case LoraMatrix::kDown:
      break;
  }
  return {matrix, F, C, 0, C};
}

}  // namespace

std::vector<Adapter> adapters_of(const LlamaConfig& config) {
  std::vector<Adapter> adapters;
  int64_t offset = 0;
  for (const LoraMatrix matrix : config.lora.matrices) {
    Adapter& adapter = adapters.emplace_back(place_of(config, matrix));
    adapter.a = offset;
    adapter.b = adapter.a + config.lora.rank * adapter.inputs;
    offset = adapter.b + config.lora.rank * adapter.outputs;
  }
  return adapters;
}

std::vector<BlockLayout> adapter_layouts(const LlamaConfig& config) {
  const std::vector<Adapter> adapters = adapters_of(config);
  std::vector<BlockLayout> blocks;
  for (int layer = -1; layer < config.layers; ++layer) {
    if (layer < 0) {
      blocks.push_back({"embedding", {}, 0});
      continue;
    }
    BlockLayout block{fmt::format("layer {}", layer), {}, 0};
    for (const Adapter& adapter : adapters) {
      const char* const part = adapter.matrix < LoraMatrix::kGate ? "self_attn" : "mlp";
      const std::string name =
          fmt::format("base_model.model.model.layers.{}.{}.{}.", layer, part, spec::name_of(adapter.matrix));
      const double stddev = 1.0 / std::sqrt(3.0 * static_cast<double>(adapter.inputs));
      block.append({name + "lora_A.weight", {config.lora.rank, adapter.inputs}, 0, true, stddev});
      block.append({name + "lora_B.weight", {adapter.outputs, config.lora.rank}, 0, true, 0.0, 0.0});
    }
    blocks.push_back(std::move(block));
  }
  if (!config.tied_embeddings) blocks.push_back({"head", {}, 0});
  return blocks;
}

int64_t widest_adapter(const LlamaConfig& config) {
  int64_t widest = 0;
  for (const Adapter& adapter : adapters_of(config)) widest = std::max(widest, adapter.outputs);
  return widest;
}

void adapt(OpList& list, const LlamaConfig& config, int64_t rows) {
  using Op = LinearCall::Op;
  if (!config.lora.wanted()) return;
  std::erase_if(list.linears, [](const LinearCall& call) { return call.op == Op::kBackwardWeight; });
  const int64_t R = config.lora.rank;
  for (const Adapter& adapter : adapters_of(config)) {
    const int64_t in = adapter.inputs, out = adapter.outputs;
    const LinearCall calls[] = {{Op::kForward, rows, in, R},
                                {Op::kForward, rows, R, out},
                                {Op::kBackwardWeight, rows, R, out},
                                {Op::kBackwardInput, rows, R, out},
                                {Op::kBackwardWeight, rows, in, R},
                                {Op::kBackwardInput, rows, in, R, /*bias=*/false, /*accumulate=*/true}};
    list.linears.insert(list.linears.end(), std::begin(calls), std::end(calls));
  }
}

}  // namespace shardrun::plan

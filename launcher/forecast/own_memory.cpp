#include "launcher/forecast/own_memory.h"

#include <algorithm>
#include <cmath>

#include "runtime/plan/model_plan.h"

namespace shardrun::launcher {
namespace {

constexpr double kBf16 = 2.0, kFp32 = 4.0;
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kLogits = 8.0 * kMiB;         // elements of them that exist at once
constexpr double kWriterBuffer = kMiB;         // of checkpoints
constexpr double kKernels = 0.2 * kMiB;        // workspaces of products and attention, one thread
constexpr double kRunning = 2.0;               // sums of a communicator at once
constexpr double kOffloadWindow = 8.0 * kMiB;  // of moments that lie in a file

struct Blocks {
  double layer = 0.0, table = 0.0, largest = 0.0, all = 0.0;  // elements of this rank's slices
  int count = 0;
};

Blocks blocks_of(const ModelShape& model, double tensor) {
  Blocks blocks;
  blocks.layer = model.layer_parameters() / tensor;
  blocks.table = model.table_parameters() / tensor;
  blocks.largest = std::max(blocks.layer, blocks.table + model.hidden);
  blocks.all = model.layers * blocks.layer + (model.tied ? 1.0 : 2.0) * blocks.table;
  blocks.count = model.layers + (model.tied ? 1 : 2);
  return blocks;
}

double gathered(const OwnMemoryQuestion& q, const Blocks& blocks) {
  const Layout& layout = q.layout;
  if (layout.shard_degree == 1) return 0.0;
  const bool adds = layout.accumulation > 1 || q.model.tied;
  double bytes = 2.0 * kFp32 * blocks.largest;  // gradients
  if (adds)
    bytes += (layout.accumulation > 1 ? 2.0 : 1.0) * kFp32 * blocks.largest /
             static_cast<double>(layout.shard_degree);
  if (spec::rules_of(layout.strategy).keeps_parameters) return bytes + kBf16 * blocks.all;
  return bytes + kBf16 * blocks.largest * std::min(q.prefetch + 1, blocks.count);
}

double activations(const OwnMemoryQuestion& q) {
  const ModelShape& m = q.model;
  const Layout& layout = q.layout;
  const double tensor = layout.tensor_parallel;
  const double n = static_cast<double>(layout.micro_batch) * layout.sequence_length, rows = n / tensor;
  const double c = m.hidden, f = m.ffn / tensor, v = m.vocab / tensor;
  const double qkv = (c + 2.0 * m.kv_width) / tensor, heads = c / tensor;
  const double input = kBf16 * rows * c;
  const double rest = 2.0 * kFp32 * rows + kFp32 * n * q.heads / tensor +
                      kBf16 * (n * qkv + n * heads + rows * c + 2.0 * n * f);
  const double cheap = kBf16 * n * (2.0 * c + f);
  const bool keeps_rest = layout.checkpointing != spec::Checkpointing::kFull;
  const bool keeps_cheap = layout.checkpointing == spec::Checkpointing::kNone;
  const double layer = input + (keeps_rest ? rest : 0.0) + (keeps_cheap ? cheap : 0.0);
  const double saved = layout.activation_offload ? layer + input : m.layers * layer;
  const double chunk = std::min(n, std::max(64.0, std::floor(kLogits / v)));
  double scratch = (keeps_rest ? 0.0 : rest) + (keeps_cheap ? 0.0 : cheap);
  scratch += chunk * v * (kFp32 + kBf16) + kBf16 * (2.0 * rows * c + n * c);
  scratch += kBf16 * n * (std::max({c, f, heads}) + std::max({2.0 * f, qkv, c}));
  scratch += kFp32 * layout.sequence_length * c / std::max(1, q.heads);
  if (tensor > 1.0) scratch += n * c * (kBf16 + kFp32) + kFp32 * rows * c;
  return saved + scratch;
}

// Of one sum over `ranks`, to which each gives `bytes` that stay on this one.
double sum_bytes(double ranks, double bytes) {
  if (ranks <= 1.0) return 0.0;
  const double each = std::clamp(16.0 * kMiB / (ranks - 1.0), kMiB / 16.0, kMiB);
  return (ranks - 1.0) * std::min(bytes, each);
}

}  // namespace

double own_memory(const OwnMemoryQuestion& q) {
  const Layout& layout = q.layout;
  const double tensor = layout.tensor_parallel, degree = static_cast<double>(layout.shard_degree);
  const double replicas = static_cast<double>(q.world) / (degree * tensor);
  const Blocks blocks = blocks_of(q.model, tensor);
  const double mine = blocks.all / degree, shard = kFp32 * blocks.largest / degree;
  double bytes = (2.0 * kFp32 + kBf16) * mine;  // master, gradient, copy
  const double moments = 2.0 * kFp32 * mine;
  bytes += layout.optimizer_offload ? std::min(moments, kOffloadWindow) : moments;
  bytes += gathered(q, blocks) + activations(q) + kKernels + kWriterBuffer;
  const double rows = kFp32 * static_cast<double>(layout.micro_batch) * layout.sequence_length / tensor;
  bytes += kRunning * (sum_bytes(degree, shard) + sum_bytes(replicas, shard / replicas)) +
           sum_bytes(tensor, rows * q.model.hidden);
  if (q.saves_while_training) bytes += 3.0 * kFp32 * mine / replicas;
  return bytes + static_cast<double>(plan::process_bytes(q.world));
}

}  // namespace shardrun::launcher

// Optimizer: AdamW or LAMB over one rank's flat shard, with its moments in memory or in a file.
//
// Moments in a file are updated a few megabytes at a time, and each part is given back to the system behind the
// update: no more than a window of them is in memory.
//
// Thread rule: thread-compatible; give_back() may be called for different values at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/model/model.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/lamb.h"
#include "runtime/shard/layout.h"

namespace shardrun::train {

using base::Result;

struct OptimizerOptions {
  std::variant<optim::AdamWOptions, optim::LambOptions> kind = optim::AdamWOptions{};
  std::string offload_directory;  // where the moments lie; empty: in the backend's memory
};

class Optimizer {
 public:
  // Both moments.
  static int64_t planned_bytes(const shard::ShardLayout& layout);
  // Of them, in memory at a time when they lie in a file.
  static int64_t offload_window(const shard::ShardLayout& layout);
  // Everything lies in the memory of `backend`, which outlives it; on a GPU the moments, too
  // (kUnsupported). kIo without that much memory or room.
  static Result<Optimizer> create(const OptimizerOptions& options, std::span<const model::BlockLayout> blocks,
                                  const shard::ShardLayout& layout, int shard_rank,
                                  kernels::Backend& backend = kernels::cpu_backend());

  std::span<float> moment1() const { return moment1_; }
  std::span<float> moment2() const { return moment2_; }
  // Lets values of a moment leave memory when they lie in a file.
  void give_back(std::span<const float> values) const;
  const std::vector<optim::UpdateRange>& ranges() const { return ranges_; }

  // Sums of the ranks that share tensors, in place.
  using AllReduce = std::function<Result<void>(std::span<double>)>;
  // Step number `step`, counted from 1; `gradient` is multiplied by `gradient_scale` first. Only LAMB reduces.
  Result<void> update(std::span<float> master, std::span<const float> gradient, double gradient_scale,
                      double learning_rate, int64_t step, const AllReduce& all_reduce);

 private:
  Optimizer(base::Memory memory, int64_t elements, std::vector<optim::UpdateRange> ranges);

  base::Memory memory_;
  std::span<float> moment1_, moment2_;
  std::vector<optim::UpdateRange> ranges_;
  std::optional<optim::AdamW> adamw_;
  std::optional<optim::Lamb> lamb_;
};

}  // namespace shardrun::train

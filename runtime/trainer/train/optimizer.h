// Optimizer: AdamW or LAMB over one rank's flat shard, with its moments in memory, in a file, or, of a GPU, on the host.
//
// Moments in a file are updated a few megabytes at a time, and each part is given back to the system behind the
// update: no more than a window of them is in memory. Those on the host pass through a GPU (optim/host_moments.h).
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
#include "runtime/plan/shard_layout.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/optim/adamw.h"
#include "runtime/trainer/optim/host_moments.h"
#include "runtime/trainer/optim/lamb.h"

namespace shardrun::train {

using base::Result;

struct OptimizerOptions {
  std::variant<optim::AdamWOptions, optim::LambOptions> kind = optim::AdamWOptions{};
  std::string offload_directory;  // where a CPU's moments lie; empty: in the backend's memory
  bool offload_to_host = false;   // of a GPU, with AdamW
  int64_t offload_piece = optim::HostMoments::kPieceElements;  // of a moment, that comes to a GPU at once
};

class Optimizer {
 public:
  // Both moments.
  static int64_t planned_bytes(const plan::ShardLayout& layout);
  // The same, offloaded.
  static int64_t offloaded_bytes(const plan::ShardLayout& layout, const OptimizerOptions& options);
  // Of them, in memory at a time when they lie in a file; in a GPU's memory when they lie on the host.
  static int64_t offload_window(const plan::ShardLayout& layout, const OptimizerOptions& options);
  // Everything but offloaded moments lies in the memory of `backend`, which outlives it. kUnsupported: LAMB with moments
  // on the host. kIo without that much memory or room.
  static Result<Optimizer> create(const OptimizerOptions& options, std::span<const model::BlockLayout> blocks,
                                  const plan::ShardLayout& layout, int shard_rank,
                                  kernels::Backend& backend = kernels::cpu_backend());

  std::span<float> moment1() const { return moment1_; }
  std::span<float> moment2() const { return moment2_; }
  // Lets values of a moment leave memory when they lie in a file.
  void give_back(std::span<const float> values) const;
  // Whether the moments of a GPU's optimizer lie in the host's memory, which may be touched after finish().
  bool moments_on_host() const { return host_moments_ != nullptr; }
  bool is_on_host(std::span<const float> values) const;
  Result<void> finish() { return host_moments_ ? host_moments_->finish() : Result<void>(); }
  const std::vector<optim::UpdateRange>& ranges() const { return ranges_; }

  // Sums of the ranks that share tensors, in place.
  using AllReduce = std::function<Result<void>(std::span<double>)>;
  // Step number `step`, counted from 1; `gradient` is multiplied by `gradient_scale` first. Only LAMB reduces.
  Result<void> update(std::span<float> master, std::span<const float> gradient, double gradient_scale,
                      double learning_rate, int64_t step, const AllReduce& all_reduce);

 private:
  explicit Optimizer(std::vector<optim::UpdateRange> ranges) : ranges_(std::move(ranges)) {}
  Result<void> take_memory(const OptimizerOptions& options, int64_t elements, kernels::Backend& backend);
  void update_in_pieces(std::span<float> master, std::span<const float> gradient);
  Result<void> update_on_host(std::span<float> master, std::span<const float> gradient);

  base::Memory memory_;
  std::unique_ptr<optim::HostMoments> host_moments_;
  std::span<float> moment1_, moment2_;
  std::vector<optim::UpdateRange> ranges_;
  std::optional<optim::AdamW> adamw_;
  std::optional<optim::Lamb> lamb_;
};

}  // namespace shardrun::train

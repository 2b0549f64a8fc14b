// Optimizer: AdamW or LAMB over one rank's flat shard, with its moments in memory, there packed in 8 bits, in a file, or, of a GPU, on
// the host.
//
// Moments in a file are updated a few megabytes at a time, and each part is given back to the system behind the
// update: no more than a window of them is in memory. Those on the host pass through a GPU (optim/host_moments.h).
//
// Packed moments have names: moment1() and moment2() then are places without memory, of which only addresses count, and
// read_packed() gives what is there.
//
// Thread rule: thread-compatible; give_back() and read_packed() may be called for different values at once.
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
#include "runtime/plan/optimizer_state.h"
#include "runtime/plan/shard_layout.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/optim/adamw.h"
#include "runtime/trainer/optim/host_moments.h"
#include "runtime/trainer/optim/lamb.h"
#include "runtime/trainer/optim/packed_adamw.h"

namespace shardrun::train {

using base::Result;

using OptimizerKind = std::variant<optim::AdamWOptions, optim::LambOptions>;

struct OptimizerOptions {
  OptimizerKind kind = optim::AdamWOptions{};
  bool packs = false;             // AdamW's moments lie in 8 bits
  bool offload = false;           // moments lie in a file; a GPU's, with AdamW, in pinned memory of the host
  std::string offload_directory;  // of the file
  int64_t offload_piece = plan::kMomentPiece;  // elements of a moment that come to a GPU at once
};

class Optimizer {
 public:
  // Takes plan::moments(). Everything but offloaded moments lies in the memory of `backend`, which outlives it.
  // kUnsupported: LAMB with moments on the host. kIo without that much memory or room.
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
  bool packs_moments() const { return packed_.has_value(); }
  // Copies packed moments in fp32; `values`: a part of moment1() or moment2(). False: it is none.
  bool read_packed(std::span<const float> values, float* to) const;
  // Packs the whole of moment 0 or 1.
  void write_packed(int moment, std::span<const float> values) { packed_->write(moment, values); }
  const std::vector<optim::UpdateRange>& ranges() const { return ranges_; }

  // Sums of the ranks that share tensors, in place.
  using AllReduce = std::function<Result<void>(std::span<double>)>;
  // Step number `step`, counted from 1; `gradient` is multiplied by `gradient_scale` first. Only LAMB reduces. Where
  // updates_parts(), it is a bug (CHECK).
  Result<void> update(std::span<float> master, std::span<const float> gradient, double gradient_scale,
                      double learning_rate, int64_t step, const AllReduce& all_reduce);
  // Whether a step can be made a part of the shard at a time, which nothing but AdamW with fp32 moments where it computes can:
  // begin_step(), then update_part() for parts that no tensor crosses the ends of, in any order, each element once.
  bool updates_parts() const { return adamw_.has_value() && host_moments_ == nullptr; }
  void begin_step(double gradient_scale, double learning_rate, int64_t step) {
    adamw_->begin_step(gradient_scale, learning_rate, step);
  }
  void update_part(std::span<float> master, std::span<const float> gradient, int64_t begin, int64_t count);

 private:
  explicit Optimizer(std::vector<optim::UpdateRange> ranges) : ranges_(std::move(ranges)) {}
  static Result<Optimizer> with_packed_moments(Optimizer optimizer, const optim::AdamWOptions& options,
                                               int64_t elements);
  void name_moments(int64_t elements);
  Result<void> take_memory(const OptimizerOptions& options, int64_t elements, kernels::Backend& backend);
  Result<void> update_on_host(std::span<float> master, std::span<const float> gradient);

  base::Memory memory_;
  std::unique_ptr<optim::HostMoments> host_moments_;
  std::span<float> moment1_, moment2_;
  std::vector<optim::UpdateRange> ranges_;
  std::optional<optim::AdamW> adamw_;
  std::optional<optim::Lamb> lamb_;
  std::optional<optim::PackedAdamW> packed_;
};

}  // namespace shardrun::train

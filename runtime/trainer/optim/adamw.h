// AdamW on a rank's flat shard of master weights and gradients (Loshchilov and Hutter 2019).
//
// Thread rule: thread-compatible; a CPU's kernels use the OpenMP threads of the calling thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/trainer/kernels/backend.h"

namespace shardrun::optim {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};

// Elements [begin, begin + count) of the flat shard.
struct UpdateRange {
  int64_t begin = 0, count = 0;
  bool weight_decay = true;
  bool whole = true;   // whether it is part of a tensor that every rank of a tensor group holds whole
  int64_t tensor = 0;  // number of that tensor, the same on all ranks

  friend bool operator==(const UpdateRange&, const UpdateRange&) = default;
};

// Sums values in host memory, in fp64 and in a fixed order: the same bits for any thread count.
double sum_of_squares(std::span<const float> values);

// Returns the factor by which gradients are multiplied so that their global norm is at most clip_norm; 1 when
// clip_norm is 0.
double clip_scale(double gradient_norm, double clip_norm);

// Returns the parameters of optimizer step number `step`, counted from 1, but for the decay, which is 0.
kernels::AdamWParameters adamw_parameters(const AdamWOptions& options, double gradient_scale,
                                          double learning_rate, int64_t step);

class AdamW {
 public:
  // The moments are as long as the flat shard, zero at the start of training, and outlive the optimizer. `ranges`
  // lie inside the shard; elements outside every range (padding) are never touched. The moments, and what update()
  // is given, lie in the memory of `backend`, which outlives the optimizer too; these moments need not if each
  // update() is given its own.
  AdamW(std::vector<UpdateRange> ranges, const AdamWOptions& options, std::span<float> moment1,
        std::span<float> moment2, kernels::Backend& backend = kernels::cpu_backend())
      : ranges_(std::move(ranges)),
        options_(options),
        moment1_(moment1),
        moment2_(moment2),
        backend_(&backend) {}

  // Makes optimizer step number `step`, counted from 1. `gradient` is multiplied by `gradient_scale` first.
  void update(std::span<float> master, std::span<const float> gradient, double gradient_scale,
              double learning_rate, int64_t step);
  // Do the same a part at a time, in any order: begin_step, then update every part of every range once.
  void begin_step(double gradient_scale, double learning_rate, int64_t step);
  void update(const UpdateRange& part, std::span<float> master, std::span<const float> gradient);
  // Does the same with moments that lie elsewhere: `moment1` and `moment2` are the part's.
  void update(const UpdateRange& part, std::span<float> master, std::span<const float> gradient,
              std::span<float> moment1, std::span<float> moment2);

 private:
  std::vector<UpdateRange> ranges_;
  AdamWOptions options_;
  std::span<float> moment1_, moment2_;
  kernels::Backend* backend_;
  kernels::AdamWParameters parameters_{};
};

}  // namespace shardrun::optim

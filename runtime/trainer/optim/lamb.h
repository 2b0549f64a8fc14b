// LAMB on a rank's flat shard of master weights and gradients (You et al. 2020): Adam's direction, with the step of
// each tensor scaled by ‖w‖/‖update‖, its trust ratio.
//
// A tensor may lie on several ranks, so a step has two phases with an all-reduce of the caller between them:
//
//   lamb.measure(master, gradient, scale, step, sums);   this rank's part of every tensor's squares
//   all-reduce of `sums` over the ranks that share tensors
//   lamb.apply(master, learning_rate, step, sums);
//
// As in the authors' program, tensors without weight decay (biases and norms) are not scaled: their ratio is 1, as
// is that of a tensor whose weights or whose update are all zero. Clipping by the global norm is done through the
// caller's gradient_scale. A failure of a GPU is reported by its backend.
//
// Thread rule: thread-compatible; a CPU's kernels use the OpenMP threads of the calling thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::optim {

struct LambOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-6, weight_decay = 0.01;
};

// Elements [begin, begin + count) of the flat shard: all that it holds of the tensor with that number.
struct TensorRange {
  int64_t begin = 0, count = 0;
  int64_t tensor = 0;  // the same on all ranks
  bool weight_decay = true;

  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};

class Lamb {
 public:
  // The moments are as long as the flat shard, zero at the start of training, and outlive the optimizer. `ranges`
  // lie inside the shard; elements outside every range (padding) are never touched. All of it lies in the memory of
  // `backend`, which outlives the optimizer and of which it takes a little. Error: kIo.
  static base::Result<Lamb> create(std::vector<TensorRange> ranges, int64_t tensors,
                                   const LambOptions& options, std::span<float> moment1,
                                   std::span<float> moment2, kernels::Backend& backend);
  // Does the same on the CPU.
  Lamb(std::vector<TensorRange> ranges, int64_t tensors, const LambOptions& options, std::span<float> moment1,
       std::span<float> moment2);

  std::span<float> moment1() { return moment1_; }
  std::span<float> moment2() { return moment2_; }
  // Returns how many numbers measure() writes: two for each tensor.
  int64_t sums() const { return 2 * tensors_; }

  // Makes optimizer step number `step`, counted from 1, in two phases. `gradient` is multiplied by `gradient_scale`
  // first.
  void measure(std::span<const float> master, std::span<const float> gradient, double gradient_scale,
               int64_t step, std::span<double> sums);
  void apply(std::span<float> master, double learning_rate, int64_t step, std::span<const double> sums);

 private:
  // What is kept of one range, in the backend's memory.
  struct Scratch {
    kernels::LambSquares squares;
    float rate, padding;
  };
  Scratch* scratch() {
    return memory_.data() == nullptr ? own_.data() : reinterpret_cast<Scratch*>(memory_.data());
  }
  kernels::LambParameters parameters(const TensorRange& range, double gradient_scale, int64_t step) const;

  std::vector<TensorRange> ranges_;
  int64_t tensors_;
  LambOptions options_;
  std::span<float> moment1_, moment2_;
  kernels::Backend* backend_ = &kernels::cpu_backend();
  base::Memory memory_;       // it is as long as `own_`; none on the CPU
  std::vector<Scratch> own_;  // in host memory
};

}  // namespace shardrun::optim

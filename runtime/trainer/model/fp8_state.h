// Fp8State: the delayed scales of a model's tensors (kernels/fp8.h), between the host that keeps their histories and the
// memory of the backend that the ops read.
//
// A step is begin_step(); micro-steps; largest(); the caller takes the largest over all ranks; end_step() with that. So a
// scale belongs to a tensor, not to a rank, and does not depend on how the model is spread or the batch is cut.
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/run.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/fp8.h"

namespace shardrun::model {

using plan::kFp8TensorsOfBlock;

class Fp8State {
 public:
  // One of `formats` for each tensor; `scalings`, as many zeros in the backend's memory. Both outlive it.
  Fp8State(kernels::Backend& backend, kernels::Fp8Scaling* scalings, std::vector<kernels::Fp8Format> formats);

  // What was seen since the last step, by a validation, is forgotten.
  void begin_step() { publish(); }
  // Absolute values that this rank saw in the step. Waits.
  base::Result<std::vector<float>> largest() const;
  void end_step(std::span<const float> largest);

  const std::vector<kernels::Fp8History>& histories() const { return histories_; }
  // None: a state without any, of a run that had no fp8. kInvalid: of another number of tensors.
  base::Result<void> restore(const std::vector<kernels::Fp8History>& histories);

  kernels::Fp8Scaling* scaling(int64_t tensor) const { return scalings_ + tensor; }
  kernels::Fp8Format format(int64_t tensor) const { return formats_[tensor]; }
  kernels::Fp8Scale scale(int64_t tensor) const {
    return histories_[tensor].scale > 0.0F ? kernels::Fp8Scale::kDelayed : kernels::Fp8Scale::kPresent;
  }
  // Which tensors of a block have a delayed scale: bit i of its i-th.
  uint64_t delayed_scales(int64_t block) const;

 private:
  void publish();

  kernels::Backend& backend_;
  kernels::Fp8Scaling* scalings_;
  std::vector<kernels::Fp8Format> formats_;
  std::vector<kernels::Fp8History> histories_;
};

// a[i] = the larger of a[i] and b[i]; a NaN is above all.
void take_larger(std::span<float> a, std::span<const float> b);

}  // namespace shardrun::model

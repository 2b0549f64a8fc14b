// LinearAdapters: what the adapters of a layer add to its linear layers, y += s·B·(A·x), and their gradients.
//
// A·x is computed again in backward: it is narrow, and nothing of an adapter waits between the two.
// Internal to runtime/trainer/model. Shapes as in kernels/ops.h, R the rank of adapters. Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/model/adapters.h"
#include "runtime/plan/model/llama_buffers.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/model/block_linears.h"

namespace shardrun::model {

template <typename T>
class LinearAdapters {
 public:
  // `buffers`: their scratch; it and the ops outlive this.
  LinearAdapters(const kernels::Ops<T>& ops, const plan::LlamaConfig& config, int64_t rows,
                 const plan::LlamaBuffers<T>& buffers)
      : ops_(ops),
        adapters_(plan::adapters_of(config)),
        N_(rows),
        R_(config.lora.rank),
        scale_(config.lora.wanted() ? static_cast<float>(config.lora.scale()) : 0.0F),
        buffers_(buffers) {}

  // The layer's adapters from now on; of a backward also where their gradients go, or are added.
  void use(const T* parameters, float* gradient = nullptr, bool accumulate = false) {
    parameters_ = parameters;
    gradient_ = gradient;
    accumulate_ = accumulate;
  }

  // y += what the adapters of that linear layer make of x (N,C).
  void forward(Linear linear, T* y, const T* x) const {
    for (const plan::Adapter& at : adapters_) {
      if (linear_of(at.matrix) != linear) continue;
      ops_.products.linear_forward(buffers_.low, x, parameters_ + at.a, N_, at.inputs, R_);
      ops_.products.linear_forward(buffers_.adapted, buffers_.low, parameters_ + at.b, N_, R_, at.outputs);
      ops_.pointwise.add_to_columns(y + at.column, buffers_.adapted, scale_, N_, at.outputs, at.stride);
    }
  }

  // Writes or adds the adapters' gradients, and adds to dx (N,C); dy as the layer's result lies.
  void backward(Linear linear, T* dx, const T* dy, const T* x) const {
    for (const plan::Adapter& at : adapters_) {
      if (linear_of(at.matrix) != linear) continue;
      const T *const a = parameters_ + at.a, *const b = parameters_ + at.b;
      T *const low = buffers_.low, *const dlow = buffers_.dlow, *const dout = buffers_.adapted;
      ops_.pointwise.take_columns(dout, dy + at.column, scale_, N_, at.outputs, at.stride);
      ops_.products.linear_forward(low, x, a, N_, at.inputs, R_);
      ops_.products.linear_backward_weight(gradient_ + at.b, dout, low, N_, R_, at.outputs, accumulate_);
      ops_.products.linear_backward_input(dlow, dout, b, N_, R_, at.outputs);
      ops_.products.linear_backward_weight(gradient_ + at.a, dlow, x, N_, at.inputs, R_, accumulate_);
      ops_.products.linear_backward_input(dx, dlow, a, N_, at.inputs, R_, /*accumulate=*/true);
    }
  }

 private:
  static Linear linear_of(spec::LoraMatrix matrix) {
    using spec::LoraMatrix;
    if (matrix <= LoraMatrix::kV) return Linear::kQkv;
    if (matrix == LoraMatrix::kO) return Linear::kOut;
    return matrix == LoraMatrix::kDown ? Linear::kDown : Linear::kGateUp;
  }

  const kernels::Ops<T>& ops_;
  std::vector<plan::Adapter> adapters_;
  int64_t N_, R_;
  float scale_;
  const plan::LlamaBuffers<T>& buffers_;
  const T* parameters_ = nullptr;
  float* gradient_ = nullptr;
  bool accumulate_ = false;
};

}  // namespace shardrun::model

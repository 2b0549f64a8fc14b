// BlockLinears: the four linear layers of a decoder's block, in the compute type or, of bf16, in fp8.
//
// In fp8 each layer's input, weight and output gradient are quantized where they are used, with the step's scale, so that
// backward and recomputation quantize to the same bytes again and nothing of fp8 waits between forward and backward.
// Internal to runtime/trainer/model. Shapes as in kernels/ops.h. Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "runtime/plan/model/llama_buffers.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/model/fp8_state.h"

namespace shardrun::model {

enum class Linear { kQkv, kOut, kGateUp, kDown };

using plan::Fp8Memory;

template <typename T>
class BlockLinears {
 public:
  // `fp8`: null, or of all tensors of all blocks, with its ops and memory. All outlive this.
  BlockLinears(const kernels::Ops<T>& ops, const kernels::Fp8Ops* fp8_ops, const Fp8State* fp8,
               const Fp8Memory& memory)
      : ops_(ops), fp8_ops_(fp8_ops), fp8_(fp8), memory_(memory) {}

  // Whether backward() from now on adds to dw; off at first.
  void accumulate(bool on) { accumulate_ = on; }

  // y (N,O) = x (N,C) · wᵀ, of block number `block`. Out: T, or float for a sum over ranks.
  template <typename Out>
  void forward(int block, Linear linear, Out* y, const T* x, const T* w, int64_t N, int64_t C,
               int64_t O) const {
    if constexpr (kMayBeFp8) {
      if (fp8_ != nullptr) {
        const auto x8 = quantized(block, linear, kInput, memory_.input, nullptr, x, N, C);
        const auto w8 = quantized(block, linear, kWeight, memory_.weight, nullptr, w, O, C);
        return multiply(*fp8_ops_, y, x8, w8, N, C, O);
      }
    }
    multiply(ops_.products, y, x, w, N, C, O);
  }

  // Its gradients: dw (O,C) = or += dyᵀ·x, unless dw is null because w is frozen; then dx (N,C) = dy·w, in T, or in fp32 for a
  // sum over ranks.
  template <typename Out>
  void backward(int block, Linear linear, float* dw, Out* dx, const T* dy, const T* x, const T* w, int64_t N,
                int64_t C, int64_t O) const {
    if constexpr (kMayBeFp8) {
      if (fp8_ != nullptr) {
        const auto dy8 = backward_weight(block, linear, dw, dy, x, N, C, O);
        const auto w8 = quantized(block, linear, kWeight, nullptr, memory_.weight, w, O, C);
        return multiply_back(*fp8_ops_, dx, dy8, w8, N, C, O);
      }
    }
    if (dw != nullptr) ops_.products.linear_backward_weight(dw, dy, x, N, C, O, accumulate_);
    multiply_back(ops_.products, dx, dy, w, N, C, O);
  }

  // Returns the formats of the tensors of `blocks` blocks, for Fp8State.
  static std::vector<kernels::Fp8Format> formats(int64_t blocks) {
    std::vector<kernels::Fp8Format> formats;
    for (int64_t i = 0; i < blocks * kFp8TensorsOfBlock; ++i)
      formats.push_back(i % Fp8Memory::kTensors == kGradient ? kernels::Fp8Format::kE5m2
                                                             : kernels::Fp8Format::kE4m3);
    return formats;
  }

 private:
  static constexpr bool kMayBeFp8 = std::is_same_v<T, kernels::Bf16>;
  enum Tensor { kInput, kWeight, kGradient };

  // The op of `ops` that writes an Out: the same product, of factors of T or in fp8.
  template <typename Out, typename AnyOps, typename X, typename W>
  static void multiply(const AnyOps& ops, Out* y, const X& x, const W& w, int64_t N, int64_t C, int64_t O) {
    if constexpr (std::is_same_v<Out, T>) {
      ops.linear_forward(y, x, w, N, C, O);
    } else {
      ops.linear_forward_fp32(y, x, w, N, C, O);
    }
  }
  template <typename Out, typename AnyOps, typename Dy, typename W>
  static void multiply_back(const AnyOps& ops, Out* dx, const Dy& dy, const W& w, int64_t N, int64_t C,
                            int64_t O) {
    if constexpr (std::is_same_v<Out, T>) {
      ops.linear_backward_input(dx, dy, w, N, C, O);
    } else {
      ops.linear_backward_input_fp32(dx, dy, w, N, C, O);
    }
  }

  // Returns the output's gradient in rows.
  kernels::Fp8Matrix backward_weight(int block, Linear linear, float* dw, const T* dy, const T* x, int64_t N,
                                     int64_t C, int64_t O) const {
    const auto dy8 = quantized(block, linear, kGradient, memory_.gradient, memory_.turned, dy, N, O);
    const auto x8 = quantized(block, linear, kInput, nullptr, memory_.input, x, N, C);
    fp8_ops_->linear_backward_weight(dw, dy8, x8, N, C, O, accumulate_);
    return dy8;
  }

  kernels::Fp8Matrix quantized(int block, Linear linear, Tensor tensor, uint8_t* values, uint8_t* transposed,
                               const T* in, int64_t rows, int64_t columns) const {
    const int64_t number =
        (int64_t{block} * Fp8Memory::kLinears + static_cast<int64_t>(linear)) * Fp8Memory::kTensors + tensor;
    const kernels::Fp8Matrix out{fp8_->format(number), values, transposed,
                                 memory_.inverses + tensor * Fp8Memory::kInverseStride};
    fp8_ops_->quantize(out, fp8_->scaling(number), in, rows, columns, fp8_->scale(number));
    return out;
  }

  const kernels::Ops<T>& ops_;
  const kernels::Fp8Ops* fp8_ops_;
  const Fp8State* fp8_;
  const Fp8Memory& memory_;
  bool accumulate_ = false;
};

}  // namespace shardrun::model

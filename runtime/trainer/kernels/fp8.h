// fp8: what a byte of its two formats means (Micikevicius et al. 2022, "FP8 formats for deep learning"), the scale
// that a tensor gets from the largest values it had, and the linear layers of a backend that multiplies fp8.
//
// Scales are delayed, after NVIDIA Transformer Engine's recipe DelayedScaling (amax_compute_algo "max", margin 0),
// but by steps: within a step a tensor is multiplied by one number, so that quantizing it again, for backward or
// another micro-batch, gives the same bits. At the end of the step the largest value that any rank saw enters the
// history, which decides the next step's scale. A value that is too large for the scale becomes the largest fp8
// number; a NaN stays a NaN. E4M3 has no infinity and one NaN for each sign; E5M2 has both as IEEE has them. The
// functions are constexpr, so that the same lines run on a GPU and in unit tests without one.
//
// Thread rule: pure functions and plain values; Fp8Ops as the backend.
// Tests: tests/unit/kernels/cuda_logic_test.cpp, tests/gpu/fp8_test.cpp.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels {

enum class Fp8Format : int32_t { kE4m3, kE5m2 };

constexpr float largest_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? 448.0F : 57344.0F;
}

constexpr float widened(Fp8Format format, uint8_t value) {
  const bool is_e4m3 = format == Fp8Format::kE4m3;
  const uint32_t sign = (value & 0x80U) << 24, digits = value & 0x7fU;
  const uint32_t mantissa_bits = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
  const uint32_t exponent = digits >> mantissa_bits, mantissa = digits & ((1U << mantissa_bits) - 1);
  if (is_e4m3 ? digits == 0x7fU : exponent == 31)  // NaN, or E5M2's infinity
    return std::bit_cast<float>(sign | 0x7f800000U | (is_e4m3 || mantissa != 0 ? 0x400000U : 0U));
  if (exponent == 0) {  // the unit is 2^-9, or 2^-16
    const float unit = is_e4m3 ? 0x1p-9F : 0x1p-16F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * unit));
  }
  return std::bit_cast<float>(sign | (exponent + 127 - bias) << 23 | mantissa << (23 - mantissa_bits));
}

// Returns the scale that brings `largest` to the format's largest value, or `before` where `largest` is no use:
// nothing but zeros was seen, or an infinity or a NaN.
constexpr float scale_for(Fp8Format format, float largest, float before) {
  constexpr float kLargestFloat = 0x1.fffffep127F;
  if (!(largest > 0.0F && largest <= kLargestFloat)) return before;
  const float scale = largest_of(format) / largest;
  return scale <= kLargestFloat ? scale : kLargestFloat;
}

inline constexpr int kFp8History = 16;
// What the host knows about a tensor that is quantized in every step.
struct Fp8History {
  // Scale of the next step; 0: none yet, the tensor's own values decide.
  float scale = 0.0F;
  std::array<float, kFp8History> largest{};  // largest absolute values of steps, the latest first

  // Ends a step. An infinity or a NaN says nothing about the next step and is not kept.
  constexpr void note(Fp8Format format, float largest_of_step) {
    if (!(largest_of_step >= 0.0F && largest_of_step <= 0x1.fffffep127F)) return;
    float most = largest_of_step;
    for (size_t i = largest.size() - 1; i > 0; --i) {
      largest[i] = largest[i - 1];
      most = largest[i] > most ? largest[i] : most;
    }
    largest[0] = largest_of_step;
    scale = scale_for(format, most, scale);
  }
  friend bool operator==(const Fp8History&, const Fp8History&) = default;
};

// What ops read and write about such a tensor, in the backend's memory.
struct Fp8Scaling {
  float scale;    // scale of this step's quantizations
  float largest;  // largest absolute value that they saw; only grows. An infinity or a NaN is above all
};
// Where a quantization takes its scale from.
enum class Fp8Scale {
  kDelayed,  // scaling->scale
  kPresent,  // the values' own largest, found by one more pass over them, which also sets scaling->scale
};
// A matrix as quantize() leaves it, in the backend's memory. GPUs multiply fp8 only along rows of both factors, so
// products of the backward pass take the transposed matrix.
struct Fp8Matrix {
  Fp8Format format = Fp8Format::kE4m3;
  uint8_t* values = nullptr;      // (rows, columns); null: not wanted
  uint8_t* transposed = nullptr;  // (columns, rows); null: not wanted
  float* inverse = nullptr;       // (1), at 16 bytes: an element is its fp8 number times this
};

// Linear layers in fp8: values and weights in E4M3, gradients in E5M2, products added up in fp32, one scale for
// each tensor. Shapes are as in kernels/ops.h. The bits repeat from run to run.
class Fp8Ops {
 public:
  virtual ~Fp8Ops() = default;

  virtual void quantize(const Fp8Matrix& out, Fp8Scaling* scaling, const Bf16* in, int64_t rows,
                        int64_t columns, Fp8Scale scale) const = 0;
  // Computes y = x·wᵀ from `values`, added up fast, which is what fp8 hardware does best.
  virtual void linear_forward(Bf16* y, const Fp8Matrix& x, const Fp8Matrix& w, int64_t N, int64_t C,
                              int64_t O) const = 0;
  virtual void linear_forward_fp32(float* y, const Fp8Matrix& x, const Fp8Matrix& w, int64_t N, int64_t C,
                                   int64_t O) const = 0;
  // Computes dx = dy·w from dy's `values` and w's `transposed`.
  virtual void linear_backward_input(Bf16* dx, const Fp8Matrix& dy, const Fp8Matrix& w, int64_t N, int64_t C,
                                     int64_t O) const = 0;
  virtual void linear_backward_input_fp32(float* dx, const Fp8Matrix& dy, const Fp8Matrix& w, int64_t N,
                                          int64_t C, int64_t O) const = 0;
  // Computes dw = dyᵀ·x from both `transposed`, or += when `accumulate`.
  virtual void linear_backward_weight(float* dw, const Fp8Matrix& dy, const Fp8Matrix& x, int64_t N,
                                      int64_t C, int64_t O, bool accumulate) const = 0;
};

}  // namespace shardrun::kernels

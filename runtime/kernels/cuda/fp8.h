// What a byte of the two fp8 formats means (Micikevicius et al. 2022, "FP8 formats for deep learning"), and the scale
// that a tensor gets from the largest values it had.
//
// E4M3 has no infinity and one NaN a sign; E5M2 has both as IEEE has them. constexpr, so that the same lines run on a
// GPU and in unit tests without one. Thread rule: pure functions. Tests: tests/unit/kernels/cuda_logic_test.cpp.
#pragma once

#include <bit>
#include <cstdint>

namespace shardrun::kernels::cuda {

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

// The scale that brings `largest` to the format's largest value. `before`, if that is no use: nothing but zeros was seen,
// or an infinity or a NaN.
constexpr float scale_for(Fp8Format format, float largest, float before) {
  constexpr float kLargestFloat = 0x1.fffffep127F;
  if (!(largest > 0.0F && largest <= kLargestFloat)) return before;
  const float scale = largest_of(format) / largest;
  return scale <= kLargestFloat ? scale : kLargestFloat;
}

}  // namespace shardrun::kernels::cuda

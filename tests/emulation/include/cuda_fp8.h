// The one conversion to fp8 that runtime/trainer/kernels/cuda uses, for the emulated GPU: rounds to nearest even among all
// numbers that exist, and what is too large to the largest.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/emulation/device_code.h"

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
using __nv_fp8_storage_t = unsigned char;

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t,
                                                __nv_fp8_interpretation_t format) {
  const int mantissa_bits = format == __NV_E4M3 ? 3 : 2, least_exponent = format == __NV_E4M3 ? -6 : -14;
  const auto sign = static_cast<unsigned char>(std::signbit(value) ? 0x80 : 0);
  const float magnitude = std::fabs(value), largest = format == __NV_E4M3 ? 448.0F : 57344.0F;
  if (std::isnan(value)) return 0x7f;
  if (magnitude >= largest) return static_cast<unsigned char>(sign | (format == __NV_E4M3 ? 0x7e : 0x7b));
  if (magnitude == 0.0F) return sign;
  const int exponent = std::max(std::ilogb(magnitude), least_exponent);
  // The value is in units of the last place; a carry out of the mantissa is the beginning of the next exponent.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  return static_cast<unsigned char>(sign | (((exponent - least_exponent) << mantissa_bits) + units));
}

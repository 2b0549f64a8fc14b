// bf16 as far as runtime/kernels/cuda uses NVIDIA's type, for the emulated GPU.
#pragma once

#include "tests/emulation/device_code.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

// To nearest even; a NaN becomes the one that the GPU has.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) {
  return value.bits;
}

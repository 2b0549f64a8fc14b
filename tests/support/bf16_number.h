// Bf16Number: a bf16 number whose sums are made by arithmetic, not by the bits as plugins and kernels make them: two are added
// in fp32, and the sum goes to the nearest bf16 number, of two that are as near to the even one.
//
// Thread rule: a value.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace shardrun::tests {

struct Bf16Number {
  uint16_t bits = 0;

  static Bf16Number nearest(float value) {
    if (std::isfinite(value) && value != 0.0F) {
      int exponent = 0;
      std::frexp(value, &exponent);
      const double unit = std::ldexp(1.0, std::max(exponent - 8, -133));
      value = static_cast<float>(std::nearbyint(static_cast<double>(value) / unit) * unit);
    }
    uint32_t wide = 0;
    std::memcpy(&wide, &value, sizeof(wide));
    return {static_cast<uint16_t>(wide >> 16 | (std::isnan(value) ? 0x40U : 0U))};
  }
  float value() const {
    const uint32_t wide = uint32_t{bits} << 16;
    float number = 0.0F;
    std::memcpy(&number, &wide, sizeof(number));
    return number;
  }
  friend Bf16Number operator+(Bf16Number a, Bf16Number b) { return nearest(a.value() + b.value()); }
  bool operator==(const Bf16Number&) const = default;
};

}  // namespace shardrun::tests

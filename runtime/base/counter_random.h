// Counter-based random numbers: a value is a pure function of (key, counter), so there is no state to save, any
// rank can compute any value, and the result does not depend on who computes what in which order.
//
// Thread rule: pure functions.
// Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), applied twice, over a Weyl sequence.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace shardrun::base {

inline constexpr uint64_t mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Returns 64 uniform bits.
inline constexpr uint64_t random_bits(uint64_t key, uint64_t counter) {
  return mix64(mix64(counter + 0x9e3779b97f4a7c15ULL) + key * 0xd1342543de82ef95ULL + 1);
}

// Returns a standard normal value (Box-Muller on one 64-bit draw; 32 bits each for radius and angle).
inline double random_normal(uint64_t key, uint64_t counter) {
  const uint64_t bits = random_bits(key, counter);
  const double radius_uniform = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
  const double angle_uniform = static_cast<double>(bits & 0xffffffffULL) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(radius_uniform)) * std::cos(2.0 * std::numbers::pi * angle_uniform);
}

// Makes a key out of a name (FNV-1a).
inline constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace shardrun::base

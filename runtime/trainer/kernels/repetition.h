// Repetition: the name of a sequence of ops that comes again. Equal names mean the same ops in the same order with
// the same arguments, on other values in the same memory.
//
// Thread rule: plain values.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace shardrun::kernels {

struct Repetition {
  const char* name = "";                // a literal; literals at other places may count as other names
  int64_t number = 0;                   // number of the block
  std::array<const void*, 2> memory{};  // memory that is not the same every time: parameters, gradient
  uint64_t variant = 0;                 // stands for all else that chooses ops or arguments

  auto operator<=>(const Repetition&) const = default;
};

}  // namespace shardrun::kernels

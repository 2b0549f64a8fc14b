// The order of sums: a balanced binary tree over the ranks of a group.
//
// A subtree of level k holds the ranks from b·2^k to (b+1)·2^k - 1, as far as there are such ranks; its sum is that of
// its lower half plus that of its upper half, or the lower one alone where the upper has no ranks. So the sum of a
// group does not depend on who sits where, and a node can add up whatever complete subtrees its ranks form.
//
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::common {

// The ranks begin … end - 1, which are a subtree.
struct Subtree {
  uint32_t begin = 0, end = 0;
  bool operator==(const Subtree&) const = default;
};

// Returns the largest subtrees that hold ranks of `members` (ascending) only and together hold them all, ascending.
std::vector<Subtree> largest_subtrees(std::span<const uint32_t> members, uint32_t group_size);

// into = left + right. Numbers below the count of inputs are inputs; the others are temporaries, of which the first
// is the result.
struct Add {
  uint32_t left = 0, right = 0, into = 0;
  bool operator==(const Add&) const = default;
};

struct Sum {
  uint32_t inputs = 0, temporaries = 0;
  std::vector<Add> adds;  // none: the result is the only input
};

// Returns how the sums of `parts`, ascending subtrees that together are `whole`, make the sum of `whole`.
Sum plan_sum(std::span<const Subtree> parts, const Subtree& whole);

// The upper half of an fp32 number. Two are added in fp32, and each sum is rounded, to nearest even.
struct Bf16 {
  uint16_t bits;
};

// Carries it out for `count` elements, fp32, fp64 or Bf16. `out` may be one of the inputs; else they do not overlap.
template <typename T>
void run_sum(const Sum& sum, std::span<const T* const> inputs, T* out, uint64_t count);

}  // namespace shardrun::common

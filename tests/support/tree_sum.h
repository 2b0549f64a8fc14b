// tree_sum: the sum of one number of each rank, in the order that docs/decisions/0070 gives to every sum: that of the
// ranks b·2^k … (b+1)·2^k - 1 is that of their lower half plus that of their upper half, as far as there are such ranks.
//
// Thread rule: a pure function.
#pragma once

namespace shardrun::tests {

// `number(rank)` is what a rank has; begin is 0, and span a power of two that is no less than size.
template <typename Number>
auto tree_sum(int begin, int span, int size, const Number& number) -> decltype(number(0)) {
  if (span == 1) return number(begin);
  const auto lower = tree_sum(begin, span / 2, size, number);
  if (begin + span / 2 >= size) return lower;
  return lower + tree_sum(begin + span / 2, span / 2, size, number);
}

template <typename Number>
auto tree_sum(int size, const Number& number) -> decltype(number(0)) {
  int span = 1;
  while (span < size) span *= 2;
  return tree_sum(0, span, size, number);
}

}  // namespace shardrun::tests

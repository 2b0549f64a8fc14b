#include "plugins/common/sum_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace shardrun::common {
namespace {

constexpr uint32_t kMostTemporaries = 33;  // levels of a tree of 2^32 ranks, and one
constexpr uint64_t kTileBytes = 2048;      // the temporaries of a tile stay in the first-level cache

class Cover {
 public:
  Cover(std::span<const uint32_t> members, uint32_t group_size) : members_(members), size_(group_size) {}

  void visit(uint32_t begin, uint64_t span) {
    if (begin >= size_) return;
    const auto end = static_cast<uint32_t>(std::min<uint64_t>(begin + span, size_));
    const auto first = std::lower_bound(members_.begin(), members_.end(), begin);
    const auto last = std::lower_bound(first, members_.end(), end);
    if (first == last) return;
    if (last - first == static_cast<std::ptrdiff_t>(end - begin)) {
      found.push_back({begin, end});
      return;
    }
    visit(begin, span / 2);
    visit(static_cast<uint32_t>(begin + span / 2), span / 2);
  }

  std::vector<Subtree> found;

 private:
  std::span<const uint32_t> members_;
  uint32_t size_;
};

class Planner {
 public:
  Planner(std::span<const Subtree> parts, uint32_t end, Sum* sum) : parts_(parts), end_(end), sum_(sum) {}

  // Returns the number of the input or temporary that holds the sum; `temporary` and later ones are free.
  uint32_t combine(uint32_t begin, uint64_t span, uint32_t temporary) {
    const auto end = static_cast<uint32_t>(std::min<uint64_t>(begin + span, end_));
    if (parts_[next_] == Subtree{begin, end}) return next_++;
    const auto middle = static_cast<uint32_t>(begin + span / 2);
    const uint32_t left = combine(begin, span / 2, temporary);
    if (middle >= end) return left;
    const uint32_t right = combine(middle, span / 2, temporary + (left >= sum_->inputs ? 1 : 0));
    const uint32_t into = sum_->inputs + temporary;
    sum_->adds.push_back({left, right, into});
    sum_->temporaries = std::max(sum_->temporaries, temporary + 1);
    return into;
  }

 private:
  std::span<const Subtree> parts_;
  uint32_t end_, next_ = 0;
  Sum* sum_;
};

float widened(Bf16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}

// Without branches, so that loops of it become vectors.
Bf16 rounded(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t nearest = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40U;
  return {static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : nearest)};
}

void add(const Bf16* left, const Bf16* right, Bf16* into, uint64_t count) {
#pragma GCC ivdep
  for (uint64_t i = 0; i < count; ++i) into[i] = rounded(widened(left[i]) + widened(right[i]));
}

template <typename T>
void add(const T* left, const T* right, T* into, uint64_t count) {
  // `into` may be `left` or `right`: each element is read before it is written.
#pragma GCC ivdep
  for (uint64_t i = 0; i < count; ++i) into[i] = left[i] + right[i];
}

}  // namespace

std::vector<Subtree> largest_subtrees(std::span<const uint32_t> members, uint32_t group_size) {
  Cover cover(members, group_size);
  cover.visit(0, std::bit_ceil(uint64_t{group_size}));
  return std::move(cover.found);
}

Sum plan_sum(std::span<const Subtree> parts, const Subtree& whole) {
  Sum sum;
  sum.inputs = static_cast<uint32_t>(parts.size());
  Planner(parts, whole.end, &sum).combine(whole.begin, std::bit_ceil(uint64_t{whole.end - whole.begin}), 0);
  return sum;
}

template <typename T>
void run_sum(const Sum& sum, std::span<const T* const> inputs, T* out, uint64_t count) {
  if (sum.adds.empty()) {
    if (inputs[0] != out) std::memcpy(out, inputs[0], count * sizeof(T));
    return;
  }
  constexpr uint64_t kTile = kTileBytes / sizeof(T);
  alignas(64) std::array<std::array<T, kTile>, kMostTemporaries> temporaries;
  for (uint64_t done = 0; done < count; done += kTile) {
    const uint64_t length = std::min(kTile, count - done);
    const auto operand = [&](uint32_t number) {
      return number < sum.inputs ? inputs[number] + done : temporaries[number - sum.inputs].data();
    };
    for (size_t i = 0; i < sum.adds.size(); ++i) {
      const Add& step = sum.adds[i];
      T* into = i + 1 == sum.adds.size() ? out + done : temporaries[step.into - sum.inputs].data();
      add(operand(step.left), operand(step.right), into, length);
    }
  }
}

template void run_sum(const Sum&, std::span<const float* const>, float*, uint64_t);
template void run_sum(const Sum&, std::span<const double* const>, double*, uint64_t);
template void run_sum(const Sum&, std::span<const Bf16* const>, Bf16*, uint64_t);

}  // namespace shardrun::common

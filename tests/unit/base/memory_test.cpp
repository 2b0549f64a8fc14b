#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/base/memory.h"

using namespace shardrun::base;

TEST_CASE("copy_past_caches: any length at any address is copied and nothing beside it is touched") {
  std::vector<float> from(80), to(160);
  std::iota(from.begin(), from.end(), 1.0F);
  for (size_t source = 0; source < 3; ++source) {
    for (size_t target = 0; target < 17; ++target) {
      for (size_t length = 0; length <= 70; ++length) {
        std::fill(to.begin(), to.end(), -1.0F);
        const auto part = std::span(from).subspan(source, length);
        copy_past_caches(part, to.data() + 1 + target);
        const auto begin = to.begin() + 1 + static_cast<std::ptrdiff_t>(target);
        const auto end = begin + static_cast<std::ptrdiff_t>(length);
        const bool copied = std::equal(part.begin(), part.end(), begin);
        const auto outside = std::count(to.begin(), begin, -1.0F) + std::count(end, to.end(), -1.0F);
        REQUIRE(copied);
        REQUIRE(outside == static_cast<std::ptrdiff_t>(to.size() - length));
      }
    }
  }
}

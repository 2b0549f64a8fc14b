#include "plugins/ofi/copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

using shardrun::ofi::copy_bytes;
using shardrun::ofi::copy_past_caches;

TEST_CASE(
    "copies: bytes come whole and leave their neighbours alone, however the two places lie in their pages") {
  constexpr size_t kPage = 4096, kRoom = 4 * kPage;
  std::vector<std::byte> from(kRoom), to(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256 + 1);

  for (const size_t bytes : {0, 1, 63, 64, 65, 200, 4096, 4159}) {
    for (const size_t source : {0, 16, 63, 2048}) {
      for (const size_t target : {0, 15, 48, 64, 1000, 2047, 2048, 2100, 4095}) {
        std::vector<std::byte> expected(kRoom);
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(kPage + target));
        CAPTURE(bytes);
        CAPTURE(source);
        CAPTURE(target);
        for (const auto copy : {copy_bytes, copy_past_caches}) {
          std::fill(to.begin(), to.end(), std::byte{0});
          copy(to.data() + kPage + target, from.data() + source, bytes);
          REQUIRE(to == expected);
        }
      }
    }
  }
}

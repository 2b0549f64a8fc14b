#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "runtime/base/io.h"

using namespace shardrun::base;

TEST_CASE("crc32c: the check value of the polynomial's catalogue") {
  const std::string text = "123456789";

  CHECK(crc32c(std::as_bytes(std::span(text))) == 0xe3069283U);
  CHECK(crc32c({}) == 0U);
}

TEST_CASE("crc32c: any length at any address is the same whether taken at once or byte by byte") {
  std::vector<uint8_t> data(64);
  std::iota(data.begin(), data.end(), 200);
  const auto bytes = std::as_bytes(std::span(data));
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t length = 0; length <= 40; ++length) {
      const auto part = bytes.subspan(begin, length);
      uint32_t one_by_one = 7;
      for (size_t i = 0; i < length; ++i) one_by_one = crc32c(part.subspan(i, 1), one_by_one);
      CHECK(crc32c(part, 7) == one_by_one);
    }
  }
}

// What the GPU's kernels decide, run on the CPU: rounding, fp8, which tiles attention visits, the table of products.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/trainer/kernels/cuda/product_table.h"
#include "runtime/trainer/kernels/cuda/rounding.h"
#include "runtime/trainer/kernels/cuda/tiles.h"
#include "runtime/trainer/kernels/fp8.h"

using namespace shardrun;
using namespace shardrun::kernels::cuda;
using namespace shardrun::kernels;
using kernels::Bf16;

TEST_CASE("rounding: to nearest gives the CPU's bits, from subnormals to infinity, for halves and NaN") {
  std::mt19937 generator(1);
  std::vector<float> values = {0.0F,
                               -0.0F,
                               1.00390625F,
                               1.01171875F,
                               INFINITY,
                               -INFINITY,
                               std::nanf(""),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min()};
  for (int i = 0; i < 100000; ++i) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(generator())));
  std::vector<Bf16> expected(values.size());
  kernels::fp32_to_bf16(values, std::span(expected));
  for (size_t i = 0; i < values.size(); ++i) {
    CAPTURE(values[i]);
    if (std::isnan(values[i])) {
      REQUIRE(std::isnan(widened(nearest(values[i]))));
    } else {
      REQUIRE_EQ(nearest(values[i]).bits, expected[i].bits);
    }
  }
}

namespace {

// Returns documents of random lengths, or one.
std::vector<int32_t> random_begins(int32_t T, std::mt19937& generator) {
  std::vector<int32_t> begins(static_cast<size_t>(T));
  int32_t begin = 0;
  for (int32_t t = 0; t < T; ++t) {
    if (t > 0 && generator() % 40 == 0) begin = t;
    begins[static_cast<size_t>(t)] = begin;
  }
  return begins;
}

// Checks every tile pair of one sequence against single tokens.
void check_tiles(const Sight& sight, int32_t rows, int32_t columns) {
  for (int32_t t0 = 0; t0 < sight.T; t0 += rows) {
    const TileRange keys = key_tiles(sight, t0, rows, columns);
    for (int32_t u0 = 0; u0 < sight.T; u0 += columns) {
      int32_t visible = 0, all = 0;
      for (int32_t t = t0; t < smaller(t0 + rows, sight.T); ++t) {
        for (int32_t u = u0; u < u0 + columns; ++u, ++all) visible += sight.sees(t, u) ? 1 : 0;
      }
      const Seen answer = seen(sight, t0, rows, u0, columns);
      const TileRange queries = query_tiles(sight, u0, rows);
      CAPTURE(t0);
      CAPTURE(u0);
      CAPTURE(visible);
      if (answer == Seen::kNothing) REQUIRE_EQ(visible, 0);
      REQUIRE_EQ(answer == Seen::kAll, visible == all);
      if (visible > 0) {
        REQUIRE_LE(keys.first, u0 / columns);
        REQUIRE_GT(keys.last, u0 / columns);
        REQUIRE_LE(queries.first, t0 / rows);
        REQUIRE_GT(queries.last, t0 / rows);
      }
    }
  }
}

}  // namespace

TEST_CASE("attention tiles: none that is seen is left out, and one without a mask needs none") {
  std::mt19937 generator(3);
  for (const int32_t T : {1, 63, 64, 65, 200, 257}) {
    for (int variant = 0; variant < 24; ++variant) {
      const std::vector<int32_t> begins = random_begins(T, generator);
      const bool is_causal = variant % 2 == 0, has_begins = variant / 2 % 2 == 0,
                 is_padded = variant / 4 % 2 == 0;
      const Sight sight{T, is_padded ? static_cast<int32_t>(generator() % static_cast<uint32_t>(T + 1)) : T,
                        has_begins ? begins.data() : nullptr, is_causal};
      CAPTURE(T);
      CAPTURE(variant);
      check_tiles(sight, 64, 64);
      check_tiles(sight, 32, 64);
      check_tiles(sight, 1, 128);
      check_tiles(sight, 128, 1);
    }
  }
}

TEST_CASE("attention tiles: a causal sequence visits half of the tiles and masks the diagonal only") {
  const Sight sight{1024, 1024, nullptr, true};
  int nothing = 0, some = 0, all = 0;
  for (int32_t t0 = 0; t0 < 1024; t0 += 64) {
    for (int32_t u0 = 0; u0 < 1024; u0 += 64) {
      const Seen answer = seen(sight, t0, 64, u0, 64);
      ++(answer == Seen::kNothing ? nothing : answer == Seen::kSome ? some : all);
    }
  }
  CHECK_EQ(nothing, 120);
  CHECK_EQ(some, 16);
  CHECK_EQ(all, 120);
}

TEST_CASE("table of products: what is written is read, and equal tables have equal texts") {
  ProductTable table("120000 on a GPU"), other("120000 on a GPU");
  const ProductAlgorithm algorithm{{0, 1, 2, 0xfedcba9876543210ULL, 4, 5, 6, ~0ULL}};
  table.set("bf16>bf16 TN 1 2 3", algorithm);
  table.set("a", {});
  other.set("a", {});
  other.set("bf16>bf16 TN 1 2 3", algorithm);
  CHECK_EQ(table.text(), other.text());

  ProductTable read("120000 on a GPU");
  REQUIRE(read.load(table.text()));
  CHECK_EQ(read.size(), 2);
  REQUIRE(read.find("bf16>bf16 TN 1 2 3") != nullptr);
  CHECK(*read.find("bf16>bf16 TN 1 2 3") == algorithm);
  CHECK(read.find("b") == nullptr);
}

TEST_CASE(
    "table of products: another GPU's is refused and a damaged one is corrupt, and neither changes "
    "anything") {
  ProductTable table("120000 on a GPU");
  table.set("a", {{1, 2, 3, 4, 5, 6, 7, 8}});
  const std::string good = table.text();

  ProductTable other("120100 on a GPU");
  const auto refused = other.load(good);
  REQUIRE_FALSE(refused);
  CHECK_EQ(refused.error().code(), base::Code::kRefused);
  CHECK_NE(refused.error().message().find("120000 on a GPU"), std::string::npos);

  ProductTable same("120000 on a GPU");
  for (const std::string& text :
       {std::string(), std::string("shardrun products 2\n"), good + "b = 1 2\n",
        good + "b = 1 2 3 4 5 6 7 x\n", good + "b = 1 2 3 4 5 6 7 8 9\n", good + "b\n"}) {
    CAPTURE(text);
    const auto loaded = same.load(text);
    REQUIRE_FALSE(loaded);
    CHECK_EQ(loaded.error().code(), base::Code::kCorrupt);
  }
  CHECK_EQ(same.size(), 0);
}

TEST_CASE("fp8: every byte is the number that its sign, exponent and mantissa say") {
  const auto check = [](Fp8Format format, int mantissa_bits, int bias) {
    for (int byte = 0; byte < 256; ++byte) {
      CAPTURE(byte);
      const int exponent = (byte & 0x7f) >> mantissa_bits, mantissa = byte & ((1 << mantissa_bits) - 1);
      const float got = widened(format, static_cast<uint8_t>(byte));
      const bool is_special = format == Fp8Format::kE4m3 ? (byte & 0x7f) == 0x7f : exponent == 31;
      if (is_special) {
        CHECK_EQ(std::isnan(got), format == Fp8Format::kE4m3 || mantissa != 0);
        CHECK_FALSE(std::isfinite(got));
      } else {
        const double fraction = (exponent == 0 ? 0.0 : 1.0) + mantissa / std::ldexp(1.0, mantissa_bits);
        CHECK_EQ(got, (byte >= 128 ? -1.0 : 1.0) * std::ldexp(fraction, std::max(exponent, 1) - bias));
      }
      CHECK_EQ(std::signbit(got), byte >= 128);
    }
  };
  check(Fp8Format::kE4m3, 3, 7);
  check(Fp8Format::kE5m2, 2, 15);
  CHECK_EQ(widened(Fp8Format::kE4m3, 0x7e), largest_of(Fp8Format::kE4m3));
  CHECK_EQ(widened(Fp8Format::kE5m2, 0x7b), largest_of(Fp8Format::kE5m2));
}

TEST_CASE("fp8: the scale brings the largest value to the format's, and stays where that says nothing") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK_EQ(scale_for(Fp8Format::kE4m3, 7.0F, 3.0F), 64.0F);
  CHECK_EQ(scale_for(Fp8Format::kE5m2, 57344.0F, 3.0F), 1.0F);
  for (const float no_use : {0.0F, kInfinity, std::numeric_limits<float>::quiet_NaN()})
    CHECK_EQ(scale_for(Fp8Format::kE4m3, no_use, 3.0F), 3.0F);
  CHECK_EQ(scale_for(Fp8Format::kE4m3, 1e-40F, 3.0F), std::numeric_limits<float>::max());
}

TEST_CASE("fp8: the scale of the next step follows the largest value of the last sixteen steps") {
  Fp8History history;
  const auto expected = [](float largest) { return 448.0F / largest; };
  history.note(Fp8Format::kE4m3, 1000.0F);
  CHECK_EQ(history.scale, expected(1000.0F));
  for (int step = 1; step < kFp8History; ++step) {
    history.note(Fp8Format::kE4m3, static_cast<float>(step));
    CHECK_EQ(history.scale, expected(1000.0F));
  }
  CHECK_EQ(history.largest.front(), 15.0F);
  CHECK_EQ(history.largest.back(), 1000.0F);
  history.note(Fp8Format::kE4m3, 2.0F);  // the thousand is seventeen steps old
  CHECK_EQ(history.scale, expected(15.0F));
}

TEST_CASE("fp8: zeros keep the scale, infinities and NaN are not kept") {
  Fp8History history;
  history.note(Fp8Format::kE5m2, 0.0F);
  CHECK_EQ(history.scale, 0.0F);  // there still is none
  history.note(Fp8Format::kE5m2, 2.0F);
  const Fp8History before = history;
  for (const float no_use :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    history.note(Fp8Format::kE5m2, no_use);
    CHECK_EQ(history, before);
  }
  for (int step = 0; step < kFp8History; ++step) history.note(Fp8Format::kE5m2, 0.0F);
  CHECK_EQ(history.scale, 28672.0F);
}

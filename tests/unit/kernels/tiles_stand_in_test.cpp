// AMX's loop of kernels/cpu/tile_products on a stand-in of AMX's instructions in plain C++, for few machines that build this
// have them: the source is compiled a second time here, with the instructions' names meaning functions of this file. It shows
// that rows, strides, tiles and packed words fit together as Intel's manual defines the instructions (SDM volume 2: LDTILECFG,
// TILELOADD, TDPBF16PS), and nothing about a real AMX's rounding or speed.
#include <doctest/doctest.h>

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace stand_in {

struct Tile {
  std::array<std::array<uint32_t, 16>, 16> words{};  // rows of 64 bytes
};
struct Unit {
  std::array<Tile, 8> tiles;
  bool is_configured = false;
};
Unit& amx() {
  static Unit unit;
  return unit;
}

// Takes the shapes that our loop uses and no others.
void load_configuration(const void* shapes) {
  std::array<uint8_t, 64> bytes{};
  std::memcpy(bytes.data(), shapes, bytes.size());
  REQUIRE(bytes[0] == 1);  // palette
  for (size_t tile = 0; tile < 8; ++tile) {
    REQUIRE((bytes[16 + 2 * tile] | bytes[17 + 2 * tile] << 8) == 64);  // bytes a row
    REQUIRE(bytes[48 + tile] == 16);                                    // rows
  }
  amx().is_configured = true;
}
void release() {
  amx().is_configured = false;
}
void zero(int tile) {
  REQUIRE(amx().is_configured);
  amx().tiles[tile] = {};
}
void load(int tile, const void* from, int64_t stride) {
  REQUIRE(amx().is_configured);
  for (int64_t r = 0; r < 16; ++r)
    std::memcpy(amx().tiles[tile].words[r].data(), static_cast<const char*>(from) + r * stride, 64);
}
void store(int tile, void* to, int64_t stride) {
  for (int64_t r = 0; r < 16; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, amx().tiles[tile].words[r].data(), 64);
}
float low(uint32_t pair) {
  return std::bit_cast<float>(pair << 16);
}
float high(uint32_t pair) {
  return std::bit_cast<float>(pair & 0xffff0000U);
}
// sums[m][n] += a[m][2k]·b[k][2n] + a[m][2k + 1]·b[k][2n + 1]
void multiply_pairs(int sums, int a, int b) {
  auto& tiles = amx().tiles;
  for (size_t m = 0; m < 16; ++m) {
    for (size_t k = 0; k < 16; ++k) {
      for (size_t n = 0; n < 16; ++n) {
        const uint32_t x = tiles[a].words[m][k], y = tiles[b].words[k][n];
        const float sum = std::bit_cast<float>(tiles[sums].words[m][n]) + low(x) * low(y) + high(x) * high(y);
        tiles[sums].words[m][n] = std::bit_cast<uint32_t>(sum);
      }
    }
  }
}

}  // namespace stand_in

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig stand_in::load_configuration
#define _tile_release stand_in::release
#define _tile_zero stand_in::zero
#define _tile_loadd stand_in::load
#define _tile_stored stand_in::store
#define _tile_dpbf16ps stand_in::multiply_pairs
#define tiles tiles_on_stand_in
#include "runtime/trainer/kernels/cpu/tile_products.cpp"

#include "runtime/trainer/kernels/backend.h"

namespace shardrun::kernels::tiles {

Unit unit() {
  return Unit::kAmx;
}

}  // namespace shardrun::kernels::tiles

using namespace shardrun;
using kernels::Bf16;

namespace {

std::vector<Bf16> random_bf16(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(generator);
  std::vector<Bf16> out(values.size());
  kernels::fp32_to_bf16(values, std::span(out));
  return out;
}
double wide_bf16(Bf16 value) {
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16));
}

}  // namespace

TEST_CASE(
    "AMX's loop on a stand-in of its instructions: products of several tiles, between rows of something "
    "else") {
  if (!__builtin_cpu_supports("avx512bf16")) {  // which packing is compiled for
    MESSAGE("skipped: this CPU has no AVX-512 with bf16");
    return;
  }
  constexpr int64_t kRows = 64, kInner = 96, kColumns = 160, kBeside = 5;
  const int64_t lda = kInner + kBeside, ldb = kColumns + kBeside, ldc = kColumns + kBeside;
  const auto a = random_bf16(kRows * lda, 1), b = random_bf16(kInner * kColumns, 2);
  std::vector<uint32_t> packed(kInner / 2 * kColumns), spread(kInner / 2 * ldb);
  kernels::tiles::pack(packed.data(), b.data(), kInner, kColumns, kColumns);
  for (int64_t p = 0; p < kInner / 2; ++p)
    std::copy_n(packed.data() + p * kColumns, kColumns, spread.data() + p * ldb);

  for (const bool accumulate : {false, true}) {
    const auto before = [](int64_t m, int64_t n) { return static_cast<float>((31 * m + n) % 17); };
    std::vector<float> c(kRows * ldc);
    for (int64_t i = 0; i < kRows * ldc; ++i) c[i] = before(i / ldc, i % ldc);
    {
      const kernels::tiles::TileSession session;
      kernels::tiles::multiply(c.data(), ldc, a.data(), lda, spread.data(), ldb, kRows, kInner, kColumns,
                               accumulate);
    }
    CHECK_FALSE(stand_in::amx().is_configured);

    double largest = 0.0;
    for (int64_t m = 0; m < kRows; ++m) {
      for (int64_t n = 0; n < ldc; ++n) {
        double sum = n >= kColumns || accumulate ? static_cast<double>(before(m, n))
                                                 : 0.0;  // nothing is written beside a row
        for (int64_t k = 0; k < kInner && n < kColumns; ++k)
          sum += wide_bf16(a[m * lda + k]) * wide_bf16(b[k * kColumns + n]);
        largest = std::max(largest, std::abs(static_cast<double>(c[m * ldc + n]) - sum));
      }
    }
    CHECK_LT(largest, 2e-5);
  }
}

TEST_CASE("AMX's loop on a stand-in of its instructions: a strip and a group, step by step") {
  constexpr int64_t kSteps = 3, kRows = 32, kColumns = 16, kDepth = 32;
  const auto strip = random_bf16(kSteps * kRows * kDepth, 3),
             group = random_bf16(kSteps * kDepth * kColumns, 4);
  std::vector<float> c(kRows * kColumns, 1.0F);
  {
    const kernels::tiles::TileSession session;
    kernels::tiles::multiply_strip(c.data(), reinterpret_cast<const uint32_t*>(strip.data()),
                                   reinterpret_cast<const uint32_t*>(group.data()), kSteps,
                                   /*accumulate=*/true);
  }
  double largest = 0.0;
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t n = 0; n < kColumns; ++n) {
      double sum = 1.0;
      for (int64_t k = 0; k < kSteps * kDepth; ++k) {
        const int64_t step = k / kDepth, at = k % kDepth;  // a word has two of a depth
        sum += wide_bf16(strip[(step * kRows + m) * kDepth + at]) *
               wide_bf16(group[(step * kDepth / 2 + at / 2) * kColumns * 2 + 2 * n + at % 2]);
      }
      largest = std::max(largest, std::abs(static_cast<double>(c[m * kColumns + n]) - sum));
    }
  }
  CHECK_LT(largest, 2e-5);
}

#endif

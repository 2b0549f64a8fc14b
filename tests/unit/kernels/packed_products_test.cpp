// Tests products with packed operands against plain sums in fp64, on machines that have the instructions, whoever made them.
#include "runtime/trainer/kernels/cpu/packed_products.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/plan/workspace.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/cpu/tile_products.h"
#include "runtime/trainer/kernels/cpu/tiled_products.h"

using namespace shardrun;
using kernels::Bf16;
using kernels::DType;
using plan::CpuProducts;
using plan::Product;

namespace {

template <typename T>
constexpr DType kOperands = std::is_same_v<T, float> ? DType::kFp32 : DType::kBf16;

std::vector<float> as(const std::vector<float>& values, float) {
  return values;
}
std::vector<Bf16> as(const std::vector<float>& values, Bf16) {
  std::vector<Bf16> out(values.size());
  kernels::fp32_to_bf16(values, std::span(out));
  return out;
}
double wide(float value) {
  return static_cast<double>(value);
}
double wide(Bf16 value) {
  float out = 0.0F;
  kernels::bf16_to_fp32({&value, 1}, {&out, 1});
  return static_cast<double>(out);
}

template <typename T>
std::vector<T> random_values(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(generator);
  return as(values, T());
}

// A result that begins `behind` elements after a cache line, so that gradients are streamed or not.
template <typename C, typename T>
struct PackedCase {
  Product p;
  std::vector<T> a, b, bias;
  std::vector<C> before;
  int64_t behind = 0;

  explicit PackedCase(const Product& product, int64_t elements_behind = 0)
      : p(product),
        a(random_values<T>(p.M * p.K, 1)),
        b(random_values<T>(p.K * p.N, 2)),
        bias(random_values<T>(p.N, 3)),
        before(random_values<C>(p.M * p.N, 4)),
        behind(elements_behind) {}

  std::vector<C> multiplied(CpuProducts how, int threads) const {
    auto memory = base::Memory::create(static_cast<int64_t>(before.size() + 64) * int64_t{sizeof(C)});
    auto scratch = base::Memory::create(plan::packed_bytes(how, p, kOperands<T>, threads));
    REQUIRE(memory);
    REQUIRE(scratch);
    C* const c = reinterpret_cast<C*>(memory->data()) + behind;
    std::memcpy(static_cast<void*>(c), before.data(), before.size() * sizeof(C));
    const T* const added = p.bias ? bias.data() : nullptr;
    if constexpr (std::is_same_v<T, Bf16>) {
      if (how == CpuProducts::kTiled) {
        kernels::packed::multiply_tiled<C>(c, a.data(), b.data(), added, p, scratch->data(), threads);
        return {c, c + before.size()};
      }
    }
    kernels::packed::multiply<C, T>(c, a.data(), b.data(), added, p, scratch->data(), threads);
    return {c, c + before.size()};
  }

  // The largest distance from sums in fp64.
  double distance(const std::vector<C>& c) const {
    double largest = 0.0;
    for (int64_t m = 0; m < p.M; ++m) {
      for (int64_t n = 0; n < p.N; ++n) {
        double sum = p.bias ? wide(bias[n]) : 0.0;
        if (p.accumulate) sum += wide(before[m * p.N + n]);
        for (int64_t k = 0; k < p.K; ++k)
          sum += wide(a[p.a_transposed ? k * p.M + m : m * p.K + k]) *
                 wide(b[p.b_transposed ? n * p.K + k : k * p.N + n]);
        largest =
            std::max(largest, std::abs(wide(c[m * p.N + n]) - sum) / std::sqrt(static_cast<double>(p.K)));
      }
    }
    return largest;
  }
};

bool has_instructions() {
  if (kernels::tiles::unit() != kernels::tiles::Unit::kNone) return true;
  MESSAGE("skipped: this CPU has no AVX-512 with bf16, or may not use it");
  return false;
}

// Of a sum of so many products of values in [-1, 1]: roundings of its parts, or of the result to bf16.
template <typename C>
double largest_error(int64_t count) {
  const auto terms = static_cast<double>(count);
  return std::is_same_v<C, float> ? 1e-7 * terms : 0.016 * std::sqrt(terms);
}

template <typename C, typename T>
void check(const Product& product) {
  CAPTURE(product.M);
  CAPTURE(product.K);
  CAPTURE(product.N);
  CAPTURE(product.a_transposed);
  CAPTURE(product.b_transposed);
  REQUIRE(plan::can_pack(product, kOperands<T>));
  const PackedCase<C, T> each(product);
  std::vector<CpuProducts> ways = {CpuProducts::kPacked};
  if (std::is_same_v<T, Bf16>) ways.push_back(CpuProducts::kTiled);
  for (const CpuProducts how : ways) {
    CAPTURE(static_cast<int>(how));
    const auto c = each.multiplied(how, 1);
    CHECK_LT(each.distance(c), largest_error<C>(product.K));
    for (const int threads : {2, 5}) {
      CAPTURE(threads);
      CHECK_EQ(std::memcmp(each.multiplied(how, threads).data(), c.data(), c.size() * sizeof(C)), 0);
    }
  }
}

}  // namespace

TEST_CASE(
    "packed products: every order of operands, sizes that fill no tile, the same bits on any number of "
    "threads") {
  if (!has_instructions()) return;
  for (const bool accumulate : {false, true}) {
    check<float, float>({71, 48, 144, false, true, true, true, accumulate});
    check<float, float>({71, 48, 144, false, false, true, false, accumulate});
    check<float, float>({71, 48, 144, true, false, false, false, accumulate});
    check<float, Bf16>({71, 96, 144, false, true, false, true, accumulate});
    check<float, Bf16>({71, 96, 144, false, false, false, false, accumulate});
    check<float, Bf16>({71, 96, 144, true, false, false, false, accumulate});
    check<Bf16, Bf16>({71, 96, 144, false, true, true, true, accumulate});
    check<Bf16, Bf16>({71, 96, 144, false, false, true, false, accumulate});
  }
}

TEST_CASE(
    "packed products: sums wait where a product is deeper than a panel, and rows are packed block by block") {
  if (!has_instructions()) return;
  check<float, float>({67, 2064, 64, false, true, true, false, false});
  check<float, float>({67, 2064, 64, false, false, true, false, true});
  check<float, float>({200, 4096, 64, true, false, false, false, false});  // blocks of 96 rows
  check<Bf16, Bf16>({67, 2112, 64, false, true, true, true, true});
  check<float, float>({1100, 16, 64, false, false, true, false, false});  // more rows than a block
  check<float, Bf16>({64, 32, 1088, false, true, false, false, false});   // threads share the columns
}

TEST_CASE("packed products: deeper and wider than a panel of tiles, and with more rows than a block") {
  if (!has_instructions()) return;
  check<float, Bf16>({300, 4224, 80, true, false, false, false, false});  // three panels, blocks of 224 rows
  check<float, Bf16>({140, 4224, 144, true, false, false, false, true});
  check<Bf16, Bf16>(
      {530, 2144, 528, false, true, true, true, false});  // two panels of depth, three of columns
  check<float, Bf16>({70, 160, 528, false, false, false, false, true});
}

TEST_CASE("packed products: a gradient that begins beside a cache line is not streamed, and is the same") {
  if (!has_instructions()) return;
  const Product gradient{77, 64, 80, true, false, false, false, false};
  const PackedCase<float, Bf16> on_line(gradient), beside(gradient, 3);
  for (const auto how : {CpuProducts::kPacked, CpuProducts::kTiled})
    CHECK(on_line.multiplied(how, 2) == beside.multiplied(how, 2));
}

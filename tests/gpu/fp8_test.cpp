#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "tests/gpu/harness.h"
#include "tests/support/reference_ops.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;
namespace reference = kernels::reference;
using kernels::Fp8Format;
using kernels::Fp8Matrix;
using kernels::Fp8Scale;
using kernels::Fp8Scaling;

namespace {

using Bytes = std::vector<uint8_t>;

// Returns the nearest of all numbers of the format, the even one of two, found by looking at each.
uint8_t nearest_fp8(Fp8Format format, float value) {
  if (std::isnan(value)) return 0x7f;
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  uint8_t best = 0;
  float distance = std::numeric_limits<float>::infinity();
  for (int bits = 0; bits < 0x80; ++bits) {
    const float candidate = kernels::widened(format, static_cast<uint8_t>(bits));
    if (!std::isfinite(candidate)) continue;
    const float apart = std::fabs(candidate - std::min(std::fabs(value), kernels::largest_of(format)));
    if (apart < distance || (apart == distance && bits % 2 == 0)) {
      distance = apart;
      best = static_cast<uint8_t>(bits);
    }
  }
  return best | sign;
}

Bytes quantized(Fp8Format format, const Values& values, float scale) {
  Bytes bytes;
  for (const float value : values) bytes.push_back(nearest_fp8(format, value * scale));
  return bytes;
}
template <typename Element>
std::vector<Element> transposed(const std::vector<Element>& values, int64_t rows, int64_t columns) {
  std::vector<Element> out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c)
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
  }
  return out;
}
float largest_magnitude(const Values& values) {
  float largest = 0.0F;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Returns Fp8Scaling as the numbers that it is.
Values numbers_of(float scale, float largest) {
  return {scale, largest};
}
Fp8Scaling* scaling_at(float* numbers) {
  static_assert(sizeof(Fp8Scaling) == 2 * sizeof(float));
  return reinterpret_cast<Fp8Scaling*>(numbers);
}

const char* name_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? "e4m3" : "e5m2";
}

constexpr std::array<std::array<int64_t, 2>, 9> kMatrices = {
    {{1, 1}, {0, 8}, {8, 0}, {3, 5}, {64, 64}, {65, 127}, {128, 192}, {68, 4}, {200, 96}}};

// A quantized matrix and what it says.
struct Quantized {
  Bytes bytes;
  Values values;
  float inverse;
};
Quantized random_quantized(Fp8Format format, int64_t count, uint32_t seed) {
  Quantized made{{}, random_values(count, seed), 0.03125F * static_cast<float>(seed)};
  made.bytes = quantized(format, made.values, 1.0F / made.inverse);
  for (size_t i = 0; i < made.bytes.size(); ++i)
    made.values[i] = kernels::widened(format, made.bytes[i]) * made.inverse;
  return made;
}
Fp8Matrix on_gpu(Run& run, Fp8Format format, const Quantized& matrix, int64_t rows, int64_t columns) {
  return {format, const_cast<uint8_t*>(run.in(matrix.bytes)),
          const_cast<uint8_t*>(run.in(transposed(matrix.bytes, rows, columns))),
          const_cast<float*>(run.in(Values{matrix.inverse}))};
}

// N, C, O: some that fp8 hardware takes, and others.
constexpr std::array<std::array<int64_t, 3>, 7> kShapes = {
    {{16, 16, 16}, {0, 16, 32}, {16, 0, 32}, {1, 3, 5}, {65, 31, 127}, {64, 256, 48}, {160, 96, 272}}};
// Sums of fp8 products keep about 14 bits on Hopper (DeepSeek-V3, section 3.3.2).
constexpr double kSumTolerance = 1e-3;

}  // namespace

TEST_CASE("fp8: a matrix and its transposed become the nearest numbers of the format") {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    for (const auto& [rows, columns] : kMatrices) {
      const int64_t R = rows, C = columns;
      const auto in = as<Bf16>(random_values(R * C, 5, 3.0F));
      const float scale = format == Fp8Format::kE4m3 ? 37.0F : 5000.0F, older = 2.5F;
      const Bytes bytes = quantized(format, back(in), scale);
      const float largest = largest_magnitude(back(in));
      check_op(what("fp8_quantize", kDType<Bf16>, {{"rows", R}, {"columns", C}, {name_of(format), 1}}),
               [&](Run& run) {
                 uint8_t* const values = run.out<uint8_t>(R * C);
                 uint8_t* const turned = run.out<uint8_t>(R * C);
                 float* const inverse = run.out<float>(1);
                 float* const scaling = run.inout(numbers_of(scale, older));
                 fp8().quantize({format, values, turned, inverse}, scaling_at(scaling), run.in(in), R, C,
                                Fp8Scale::kDelayed);
               },
               {{"values", bytes, kExact},
                {"transposed", transposed(bytes, R, C), kExact},
                {"inverse", Values{1.0F / scale}, 1e-7},
                {"scaling", numbers_of(scale, std::max(largest, older)), kExact}});
    }
  }
}

TEST_CASE("fp8: values at the edges of the format are rounded to even, kept small, and cut off") {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto edges = as<Bf16>({0.0F,     -0.0F,     448.0F,   449.0F,   1e30F,     -1e30F,   0x1p-9F,
                               0x1p-10F, 0x1.8p-9F, 0x1p-11F, -17.0F,   0x1.1p-6F, 57344.0F, infinity,
                               61000.0F, 9.5F,      10.5F,    0x1p-16F, 0x1p-17F,  -infinity});
  const Values in = back(edges);
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    check_op(what("fp8_quantize of edges", name_of(format), {}),
             [&](Run& run) {
               uint8_t* const values = run.out<uint8_t>(static_cast<int64_t>(in.size()));
               float* const inverse = run.out<float>(1);
               float* const scaling = run.inout(numbers_of(0.0F, 0.0F));  // as a new one is: its scale is 1
               fp8().quantize({format, values, nullptr, inverse}, scaling_at(scaling), run.in(edges), 4, 5,
                              Fp8Scale::kDelayed);
             },
             {{"values", quantized(format, in, 1.0F), kExact},
              {"inverse", Values{1.0F}, kExact},
              {"scaling", numbers_of(0.0F, infinity), kExact}});
  }
}

TEST_CASE("fp8: without a scale the largest present value decides, and quantizing again is the same") {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    for (const auto& [rows, columns] : kMatrices) {
      const int64_t R = rows, C = columns;
      const auto in = as<Bf16>(random_values(R * C, 6, 0.01F));
      const float largest = largest_magnitude(back(in));
      const float scale = largest > 0.0F ? kernels::largest_of(format) / largest : 1.0F;
      const Bytes bytes = quantized(format, back(in), scale);
      check_op(what("fp8_quantize of a new tensor", kDType<Bf16>,
                    {{"rows", R}, {"columns", C}, {name_of(format), 1}}),
               [&](Run& run) {
                 uint8_t* const values = run.out<uint8_t>(R * C);
                 uint8_t* const turned = run.out<uint8_t>(R * C);
                 float* const inverse = run.out<float>(1);
                 float* const scaling = run.inout(numbers_of(0.0F, 0.0F));
                 const Bf16* const there = run.in(in);
                 fp8().quantize({format, values, nullptr, inverse}, scaling_at(scaling), there, R, C,
                                Fp8Scale::kPresent);
                 fp8().quantize({format, nullptr, turned, inverse}, scaling_at(scaling), there, R, C,
                                Fp8Scale::kDelayed);
               },
               {{"values", bytes, kExact},
                {"transposed", transposed(bytes, R, C), kExact},
                {"inverse", Values{1.0F / scale}, 1e-7},
                {"scaling", numbers_of(scale, largest), 1e-7}});
    }
  }
}

TEST_CASE("fp8: products forward and backward are those of the numbers that the bytes stand for") {
  for (const auto& [n, c, o] : kShapes) {
    const int64_t N = n, C = c, O = o;
    const Quantized x = random_quantized(Fp8Format::kE4m3, N * C, 1),
                    w = random_quantized(Fp8Format::kE4m3, O * C, 2),
                    dy = random_quantized(Fp8Format::kE5m2, N * O, 3);
    const Values dw_before = random_values(O * C, 5);
    Values y(static_cast<size_t>(N * O)), dx(static_cast<size_t>(N * C)), dw(dw_before.size());
    reference::linear_forward(y.data(), x.values.data(), w.values.data(), N, C, O);
    reference::linear_backward_input(dx.data(), dy.values.data(), w.values.data(), N, C, O);
    reference::linear_backward_weight(dw.data(), dy.values.data(), x.values.data(), N, C, O);
    const auto sum_of = [](Values a, const Values& b) {
      for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
      return a;
    };
    check_op(what("fp8_linear", "e4m3, e5m2", {{"N", N}, {"C", C}, {"O", O}}),
             [&](Run& run) {
               Bf16* const y_out = run.out<Bf16>(N * O);
               Bf16* const dx_out = run.out<Bf16>(N * C);
               float* const y_fp32 = run.out<float>(N * O);
               float* const dx_fp32 = run.out<float>(N * C);
               float* const dw_out = run.out<float>(O * C);
               float* const dw_added = run.inout(dw_before);
               const Fp8Matrix x8 = on_gpu(run, Fp8Format::kE4m3, x, N, C),
                               w8 = on_gpu(run, Fp8Format::kE4m3, w, O, C),
                               dy8 = on_gpu(run, Fp8Format::kE5m2, dy, N, O);
               fp8().linear_forward(y_out, x8, w8, N, C, O);
               fp8().linear_forward_fp32(y_fp32, x8, w8, N, C, O);
               fp8().linear_backward_input_fp32(dx_fp32, dy8, w8, N, C, O);
               fp8().linear_backward_input(dx_out, dy8, w8, N, C, O);
               fp8().linear_backward_weight(dw_out, dy8, x8, N, C, O, /*accumulate=*/false);
               fp8().linear_backward_weight(dw_added, dy8, x8, N, C, O,
                                            /*accumulate=*/true);
             },
             {{"y", y, kTolerance<Bf16>},
              {"dx", dx, kTolerance<Bf16>},
              {"y in fp32", y, kSumTolerance},
              {"dx in fp32", dx, kSumTolerance},
              {"dw", dw, kSumTolerance},
              {"dw added", sum_of(dw, dw_before), kSumTolerance}});
  }
}

TEST_CASE("fp8: a layer that is quantized on the GPU is the layer, up to the format's three bits") {
  const int64_t N = 64, C = 128, O = 96;
  const auto x = as<Bf16>(random_values(N * C, 1)), w = as<Bf16>(random_values(O * C, 2, 0.02F));
  Values y(static_cast<size_t>(N * O));
  reference::linear_forward(y.data(), back(x).data(), back(w).data(), N, C, O);
  check_op(
      what("fp8_quantize, fp8_linear_forward", "bf16", {{"N", N}, {"C", C}, {"O", O}}),
      [&](Run& run) {
        Bf16* const out = run.out<Bf16>(N * O);
        const auto quantize = [&](const std::vector<Bf16>& in, int64_t rows) {
          const Fp8Matrix made{Fp8Format::kE4m3, run.inout(Bytes(in.size())), nullptr, run.inout(Values(1))};
          float* const scaling = run.inout(numbers_of(0.0F, 0.0F));
          fp8().quantize(made, scaling_at(scaling), run.in(in), rows, C, Fp8Scale::kPresent);
          return made;
        };
        const Fp8Matrix x8 = quantize(x, N), w8 = quantize(w, O);
        fp8().linear_forward(out, x8, w8, N, C, O);
      },
      {{"y", y, 0.04},
       {"x", quantized(Fp8Format::kE4m3, back(x), 448.0F / largest_magnitude(back(x))), kExact},
       {"inverse of x", Values{largest_magnitude(back(x)) / 448.0F}, 1e-6},
       {"scaling of x", numbers_of(448.0F / largest_magnitude(back(x)), largest_magnitude(back(x))), 1e-6},
       {"w", quantized(Fp8Format::kE4m3, back(w), 448.0F / largest_magnitude(back(w))), kExact},
       {"inverse of w", Values{largest_magnitude(back(w)) / 448.0F}, 1e-6},
       {"scaling of w", numbers_of(448.0F / largest_magnitude(back(w)), largest_magnitude(back(w))), 1e-6}});
}

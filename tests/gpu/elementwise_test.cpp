#include <doctest/doctest.h>

#include <cmath>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "tests/gpu/harness.h"
#include "tests/support/reference_ops.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;
namespace reference = kernels::reference;

namespace {

// These are below, at and above a vector, a block, and what one launch covers in a pass.
constexpr int64_t kCounts[] = {0, 1, 3, 8, 127, 129, 2049, 100003, 3000001};

template <typename T, typename Function>
Values mapped(const std::vector<T>& a, const Function& function) {
  Values out;
  for (const float value : back(a)) out.push_back(static_cast<float>(function(static_cast<double>(value))));
  return out;
}

}  // namespace

TEST_CASE("conversions: fp32 to bf16 and back has the CPU's bits") {
  for (const int64_t count : kCounts) {
    const Values values = random_values(count, 1, 100.0F);
    const auto narrow = as<Bf16>(values);
    check_op(what("from_fp32", "bf16", {{"count", count}}),
             [&](Run& run) { ops<Bf16>().pointwise.from_fp32(run.out<Bf16>(count), run.in(values), count); },
             {{"bf16", back(narrow), kExact}});
    check_op(what("bf16_to_fp32", "bf16", {{"count", count}}),
             [&](Run& run) {
               const auto size = static_cast<size_t>(count);
               optimizer().bf16_to_fp32({run.in(narrow), size}, {run.out<float>(count), size});
             },
             {{"fp32", back(narrow), kExact}});
  }
}

TEST_CASE_TEMPLATE("gelu, tanh, add: forward and backward at every length, in place where that is allowed", T,
                   float, Bf16) {
  for (const int64_t count : kCounts) {
    const auto x = as<T>(random_values(count, 2, 2.0F)), dy = as<T>(random_values(count, 3));
    Values y(x.size()), dx(x.size());
    reference::gelu_forward(y.data(), back(x).data(), count);
    reference::gelu_backward(dx.data(), back(dy).data(), back(x).data(), count);
    check_op(what("gelu", kDType<T>, {{"count", count}}),
             [&](Run& run) {
               T* const out = run.out<T>(count);
               T* const grad = run.inout(dy);
               const T* const in = run.in(x);
               ops<T>().pointwise.gelu_forward(out, in, count);
               ops<T>().pointwise.gelu_backward(grad, grad, in, count);
             },
             {{"y", y, kTolerance<T>}, {"dx", dx, kTolerance<T>}});

    const auto tanh_y = as<T>(mapped(x, [](double value) { return std::tanh(value); }));
    const Values wide_dy = back(dy), wide_y = back(tanh_y);
    Values sum = back(x);
    for (size_t i = 0; i < dx.size(); ++i) {
      dx[i] = static_cast<float>(double{wide_dy[i]} * (1.0 - double{wide_y[i]} * wide_y[i]));
      sum[i] += wide_dy[i];
    }
    check_op(what("tanh, add", kDType<T>, {{"count", count}}),
             [&](Run& run) {
               T* const out = run.inout(x);
               T* const grad = run.inout(dy);
               T* const total = run.inout(x);
               ops<T>().pointwise.tanh_forward(out, out, count);
               ops<T>().pointwise.tanh_backward(grad, grad, run.in(tanh_y), count);
               ops<T>().pointwise.add(total, total, run.in(dy), count);
             },
             {{"y", wide_y, kTolerance<T>}, {"dx", dx, kTolerance<T>}, {"sum", back(as<T>(sum)), kExact}});
  }
}

TEST_CASE("gelu: large arguments of either sign give the argument and zero") {
  const Values x = {-100.0F, -10.0F, -5.0F, -0.0F, 0.0F, 5.0F, 10.0F, 100.0F, -INFINITY};
  Values y(x.size());
  reference::gelu_forward(y.data(), x.data(), 8);
  y.resize(8);
  const Values finite(x.begin(), x.begin() + 8);
  check_op(what("gelu_forward of large arguments", "fp32", {{"count", 8}}),
           [&](Run& run) {
             float* const out = run.out<float>(8);
             ops<float>().pointwise.gelu_forward(out, run.in(finite), 8);
           },
           {{"y", y, kTolerance<float>}});
}

TEST_CASE_TEMPLATE("columns: added to wider rows, and taken from them", T, float, Bf16) {
  for (const auto& [N, C] : {std::pair<int64_t, int64_t>{0, 8}, {1, 1}, {3, 37}, {129, 1000}}) {
    const int64_t rows = N, columns = C, stride = C + 13, column = 5;
    const auto wide = as<T>(random_values(N * stride, 20)), x = as<T>(random_values(N * C, 21));
    const Values before = back(wide), added = back(x);
    Values sums = before, taken(x.size());
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t c = 0; c < C; ++c) {
        const auto at = static_cast<size_t>(n * stride + column + c), to = static_cast<size_t>(n * C + c);
        sums[at] += 0.75F * added[to];
        taken[to] = 0.75F * before[at];
      }
    }
    check_op(what("columns", kDType<T>, {{"N", N}, {"C", C}}),
             [&](Run& run) {
               T* const y = run.inout(wide);
               T* const out = run.out<T>(rows * columns);
               ops<T>().pointwise.take_columns(out, run.in(wide) + column, 0.75F, rows, columns, stride);
               ops<T>().pointwise.add_to_columns(y + column, run.in(x), 0.75F, rows, columns, stride);
             },
             {{"y", sums, kTolerance<T>}, {"taken", taken, kTolerance<T>}});
  }
}

TEST_CASE_TEMPLATE("swiglu: forward and backward", T, float, Bf16) {
  for (const auto& [N, F] :
       {std::pair<int64_t, int64_t>{0, 8}, {1, 1}, {3, 37}, {19, 64}, {129, 1000}, {5, 5632}}) {
    const int64_t rows = N, columns = F;
    const auto gate_up = as<T>(random_values(N * 2 * F, 10, 3.0F)), dy = as<T>(random_values(N * F, 11));
    Values y(dy.size()), dgate_up(gate_up.size());
    reference::swiglu_forward(y.data(), back(gate_up).data(), N, F);
    reference::swiglu_backward(dgate_up.data(), back(dy).data(), back(gate_up).data(), N, F);
    check_op(what("swiglu", kDType<T>, {{"N", N}, {"F", F}}),
             [&](Run& run) {
               T* const out = run.out<T>(rows * columns);
               T* const grad = run.out<T>(rows * 2 * columns);
               const T* const in = run.in(gate_up);
               ops<T>().pointwise.swiglu_forward(out, in, rows, columns);
               ops<T>().pointwise.swiglu_backward(grad, run.in(dy), in, rows, columns);
             },
             {{"y", y, kTolerance<T>}, {"dgate_up", dgate_up, kTolerance<T>}});
  }
}

namespace {

Values angle_table(int64_t T, int64_t D, double theta) {
  Values table(static_cast<size_t>(T * D));
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < D / 2; ++i) {
      const double angle =
          static_cast<double>(t) * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(D));
      table[static_cast<size_t>(t * D + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(t * D + D / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

struct RopeShape {
  int64_t B, T, heads, D, stride;
};

Values turned(const Values& x, const Values& table, const RopeShape& s, double sign) {
  Values out = x;
  for (int64_t n = 0; n < s.B * s.T; ++n) {
    for (int64_t head = 0; head < s.heads; ++head) {
      for (int64_t i = 0; i < s.D / 2; ++i) {
        const auto first = static_cast<size_t>(n * s.stride + head * s.D + i),
                   second = first + static_cast<size_t>(s.D / 2);
        const double cosine = table[static_cast<size_t>(n % s.T * s.D + i)];
        const double sine = sign * table[static_cast<size_t>(n % s.T * s.D + s.D / 2 + i)];
        out[first] = static_cast<float>(x[first] * cosine - x[second] * sine);
        out[second] = static_cast<float>(x[second] * cosine + x[first] * sine);
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("rope: turns the first heads of every row and leaves the others, both ways", T, float,
                   Bf16) {
  for (const RopeShape& s :
       {RopeShape{1, 1, 1, 2, 2}, {2, 9, 3, 8, 30}, {3, 65, 5, 64, 7 * 64}, {1, 200, 8, 128, 10 * 128}}) {
    const Values table = angle_table(s.T, s.D, 10000.0);
    const auto x = as<T>(random_values(s.B * s.T * s.stride, 13));
    check_op(what("rope", kDType<T>,
                  {{"B", s.B}, {"T", s.T}, {"heads", s.heads}, {"D", s.D}, {"stride", s.stride}}),
             [&](Run& run) {
               T* const there = run.inout(x);
               T* const back_again = run.inout(x);
               const float* const angles = run.in(table);
               ops<T>().attention.rope(there, angles, s.B, s.T, s.heads, s.D, s.stride, false);
               ops<T>().attention.rope(back_again, angles, s.B, s.T, s.heads, s.D, s.stride, true);
             },
             {{"x", turned(back(x), table, s, 1.0), kTolerance<T>},
              {"inverse", turned(back(x), table, s, -1.0), kTolerance<T>}});
  }
}

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <utility>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "tests/gpu/harness.h"
#include "tests/support/reference_ops.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;
namespace reference = kernels::reference;

namespace {

constexpr float kEpsilon = 1e-5F;
// Rows are one, fewer and more than a backward pass has blocks. Columns are odd, of one vector, of many for
// each thread, and so many that the sums of one or two weights fill 48 KiB of shared memory, beside which a
// block has a little more.
constexpr std::array<std::array<int64_t, 2>, 10> kShapes = {{{1, 24},
                                                             {3, 17},
                                                             {127, 130},
                                                             {129, 64},
                                                             {67, 2048},
                                                             {1100, 40},
                                                             {5, 4104},
                                                             {2, 6144},
                                                             {2, 12288},
                                                             {3, 16384}}};

struct Moments {
  std::vector<double> mean, rstd, rrms;
};

Moments moments_of(const Values& x, int64_t N, int64_t C) {
  Moments out;
  for (int64_t n = 0; n < N; ++n) {
    double sum = 0.0, squares = 0.0, deviations = 0.0;
    for (int64_t c = 0; c < C; ++c) {
      const double value = x[static_cast<size_t>(n * C + c)];
      sum += value;
      squares += value * value;
    }
    const double mean = sum / static_cast<double>(C);
    for (int64_t c = 0; c < C; ++c) {
      const double value = x[static_cast<size_t>(n * C + c)] - mean;
      deviations += value * value;
    }
    out.mean.push_back(mean);
    out.rstd.push_back(1.0 / std::sqrt(deviations / static_cast<double>(C) + kEpsilon));
    out.rrms.push_back(1.0 / std::sqrt(squares / static_cast<double>(C) + kEpsilon));
  }
  return out;
}

// Returns what x is after a residual was added to it in place.
template <typename T>
std::vector<T> sum_of(const std::vector<T>& x, const std::vector<T>& residual) {
  Values sum = back(x);
  const Values more = back(residual);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  return as<T>(sum);
}

}  // namespace

TEST_CASE_TEMPLATE("rmsnorm: forward, with and without a residual", T, float, Bf16) {
  for (const auto& shape : kShapes) {
    const int64_t N = shape[0], C = shape[1];
    const auto x = as<T>(random_values(N * C, 4)), w = as<T>(random_values(C, 5)),
               more = as<T>(random_values(N * C, 6));
    Values y(x.size());
    reference::rmsnorm_forward(y.data(), back(x).data(), back(w).data(), N, C, kEpsilon);
    check_op(what("rmsnorm_forward", kDType<T>, {{"N", N}, {"C", C}}),
             [&](Run& run) {
               T* const out = run.out<T>(N * C);
               float* const rrms = run.out<float>(N);
               ops<T>().norms.rmsnorm_forward(out, rrms, run.in(x), run.in(w), N, C, kEpsilon);
             },
             {{"y", y, kTolerance<T>}, {"rrms", moments_of(back(x), N, C).rrms, kTolerance<float>}});

    const Values sum = back(sum_of(x, more));
    reference::rmsnorm_forward(y.data(), sum.data(), back(w).data(), N, C, kEpsilon);
    check_op(what("rmsnorm_residual_forward", kDType<T>, {{"N", N}, {"C", C}}),
             [&](Run& run) {
               T* const out = run.out<T>(N * C);
               float* const rrms = run.out<float>(N);
               T* const in = run.inout(x);
               ops<T>().norms.rmsnorm_residual_forward(out, rrms, in, run.in(more), run.in(w), N, C,
                                                       kEpsilon);
             },
             {{"y", y, kTolerance<T>},
              {"rrms", moments_of(sum, N, C).rrms, kTolerance<float>},
              {"x", sum, kExact}});
  }
}

TEST_CASE_TEMPLATE("rmsnorm: backward adds to dx and sums dw over the rows", T, float, Bf16) {
  for (const auto& shape : kShapes) {
    const int64_t N = shape[0], C = shape[1];
    const auto x = as<T>(random_values(N * C, 4)), w = as<T>(random_values(C, 5)),
               dy = as<T>(random_values(N * C, 6));
    const auto before = as<T>(random_values(N * C, 7));
    Values dx = back(before), dw(w.size()), rrms;
    for (const double value : moments_of(back(x), N, C).rrms) rrms.push_back(static_cast<float>(value));
    reference::rmsnorm_backward(dx.data(), dw.data(), back(dy).data(), back(x).data(), back(w).data(), N, C,
                                kEpsilon);
    check_op(what("rmsnorm_backward", kDType<T>, {{"N", N}, {"C", C}}),
             [&](Run& run) {
               T* const got_dx = run.inout(before);
               float* const got_dw = run.out<float>(C);
               ops<T>().norms.rmsnorm_backward(got_dx, got_dw, run.in(dy), run.in(x), run.in(w), run.in(rrms),
                                               N, C);
             },
             {{"dx", dx, kTolerance<T>}, {"dw", dw, kTolerance<float>}});
  }
}

TEST_CASE_TEMPLATE("layernorm: forward, with and without a residual", T, float, Bf16) {
  for (const auto& shape : kShapes) {
    const int64_t N = shape[0], C = shape[1];
    const auto x = as<T>(random_values(N * C, 4)), more = as<T>(random_values(N * C, 5)),
               gamma = as<T>(random_values(C, 6)), beta = as<T>(random_values(C, 7));
    for (const bool has_residual : {false, true}) {
      const Values in = has_residual ? back(sum_of(x, more)) : back(x);
      const Moments moments = moments_of(in, N, C);
      Values y(x.size());
      reference::layernorm_forward(y.data(), in.data(), back(gamma).data(), back(beta).data(), N, C,
                                   kEpsilon);
      check_op(
          what("layernorm_forward", kDType<T>, {{"N", N}, {"C", C}, {"residual", has_residual}}),
          [&](Run& run) {
            T* const out = run.out<T>(N * C);
            float* const mean = run.out<float>(N);
            float* const rstd = run.out<float>(N);
            T* const got_x = run.inout(x);
            ops<T>().norms.layernorm_forward(out, mean, rstd, got_x, has_residual ? run.in(more) : nullptr,
                                             run.in(gamma), run.in(beta), N, C, kEpsilon);
          },
          {{"y", y, kTolerance<T>},
           // Means of numbers around 0 are small: their rounding is that of the numbers, ‖x‖/√C ≈ √C times as large.
           {"mean", moments.mean, kTolerance<float> * std::sqrt(static_cast<double>(C))},
           {"rstd", moments.rstd, kTolerance<float>},
           {"x", in, kExact}});
    }
  }
}

TEST_CASE_TEMPLATE("layernorm: backward, in place, sums dgamma and dbeta over the rows", T, float, Bf16) {
  for (const auto& shape : kShapes) {
    const int64_t N = shape[0], C = shape[1];
    const auto x = as<T>(random_values(N * C, 4)), gamma = as<T>(random_values(C, 6)),
               dy = as<T>(random_values(N * C, 8));
    const Moments moments = moments_of(back(x), N, C);
    const Values mean(moments.mean.begin(), moments.mean.end()),
        rstd(moments.rstd.begin(), moments.rstd.end());
    Values dx(x.size()), dgamma(gamma.size()), dbeta(gamma.size());
    reference::layernorm_backward(dx.data(), dgamma.data(), dbeta.data(), back(dy).data(), back(x).data(),
                                  back(gamma).data(), N, C, kEpsilon);
    check_op(what("layernorm_backward", kDType<T>, {{"N", N}, {"C", C}}),
             [&](Run& run) {
               T* const both = run.inout(dy);
               float* const got_dgamma = run.out<float>(C);
               float* const got_dbeta = run.out<float>(C);
               ops<T>().norms.layernorm_backward(both, got_dgamma, got_dbeta, both, run.in(x), run.in(gamma),
                                                 run.in(mean), run.in(rstd), N, C);
             },
             {{"dx", dx, kTolerance<T>},
              {"dgamma", dgamma, kTolerance<float>},
              {"dbeta", dbeta, kTolerance<float>}});
  }
}

TEST_CASE_TEMPLATE("norms: with a residual they have the bits of an addition and a norm without one", T,
                   float, Bf16) {
  for (const auto& shape : kShapes) {
    const int64_t N = shape[0], C = shape[1];
    const auto x = as<T>(random_values(N * C, 4)), more = as<T>(random_values(N * C, 5)),
               w = as<T>(random_values(C, 6)), beta = as<T>(random_values(C, 7));
    const auto rmsnorm = [&](bool fused) {
      return [&, fused](Run& run) {
        T* const y = run.out<T>(N * C);
        float* const rrms = run.out<float>(N);
        T* const in = run.inout(x);
        const T* const residual = run.in(more);
        const T* const weights = run.in(w);
        if (fused)
          return ops<T>().norms.rmsnorm_residual_forward(y, rrms, in, residual, weights, N, C, kEpsilon);
        ops<T>().pointwise.add(in, in, residual, N * C);
        ops<T>().norms.rmsnorm_forward(y, rrms, in, weights, N, C, kEpsilon);
      };
    };
    check_same_bits(what("rmsnorm_residual_forward", kDType<T>, {{"N", N}, {"C", C}}), rmsnorm(true),
                    rmsnorm(false));
    const auto layernorm = [&](bool fused) {
      return [&, fused](Run& run) {
        T* const y = run.out<T>(N * C);
        float* const mean = run.out<float>(N);
        float* const rstd = run.out<float>(N);
        T* const in = run.inout(x);
        const T* residual = run.in(more);
        if (!fused) ops<T>().pointwise.add(in, in, std::exchange(residual, nullptr), N * C);
        ops<T>().norms.layernorm_forward(y, mean, rstd, in, residual, run.in(w), run.in(beta), N, C,
                                         kEpsilon);
      };
    };
    check_same_bits(what("layernorm_forward", kDType<T>, {{"N", N}, {"C", C}}), layernorm(true),
                    layernorm(false));
  }
}

TEST_CASE("norms: of no rows, the gradients of the weights are zero") {
  const Values w = random_values(20, 1), zeros(20, 0.0F), none;
  check_op(what("rmsnorm_backward", "fp32", {{"N", 0}, {"C", 20}}),
           [&](Run& run) {
             float* const dw = run.out<float>(20);
             ops<float>().norms.rmsnorm_backward(static_cast<float*>(nullptr), dw, run.in(none), run.in(none),
                                                 run.in(w), run.in(none), 0, 20);
           },
           {{"dw", zeros, kExact}});
  check_op(what("layernorm_backward", "fp32", {{"N", 0}, {"C", 20}}),
           [&](Run& run) {
             float* const dgamma = run.out<float>(20);
             float* const dbeta = run.out<float>(20);
             ops<float>().norms.layernorm_backward(static_cast<float*>(nullptr), dgamma, dbeta, run.in(none),
                                                   run.in(none), run.in(w), run.in(none), run.in(none), 0,
                                                   20);
           },
           {{"dgamma", zeros, kExact}, {"dbeta", zeros, kExact}});
}

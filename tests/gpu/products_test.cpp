#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "tests/gpu/harness.h"
#include "tests/support/reference_ops.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;
namespace reference = kernels::reference;

namespace {

// These are N, C, O. An empty inner dimension gives zeros, or the bias.
constexpr std::array<std::array<int64_t, 3>, 11> kShapes = {{{1, 1, 1},
                                                             {0, 8, 8},
                                                             {5, 0, 3},
                                                             {7, 33, 5},
                                                             {65, 31, 127},
                                                             {3, 127, 200},
                                                             {129, 64, 72},
                                                             {1, 256, 128},
                                                             {128, 1024, 256},
                                                             {200, 96, 513},
                                                             {512, 256, 384}}};

// Returns the tolerance of a sum of `terms` products in fp32. Tensor cores cut what they add where the fp32
// units round it.
template <typename T>
double sum_tolerance(int64_t terms) {
  if constexpr (std::is_same_v<T, Bf16>) return 1e-5;
  return kTolerance<float> * std::max(1.0, std::sqrt(static_cast<double>(terms) / 256));
}
// Returns the tolerance of a result in T of such a sum.
template <typename T>
double result_tolerance(int64_t terms) {
  return std::is_same_v<T, Bf16> ? kTolerance<Bf16> : sum_tolerance<T>(terms);
}

Values with_rows_added(Values y, const Values& row) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += row[i % row.size()];
  return y;
}
Values sum_of(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace

TEST_CASE_TEMPLATE("linear: forward, with bias, and with fp32 results", T, float, Bf16) {
  for (const auto& shape : kShapes) {
    const int64_t N = shape[0], C = shape[1], O = shape[2];
    const auto x = as<T>(random_values(N * C, 1)), w = as<T>(random_values(O * C, 2)),
               bias = as<T>(random_values(O, 3));
    Values y(static_cast<size_t>(N * O));
    reference::linear_forward(y.data(), back(x).data(), back(w).data(), N, C, O);
    const Values biased = with_rows_added(y, back(bias));
    check_op(what("linear_forward", kDType<T>, {{"N", N}, {"C", C}, {"O", O}}),
             [&](Run& run) {
               T* const out = run.out<T>(N * O);
               T* const with_bias = run.out<T>(N * O);
               float* const out_fp32 = run.out<float>(N * O);
               float* const with_bias_fp32 = run.out<float>(N * O);
               const T* const in = run.in(x);
               const T* const weights = run.in(w);
               const T* const b = run.in(bias);
               ops<T>().products.linear_forward(out, in, weights, N, C, O);
               ops<T>().products.linear_bias_forward(with_bias, in, weights, b, N, C, O);
               ops<T>().products.linear_forward_fp32(out_fp32, in, weights, N, C, O);
               ops<T>().products.linear_bias_forward_fp32(with_bias_fp32, in, weights, b, N, C, O);
             },
             {{"y", y, result_tolerance<T>(C)},
              {"with bias", biased, result_tolerance<T>(C)},
              {"fp32", y, sum_tolerance<T>(C)},
              {"fp32 with bias", biased, sum_tolerance<T>(C)}});
  }
}

TEST_CASE_TEMPLATE("linear: gradients of the input, written, added and in fp32", T, float, Bf16) {
  for (const auto& shape : kShapes) {
    const int64_t N = shape[0], C = shape[1], O = shape[2];
    const auto dy = as<T>(random_values(N * O, 1)), w = as<T>(random_values(O * C, 2)),
               before = as<T>(random_values(N * C, 3));
    Values dx(static_cast<size_t>(N * C));
    reference::linear_backward_input(dx.data(), back(dy).data(), back(w).data(), N, C, O);
    check_op(what("linear_backward_input", kDType<T>, {{"N", N}, {"C", C}, {"O", O}}),
             [&](Run& run) {
               T* const out = run.out<T>(N * C);
               T* const added = run.inout(before);
               float* const out_fp32 = run.out<float>(N * C);
               const T* const grad = run.in(dy);
               const T* const weights = run.in(w);
               ops<T>().products.linear_backward_input(out, grad, weights, N, C, O);
               ops<T>().products.linear_backward_input(added, grad, weights, N, C, O, /*accumulate=*/true);
               ops<T>().products.linear_backward_input_fp32(out_fp32, grad, weights, N, C, O);
             },
             {{"dx", dx, result_tolerance<T>(O)},
              {"added", sum_of(dx, back(before)), result_tolerance<T>(O)},
              {"fp32", dx, sum_tolerance<T>(O)}});
  }
}

TEST_CASE_TEMPLATE("linear: gradients of weight and bias, written and added", T, float, Bf16) {
  for (const auto& shape : kShapes) {
    const int64_t N = shape[0], C = shape[1], O = shape[2];
    const auto dy = as<T>(random_values(N * O, 1)), x = as<T>(random_values(N * C, 2));
    const Values before = random_values(O * C, 3), bias_before = random_values(O, 4);
    Values dw(before.size()), dbias(bias_before.size());
    reference::linear_backward_weight(dw.data(), back(dy).data(), back(x).data(), N, C, O);
    reference::bias_backward(dbias.data(), back(dy).data(), N, O);
    check_op(what("linear_backward_weight, bias_backward", kDType<T>, {{"N", N}, {"C", C}, {"O", O}}),
             [&](Run& run) {
               float* const out = run.out<float>(O * C);
               float* const added = run.inout(before);
               float* const bias_out = run.out<float>(O);
               float* const bias_added = run.inout(bias_before);
               const T* const grad = run.in(dy);
               const T* const in = run.in(x);
               ops<T>().products.linear_backward_weight(out, grad, in, N, C, O, /*accumulate=*/false);
               ops<T>().products.linear_backward_weight(added, grad, in, N, C, O, /*accumulate=*/true);
               ops<T>().products.bias_backward(bias_out, grad, N, O, /*accumulate=*/false);
               ops<T>().products.bias_backward(bias_added, grad, N, O, /*accumulate=*/true);
             },
             {{"dw", dw, sum_tolerance<T>(N)},
              {"dw added", sum_of(dw, before), sum_tolerance<T>(N)},
              {"dbias", dbias, kTolerance<float>},
              {"dbias added", sum_of(dbias, bias_before), kTolerance<float>}});
  }
}

TEST_CASE_TEMPLATE("bias: many rows are summed in groups, in a fixed order", T, float, Bf16) {
  for (const auto& [N, O] : {std::pair<int64_t, int64_t>{129, 33}, {5000, 31}, {40000, 65}}) {
    const int64_t rows = N, columns = O;
    const auto dy = as<T>(random_values(N * O, 1));
    Values dbias(static_cast<size_t>(O));
    reference::bias_backward(dbias.data(), back(dy).data(), N, O);
    check_op(what("bias_backward", kDType<T>, {{"N", N}, {"O", O}}),
             [&](Run& run) {
               float* const out = run.out<float>(columns);
               ops<T>().products.bias_backward(out, run.in(dy), rows, columns, /*accumulate=*/false);
             },
             {{"dbias", dbias, kTolerance<float>}});
  }
}

// Tests the fast CPU ops against the reference on random data of odd sizes, and the reference against numbers
// computed by hand.
#include "runtime/trainer/kernels/backend.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/model/rotary.h"
#include "tests/support/distance.h"
#include "tests/support/reference_ops.h"
#include "tests/unit/kernels/cpu_ops.h"

using namespace shardrun;
using kernels::Bf16;
using tests::distance;
using tests::ops;
using tests::Values;

namespace {

Values random_values(int64_t count, uint32_t seed, float spread = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  Values values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// Converts fp32 to T and back: the identity for float, rounding for Bf16.
template <typename T>
std::vector<T> as(const Values& values);
template <>
std::vector<float> as(const Values& values) {
  return values;
}
template <>
std::vector<Bf16> as(const Values& values) {
  std::vector<Bf16> out(values.size());
  kernels::fp32_to_bf16(values, std::span(out));
  return out;
}
Values back(const std::vector<float>& values) {
  return values;
}
Values back(const std::vector<Bf16>& values) {
  Values out(values.size());
  kernels::bf16_to_fp32(values, out);
  return out;
}

template <typename T>
constexpr double kTolerance = 2e-6;
template <>
constexpr double kTolerance<Bf16> = 4e-3;  // results round to 8 bits of mantissa: 2^-9 on average

const float kPoison = std::nanf("");

// Forward and backward are the reference's, and write all that they have to.
template <typename T>
void check_attention(const std::vector<T>& qkv, const std::vector<T>& dout,
                     const kernels::AttentionShape& shape, const kernels::Visibility& visibility) {
  Values expected(dout.size()), dqkv(qkv.size());
  kernels::reference::attention_forward(expected.data(), back(qkv).data(), shape, visibility);
  kernels::reference::attention_backward(dqkv.data(), back(dout).data(), back(qkv).data(), shape, visibility);

  auto out = as<T>(Values(dout.size(), kPoison)), got = as<T>(Values(qkv.size(), kPoison));
  Values lse(static_cast<size_t>(shape.B * shape.H * shape.T), kPoison);
  ops<T>().attention.forward(out.data(), lse.data(), qkv.data(), shape, visibility);
  ops<T>().attention.backward(got.data(), dout.data(), out.data(), qkv.data(), lse.data(), shape, visibility);

  CHECK_LT(distance(back(out), expected), kTolerance<T>);
  CHECK_LT(distance(back(got), dqkv), 2 * kTolerance<T>);
}

}  // namespace

TEST_CASE("bf16: conversion rounds to nearest even and keeps infinities and NaN") {
  const Values in = {1.0f, 1.00390625f, 1.01171875f, -2.5f, INFINITY, std::nanf("")};
  const Values out = back(as<Bf16>(in));
  CHECK_EQ(out[0], 1.0f);
  CHECK_EQ(out[1], 1.0f);       // half way, the lower neighbour is even
  CHECK_EQ(out[2], 1.015625f);  // half way, the upper neighbour is even
  CHECK_EQ(out[3], -2.5f);
  CHECK(std::isinf(out[4]));
  CHECK(std::isnan(out[5]));
}

TEST_CASE("reference: rmsnorm and swiglu give the numbers computed by hand") {
  const Values x = {3.0f, 4.0f}, w = {1.0f, 2.0f};
  Values y(2);
  kernels::reference::rmsnorm_forward(y.data(), x.data(), w.data(), 1, 2, 0.0f);
  CHECK_EQ(y[0], doctest::Approx(3.0 / std::sqrt(12.5)));
  CHECK_EQ(y[1], doctest::Approx(8.0 / std::sqrt(12.5)));

  const Values gate_up = {0.0f, 2.0f, 5.0f, 3.0f};
  kernels::reference::swiglu_forward(y.data(), gate_up.data(), 1, 2);
  CHECK_EQ(y[0], 0.0f);
  CHECK_EQ(y[1], doctest::Approx(6.0 / (1.0 + std::exp(-2.0))));
}

TEST_CASE("reference: equal keys make attention the mean of the values seen so far") {
  const kernels::AttentionShape shape{1, 3, 1, 1, 2};
  const Values qkv = {1, 0, 1, 1, 3, 0, /**/ 0, 1, 1, 1, 6, 3, /**/ 2, 2, 1, 1, 0, 9};
  Values out(6);
  kernels::reference::attention_forward(out.data(), qkv.data(), shape);
  const Values expected = {3, 0, 4.5f, 1.5f, 3, 4};
  CHECK_LT(distance(out, expected), 1e-6);
}

TEST_CASE_TEMPLATE("linear: forward and both backwards match the reference at odd sizes", T, float, Bf16) {
  for (const auto& [N, C, O] : {std::array<int64_t, 3>{1, 1, 1}, {7, 33, 5}, {65, 31, 127}}) {
    const auto x = as<T>(random_values(N * C, 1)), w = as<T>(random_values(O * C, 2)),
               dy = as<T>(random_values(N * O, 3));
    Values expected(static_cast<size_t>(N * O)), dx(static_cast<size_t>(N * C)),
        dw(static_cast<size_t>(O * C));
    kernels::reference::linear_forward(expected.data(), back(x).data(), back(w).data(), N, C, O);
    kernels::reference::linear_backward_input(dx.data(), back(dy).data(), back(w).data(), N, C, O);
    kernels::reference::linear_backward_weight(dw.data(), back(dy).data(), back(x).data(), N, C, O);

    auto y = as<T>(Values(expected.size(), kPoison)), got_dx = as<T>(Values(dx.size(), kPoison));
    Values logits(expected.size(), kPoison), got_dw(dw.size(), kPoison);
    ops<T>().products.linear_forward(y.data(), x.data(), w.data(), N, C, O);
    ops<T>().products.linear_forward_fp32(logits.data(), x.data(), w.data(), N, C, O);
    ops<T>().products.linear_backward_input(got_dx.data(), dy.data(), w.data(), N, C, O);
    ops<T>().products.linear_backward_weight(got_dw.data(), dy.data(), x.data(), N, C, O, false);

    CHECK_LT(distance(back(y), expected), kTolerance<T>);
    CHECK_LT(distance(logits, expected), 2e-6);
    CHECK_LT(distance(back(got_dx), dx), kTolerance<T>);
    CHECK_LT(distance(got_dw, dw), 2e-6);
    ops<T>().products.linear_backward_weight(got_dw.data(), dy.data(), x.data(), N, C, O, true);
    for (float& value : dw) value *= 2.0f;
    CHECK_LT(distance(got_dw, dw), 2e-6);
  }
}

TEST_CASE_TEMPLATE("rmsnorm: forward and backward match the reference at odd sizes", T, float, Bf16) {
  for (const auto& [N, C] : {std::array<int64_t, 2>{1, 1}, {5, 17}, {67, 130}}) {
    const float epsilon = 1e-5f;
    const auto x = as<T>(random_values(N * C, 4)), w = as<T>(random_values(C, 5)),
               dy = as<T>(random_values(N * C, 6));
    const auto before = as<T>(random_values(N * C, 7));
    Values expected(static_cast<size_t>(N * C)), dx = back(before), dw(static_cast<size_t>(C));
    kernels::reference::rmsnorm_forward(expected.data(), back(x).data(), back(w).data(), N, C, epsilon);
    kernels::reference::rmsnorm_backward(dx.data(), dw.data(), back(dy).data(), back(x).data(),
                                         back(w).data(), N, C, epsilon);

    auto y = as<T>(Values(expected.size(), kPoison)), got_dx = before;
    Values rrms(static_cast<size_t>(N), kPoison), got_dw(dw.size(), kPoison);
    ops<T>().norms.rmsnorm_forward(y.data(), rrms.data(), x.data(), w.data(), N, C, epsilon);
    ops<T>().norms.rmsnorm_backward(got_dx.data(), got_dw.data(), dy.data(), x.data(), w.data(), rrms.data(),
                                    N, C);

    CHECK_LT(distance(back(y), expected), kTolerance<T>);
    CHECK_LT(distance(back(got_dx), dx), kTolerance<T>);
    CHECK_LT(distance(got_dw, dw), 2e-6);
  }
}

TEST_CASE_TEMPLATE("attention: tiles match the naive softmax, with shared key heads and ragged ends", T,
                   float, Bf16) {
  for (const kernels::AttentionShape shape : {kernels::AttentionShape{1, 1, 1, 1, 2},
                                              {2, 33, 4, 2, 6},
                                              {1, 129, 2, 1, 16},
                                              {2, 70, 3, 3, 10},
                                              {1, 1, 1, 1, 32},
                                              {2, 130, 4, 2, 64},
                                              {1, 200, 2, 2, 96},
                                              {1, 64, 2, 1, 128}}) {
    const int64_t N = shape.B * shape.T;
    const auto qkv = as<T>(random_values(N * shape.qkv_stride(), 8));
    const auto dout = as<T>(random_values(N * shape.H * shape.D, 9));
    Values expected(dout.size()), dqkv(qkv.size());
    kernels::reference::attention_forward(expected.data(), back(qkv).data(), shape);
    kernels::reference::attention_backward(dqkv.data(), back(dout).data(), back(qkv).data(), shape);

    auto out = as<T>(Values(dout.size(), kPoison)), got = as<T>(Values(qkv.size(), kPoison));
    Values lse(static_cast<size_t>(shape.B * shape.H * shape.T), kPoison);
    ops<T>().attention.forward(out.data(), lse.data(), qkv.data(), shape);
    ops<T>().attention.backward(got.data(), dout.data(), out.data(), qkv.data(), lse.data(), shape);

    CHECK_LT(distance(back(out), expected), kTolerance<T>);
    CHECK_LT(distance(back(got), dqkv), 2 * kTolerance<T>);  // the rounded output enters delta
  }
}

TEST_CASE_TEMPLATE("attention: documents, padding and both directions match the naive softmax", T, float,
                   Bf16) {
  kernels::AttentionShape shape{3, 150, 4, 2, 10};
  SUBCASE("heads of 10") {}
  SUBCASE("heads that fill tiles of products") {
    shape.D = 32;
  }
  const int64_t N = shape.B * shape.T;
  std::vector<int32_t> begins(static_cast<size_t>(N)), lengths = {150, 97, 0};
  for (int64_t n = 0; n < N; ++n) {  // documents of 1, 40, 64 and the remaining tokens
    const int64_t t = n % shape.T;
    begins[static_cast<size_t>(n)] = t < 1 ? 0 : t < 41 ? 1 : t < 105 ? 41 : 105;
  }
  const auto qkv = as<T>(random_values(N * shape.qkv_stride(), 8));
  const auto dout = as<T>(random_values(N * shape.H * shape.D, 9));
  for (const bool causal : {false, true}) {
    for (const int variant : {0, 1, 2, 3}) {
      const kernels::Visibility visibility{causal, variant & 1 ? begins.data() : nullptr,
                                           variant & 2 ? lengths.data() : nullptr};
      CAPTURE(causal);
      CAPTURE(variant);
      check_attention(qkv, dout, shape, visibility);
    }
  }
}

TEST_CASE_TEMPLATE("attention: a window hides what lies before it, with and without documents", T, float,
                   Bf16) {
  kernels::AttentionShape shape{2, 150, 4, 2, 10};
  SUBCASE("heads of 10") {}
  SUBCASE("heads that fill tiles of products") {
    shape.D = 32;
  }
  const int64_t N = shape.B * shape.T;
  std::vector<int32_t> begins(static_cast<size_t>(N));
  for (int64_t n = 0; n < N; ++n) begins[static_cast<size_t>(n)] = n % shape.T < 61 ? 0 : 61;
  const auto qkv = as<T>(random_values(N * shape.qkv_stride(), 8));
  const auto dout = as<T>(random_values(N * shape.H * shape.D, 9));
  for (const int64_t window : {1, 7, 64, 149}) {
    for (const bool documents : {false, true}) {
      CAPTURE(window);
      CAPTURE(documents);
      const kernels::Visibility visibility{
          .causal = true, .begins = documents ? begins.data() : nullptr, .window = window};
      check_attention(qkv, dout, shape, visibility);
    }
  }
}

TEST_CASE_TEMPLATE("head norms: each query and key head is the reference's rmsnorm, and values stay", T,
                   float, Bf16) {
  for (const kernels::AttentionShape shape : {kernels::AttentionShape{1, 1, 1, 1, 2}, {3, 31, 4, 2, 18}}) {
    const int64_t N = shape.B * shape.T, count = shape.H + shape.K, D = shape.D, stride = shape.qkv_stride();
    const auto qkv = as<T>(random_values(N * stride, 8)), w = as<T>(random_values(2 * D, 5)),
               dqkv = as<T>(random_values(N * stride, 9));
    Values expected = back(qkv), dexpected = back(dqkv), dw(static_cast<size_t>(2 * D));
    for (int64_t i = 0; i < N * count; ++i) {
      const int64_t at = i / count * stride + i % count * D, which = i % count < shape.H ? 0 : D;
      const Values in = back(qkv), weights = back(w), grad = back(dqkv);
      Values dx(static_cast<size_t>(D)), one_dw(dx.size());
      kernels::reference::rmsnorm_forward(expected.data() + at, in.data() + at, weights.data() + which, 1, D,
                                          1e-6f);
      kernels::reference::rmsnorm_backward(dx.data(), one_dw.data(), grad.data() + at, in.data() + at,
                                           weights.data() + which, 1, D, 1e-6f);
      std::copy(dx.begin(), dx.end(), dexpected.begin() + at);
      for (int64_t d = 0; d < D; ++d) dw[static_cast<size_t>(which + d)] += one_dw[static_cast<size_t>(d)];
    }

    auto got = qkv, got_d = dqkv, heads = as<T>(Values(static_cast<size_t>(N * count * D), kPoison));
    Values rrms(static_cast<size_t>(N * count), kPoison), got_dw(dw.size(), kPoison);
    ops<T>().norms.head_norms_forward(got.data(), heads.data(), rrms.data(), w.data(), shape, 1e-6f);
    ops<T>().norms.head_norms_backward(got_d.data(), got_dw.data(), heads.data(), w.data(), rrms.data(),
                                       shape);

    CHECK_LT(distance(back(got), expected), kTolerance<T>);
    CHECK_LT(distance(back(got_d), dexpected), kTolerance<T>);
    CHECK_LT(distance(got_dw, dw), 4e-6);
    const auto values = static_cast<std::ptrdiff_t>(count * D);
    CHECK(std::equal(got.begin() + values, got.begin() + stride, qkv.begin() + values,
                     [](T a, T b) { return std::memcmp(&a, &b, sizeof(T)) == 0; }));
  }
}

TEST_CASE("attention: tiles of bf16 give the same bits on one thread and on three") {
  const kernels::AttentionShape shape{2, 150, 4, 2, 64};
  const auto qkv = as<Bf16>(random_values(shape.B * shape.T * shape.qkv_stride(), 8));
  const auto dout = as<Bf16>(random_values(shape.B * shape.T * shape.H * shape.D, 9));
  std::vector<Values> results;
  const int threads = omp_get_max_threads();
  for (const int count : {1, 3}) {
    omp_set_num_threads(count);
    auto out = dout, got = qkv;
    Values lse(static_cast<size_t>(shape.B * shape.H * shape.T));
    ops<Bf16>().attention.forward(out.data(), lse.data(), qkv.data(), shape);
    ops<Bf16>().attention.backward(got.data(), dout.data(), out.data(), qkv.data(), lse.data(), shape);
    results.push_back(back(got));
    results.push_back(back(out));
  }
  omp_set_num_threads(threads);
  CHECK_EQ(results[0], results[2]);
  CHECK_EQ(results[1], results[3]);
}

TEST_CASE("attention: what a document cannot see changes none of its bits") {
  const kernels::AttentionShape shape{1, 100, 2, 2, 8};
  std::vector<int32_t> begins(100, 0);
  std::fill(begins.begin() + 37, begins.end(), 37);
  Values qkv = random_values(shape.T * shape.qkv_stride(), 8);
  Values out(static_cast<size_t>(shape.T * shape.H * shape.D)), lse(200), changed = out;
  const kernels::Visibility visibility{.causal = false, .begins = begins.data()};
  ops<float>().attention.forward(out.data(), lse.data(), qkv.data(), shape, visibility);

  for (int64_t i = 0; i < 37 * shape.qkv_stride(); ++i) qkv[static_cast<size_t>(i)] *= -3.0f;
  ops<float>().attention.forward(changed.data(), lse.data(), qkv.data(), shape, visibility);

  const auto second = static_cast<std::ptrdiff_t>(37 * shape.H * shape.D);
  CHECK(std::equal(out.begin() + second, out.end(), changed.begin() + second));
  CHECK_FALSE(std::equal(out.begin(), out.begin() + second, changed.begin()));
}

TEST_CASE_TEMPLATE("linear: bias enters before rounding, and a gradient can be added to one", T, float,
                   Bf16) {
  for (const auto& [N, C, O] : {std::array<int64_t, 3>{1, 3, 2}, {7, 33, 5}, {65, 31, 127}}) {
    const auto x = as<T>(random_values(N * C, 1)), w = as<T>(random_values(O * C, 2)),
               dy = as<T>(random_values(N * O, 3)), bias = as<T>(random_values(O, 4));
    const auto before = as<T>(random_values(N * C, 5));
    Values expected(static_cast<size_t>(N * O)), dx(static_cast<size_t>(N * C)), db(static_cast<size_t>(O));
    kernels::reference::linear_forward(expected.data(), back(x).data(), back(w).data(), N, C, O);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += back(bias)[i % static_cast<size_t>(O)];
    kernels::reference::linear_backward_input(dx.data(), back(dy).data(), back(w).data(), N, C, O);
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += back(before)[i];
    kernels::reference::bias_backward(db.data(), back(dy).data(), N, O);

    auto y = as<T>(Values(expected.size(), kPoison)), got_dx = before;
    Values logits(expected.size(), kPoison), got_db(db.size(), kPoison);
    ops<T>().products.linear_bias_forward(y.data(), x.data(), w.data(), bias.data(), N, C, O);
    ops<T>().products.linear_bias_forward_fp32(logits.data(), x.data(), w.data(), bias.data(), N, C, O);
    ops<T>().products.linear_backward_input(got_dx.data(), dy.data(), w.data(), N, C, O, /*accumulate=*/true);
    ops<T>().products.bias_backward(got_db.data(), dy.data(), N, O, /*accumulate=*/false);

    CHECK_LT(distance(back(y), expected), kTolerance<T>);
    CHECK_LT(distance(logits, expected), 2e-6);
    CHECK_LT(distance(back(got_dx), dx), kTolerance<T>);
    CHECK_LT(distance(got_db, db), 2e-6);
    ops<T>().products.bias_backward(got_db.data(), dy.data(), N, O, /*accumulate=*/true);
    for (float& value : db) value *= 2.0f;
    CHECK_LT(distance(got_db, db), 2e-6);
  }
}

TEST_CASE("reference: layernorm and gelu give the numbers computed by hand") {
  const Values x = {1.0f, 3.0f}, gamma = {2.0f, 10.0f}, beta = {0.5f, -1.0f};
  Values y(2);
  kernels::reference::layernorm_forward(y.data(), x.data(), gamma.data(), beta.data(), 1, 2, 3.0f);
  CHECK_EQ(y[0], doctest::Approx(-0.5));  // deviations -1 and 1, divided by sqrt(1 + 3)
  CHECK_EQ(y[1], doctest::Approx(4.0));

  const Values z = {0.0f, 1.0f};
  kernels::reference::gelu_forward(y.data(), z.data(), 2);
  CHECK_EQ(y[0], 0.0f);
  CHECK_EQ(y[1], doctest::Approx(0.8413447461));
}

TEST_CASE_TEMPLATE("layernorm: forward with residual and backward match the reference at odd sizes", T, float,
                   Bf16) {
  for (const auto& [N, C] : {std::array<int64_t, 2>{1, 2}, {5, 17}, {67, 130}}) {
    const float epsilon = 1e-12f;
    const auto x = as<T>(random_values(N * C, 4)), residual = as<T>(random_values(N * C, 5)),
               gamma = as<T>(random_values(C, 6)), beta = as<T>(random_values(C, 7)),
               dy = as<T>(random_values(N * C, 8));
    auto sum = x, y = as<T>(Values(x.size(), kPoison)), dx = dy;
    Values mean(static_cast<size_t>(N), kPoison), rstd(mean), dgamma(static_cast<size_t>(C), kPoison),
        dbeta(dgamma);
    ops<T>().norms.layernorm_forward(y.data(), mean.data(), rstd.data(), sum.data(), residual.data(),
                                     gamma.data(), beta.data(), N, C, epsilon);
    ops<T>().norms.layernorm_backward(dx.data(), dgamma.data(), dbeta.data(), dx.data(), sum.data(),
                                      gamma.data(), mean.data(), rstd.data(), N, C);

    Values expected_sum = back(x), expected(expected_sum.size()), expected_dx(expected),
           expected_dgamma(dgamma), expected_dbeta(dbeta);
    for (size_t i = 0; i < expected_sum.size(); ++i) expected_sum[i] += back(residual)[i];
    kernels::reference::layernorm_forward(expected.data(), back(sum).data(), back(gamma).data(),
                                          back(beta).data(), N, C, epsilon);
    kernels::reference::layernorm_backward(expected_dx.data(), expected_dgamma.data(), expected_dbeta.data(),
                                           back(dy).data(), back(sum).data(), back(gamma).data(), N, C,
                                           epsilon);
    CHECK_LT(distance(back(sum), expected_sum), kTolerance<T>);
    CHECK_LT(distance(back(y), expected), kTolerance<T>);
    if (C > 2) CHECK_LT(distance(back(dx), expected_dx), kTolerance<T>);  // two columns: the gradient is zero
    CHECK_LT(distance(dgamma, expected_dgamma), 2e-6);
    CHECK_LT(distance(dbeta, expected_dbeta), 2e-6);
  }
}

#if !defined(__SANITIZE_THREAD__)  // it sees races in every parallel loop of libgomp
TEST_CASE(
    "norms, biases and embeddings: gradients summed over rows have the same bits for any number of threads") {
  const int64_t N = 100, C = 257;
  const Values x = random_values(N * C, 4), gamma = random_values(C, 6), dy = random_values(N * C, 8);
  const Values mean(static_cast<size_t>(N), 0.1f), rstd(static_cast<size_t>(N), 0.9f);
  std::vector<int32_t> tokens(static_cast<size_t>(N));
  for (size_t n = 0; n < tokens.size(); ++n) tokens[n] = static_cast<int32_t>(n % 7);
  const auto gradients = [&](int threads) {
    const int before = ::omp_get_max_threads();
    ::omp_set_num_threads(threads);
    Values dx = x, sums(static_cast<size_t>(4 * C)), table(static_cast<size_t>(7 * C));
    ops<float>().norms.layernorm_backward(dx.data(), sums.data(), sums.data() + C, dy.data(), x.data(),
                                          gamma.data(), mean.data(), rstd.data(), N, C);
    ops<float>().norms.rmsnorm_backward(dx.data(), sums.data() + 2 * C, dy.data(), x.data(), gamma.data(),
                                        rstd.data(), N, C);
    ops<float>().products.bias_backward(sums.data() + 3 * C, dy.data(), N, C, /*accumulate=*/false);
    ops<float>().embedding.backward(table.data(), tokens.data(), dy.data(), N, C, 7);
    ::omp_set_num_threads(before);
    sums.insert(sums.end(), dx.begin(), dx.end());
    sums.insert(sums.end(), table.begin(), table.end());
    return sums;
  };
  const Values alone = gradients(1);
  CHECK(gradients(2) == alone);
  CHECK(gradients(5) == alone);
}
#endif

TEST_CASE_TEMPLATE("gelu: forward and backward match the exact function over its whole range", T, float,
                   Bf16) {
  Values points(4001);
  for (size_t i = 0; i < points.size(); ++i) points[i] = (static_cast<float>(i) - 2000.0f) * 0.01f;
  const auto x = as<T>(points), dy = as<T>(random_values(4001, 3));
  Values expected(points.size()), expected_dx(expected);
  kernels::reference::gelu_forward(expected.data(), back(x).data(), 4001);
  kernels::reference::gelu_backward(expected_dx.data(), back(dy).data(), back(x).data(), 4001);

  auto y = as<T>(Values(points.size(), kPoison)), dx = dy;
  ops<T>().pointwise.gelu_forward(y.data(), x.data(), 4001);
  ops<T>().pointwise.gelu_backward(dx.data(), dx.data(), x.data(), 4001);

  CHECK_LT(distance(back(y), expected), kTolerance<T>);
  CHECK_LT(distance(back(dx), expected_dx), kTolerance<T>);
  if constexpr (std::is_same_v<T, float>) {
    for (size_t i = 0; i < y.size(); ++i) {
      CAPTURE(points[i]);
      CHECK_LT(std::abs(double{y[i]} - expected[i]), 4e-7 * std::max(1.0f, std::abs(points[i])));
      CHECK_LT(std::abs(double{dx[i]} - expected_dx[i]), 6e-7 * std::max(1.0f, std::abs(dy[i])));
    }
  }
}

TEST_CASE("tanh: forward and backward") {
  Values x = {-2.0f, 0.0f, 0.5f}, dy = {1.0f, 2.0f, 3.0f}, y(3);
  ops<float>().pointwise.tanh_forward(y.data(), x.data(), 3);
  ops<float>().pointwise.tanh_backward(dy.data(), dy.data(), y.data(), 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK_EQ(y[i], doctest::Approx(std::tanh(x[i])));
    const double slope = 1.0 / std::cosh(double{x[i]}) / std::cosh(double{x[i]});
    CHECK_EQ(dy[i], doctest::Approx(static_cast<double>(i + 1) * slope).epsilon(1e-5));
  }
}

TEST_CASE_TEMPLATE("embedding: BERT's input is the sum of a word's, a position's and a type's row", T, float,
                   Bf16) {
  const auto word = as<T>(Values{1, 2, 3, 4, 5, 6}), position = as<T>(Values{10, 20, 30, 40}),
             type = as<T>(Values{100, 200, 0.5f, 0.25f});
  const std::vector<int32_t> tokens = {2, 0}, positions = {0, 1}, segments = {1, 0};
  auto y = as<T>(Values(4, kPoison));
  ops<T>().embedding.sum_forward(y.data(), tokens.data(), positions.data(), segments.data(), word.data(),
                                 position.data(), type.data(), 2, 2);
  CHECK_EQ(back(y), Values{15.5f, 26.25f, 131, 242});
}

TEST_CASE("scatter: rows land where they came from and every other row is zero") {
  const Values x = {1, 2, 3, 4};
  const std::vector<int32_t> rows = {3, 1};
  Values y(10, kPoison);
  ops<float>().embedding.scatter_rows(y.data(), rows.data(), x.data(), 2, 5, 2);
  CHECK_EQ(y, Values{0, 0, 3, 4, 0, 0, 1, 2, 0, 0});
}

TEST_CASE_TEMPLATE("swiglu: forward and backward match the reference", T, float, Bf16) {
  const int64_t N = 19, F = 37;
  const auto gate_up = as<T>(random_values(N * 2 * F, 10, 3.0f)), dy = as<T>(random_values(N * F, 11));
  Values expected(static_cast<size_t>(N * F)), dgate_up(static_cast<size_t>(N * 2 * F));
  kernels::reference::swiglu_forward(expected.data(), back(gate_up).data(), N, F);
  kernels::reference::swiglu_backward(dgate_up.data(), back(dy).data(), back(gate_up).data(), N, F);

  auto y = as<T>(Values(expected.size(), kPoison)), got = as<T>(Values(dgate_up.size(), kPoison));
  ops<T>().pointwise.swiglu_forward(y.data(), gate_up.data(), N, F);
  ops<T>().pointwise.swiglu_backward(got.data(), dy.data(), gate_up.data(), N, F);

  CHECK_LT(distance(back(y), expected), kTolerance<T>);
  CHECK_LT(distance(back(got), dgate_up), kTolerance<T>);
}

TEST_CASE_TEMPLATE("columns: what is added to some of a wider row, or taken from it, leaves the others alone",
                   T, float, Bf16) {
  const int64_t N = 37, C = 21, stride = 53, column = 11;
  const auto rows = as<T>(random_values(N * stride, 20)), x = as<T>(random_values(N * C, 21));
  const Values before = back(rows), added = back(x);
  Values sums = before, taken(static_cast<size_t>(N * C));
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t c = 0; c < C; ++c) {
      const auto wide = static_cast<size_t>(n * stride + column + c), narrow = static_cast<size_t>(n * C + c);
      sums[wide] += 0.75f * added[narrow];
      taken[narrow] = 0.75f * before[wide];
    }
  }

  auto y = rows;
  auto got = as<T>(Values(taken.size(), kPoison));
  ops<T>().pointwise.add_to_columns(y.data() + column, x.data(), 0.75f, N, C, stride);
  ops<T>().pointwise.take_columns(got.data(), rows.data() + column, 0.75f, N, C, stride);

  CHECK_LT(distance(back(y), sums), kTolerance<T>);
  CHECK_LT(distance(back(got), taken), kTolerance<T>);
  for (int64_t n = 0; n < N; ++n) {
    const auto at = static_cast<size_t>(n * stride);
    CHECK(std::memcmp(y.data() + at, rows.data() + at, column * sizeof(T)) == 0);
    CHECK(std::memcmp(y.data() + at + column + C, rows.data() + at + column + C,
                      (stride - column - C) * sizeof(T)) == 0);
  }
}

TEST_CASE_TEMPLATE("cross-entropy: loss and gradient match, and a target of -1 carries neither", T, float,
                   Bf16) {
  const int64_t N = 21, V = 259;
  const Values logits = random_values(N * V, 12, 4.0f);
  std::vector<int32_t> targets(static_cast<size_t>(N));
  for (size_t n = 0; n < targets.size(); ++n) targets[n] = n % 5 == 2 ? -1 : static_cast<int32_t>(n * 12 % V);
  Values expected(logits.size());
  const double loss =
      kernels::reference::cross_entropy(expected.data(), logits.data(), targets.data(), N, V, 0.25f);

  auto dlogits = as<T>(Values(logits.size(), kPoison));
  double got = 0.0;
  ops<T>().classifier.cross_entropy(&got, dlogits.data(), logits.data(), targets.data(), N, V, 0.25f);

  CHECK_EQ(got, doctest::Approx(loss).epsilon(1e-6));
  CHECK_LT(distance(back(dlogits), expected), kTolerance<T>);
  for (int64_t v = 0; v < V; ++v) CHECK_EQ(back(dlogits)[static_cast<size_t>(2 * V + v)], 0.0f);
}

TEST_CASE("rope: the inverse undoes it, and it keeps each pair's length") {
  const int64_t B = 2, T = 9, heads = 3, D = 8, stride = 30;
  const Values table = plan::rope_table(T, D, 10000.0);
  Values x = random_values(B * T * stride, 13);
  const Values before = x;

  ops<float>().attention.rope(x.data(), table.data(), B, T, heads, D, stride, false);

  const size_t at = static_cast<size_t>(5 * stride + D);  // token 5, second head, first pair
  CHECK_EQ(x[at], doctest::Approx(before[at] * std::cos(5.0) - before[at + 4] * std::sin(5.0)));
  CHECK_EQ(std::hypot(x[at], x[at + 4]), doctest::Approx(std::hypot(before[at], before[at + 4])));
  CHECK_EQ(x[static_cast<size_t>(stride - 1)], before[static_cast<size_t>(stride - 1)]);  // beyond the heads
  ops<float>().attention.rope(x.data(), table.data(), B, T, heads, D, stride, true);
  CHECK_LT(distance(x, before), 1e-6);
}

TEST_CASE("embedding: backward sums the rows of repeated tokens, and adds them to others") {
  const std::vector<int32_t> tokens = {2, 0, 2};
  const Values dy = {1, 2, 10, 20, 100, 200};
  Values dw(6, kPoison);
  ops<float>().embedding.backward(dw.data(), tokens.data(), dy.data(), 3, 2, 3);
  CHECK_EQ(dw, Values{10, 20, 0, 0, 101, 202});

  ops<float>().embedding.backward(dw.data(), tokens.data(), dy.data(), 3, 2, 3, /*accumulate=*/true);
  CHECK_EQ(dw, Values{20, 40, 0, 0, 202, 404});
}

TEST_CASE("adamw: three steps match the reference") {
  const int64_t count = 1003;
  Values master = random_values(count, 14), m(static_cast<size_t>(count)), v(static_cast<size_t>(count));
  Values expected = master, em = m, ev = v;
  for (int step = 1; step <= 3; ++step) {
    const Values gradient = random_values(count, static_cast<uint32_t>(20 + step));
    const kernels::AdamWParameters p{1e-2f,
                                     0.9f,
                                     0.95f,
                                     1e-8f,
                                     0.1f,
                                     0.5f,
                                     1.0f - static_cast<float>(std::pow(0.9, step)),
                                     1.0f - static_cast<float>(std::pow(0.95, step))};
    kernels::cpu_backend().optimizer().adamw_step(master, m, v, gradient, p);
    kernels::reference::adamw_step(expected.data(), em.data(), ev.data(), gradient.data(), count, p);
  }
  CHECK_LT(distance(master, expected), 1e-6);
  CHECK_LT(distance(v, ev), 1e-6);
}

TEST_CASE("instructions: those that kernels use have a name, also where ONEDNN_MAX_CPU_ISA lowers them") {
  const std::string said = kernels::cpu_instructions();
  const char* const lowered = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string_view limit = lowered == nullptr ? "" : lowered;

  CHECK(said.find(", oneDNN ") != std::string::npos);
  if (limit == "SSE41") CHECK(said.starts_with("no vectors beyond the baseline's, "));
  if (limit == "AVX2") CHECK(said.find("AVX-512") == std::string::npos);
  if (limit == "AVX2" || limit == "AVX512_CORE") {
    CHECK(said.find("bf16") == std::string::npos);
    CHECK(said.find("AMX") == std::string::npos);
  }
}

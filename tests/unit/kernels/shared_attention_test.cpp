// Attention of ranks that share sequences, put together, is that of one rank with all tokens.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <type_traits>
#include <vector>

#include "runtime/trainer/kernels/backend.h"
#include "tests/support/distance.h"

using namespace shardrun;
using kernels::Bf16;
using tests::distance;

namespace {

using kernels::AttentionShape;
using kernels::Visibility;

template <typename T>
std::vector<T> random_elements(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  std::vector<T> out(values.size());
  kernels::cpu_backend().ops<T>().pointwise.from_fp32(out.data(), values.data(), count);
  return out;
}

template <typename T>
std::vector<float> widened(const std::vector<T>& in) {
  if constexpr (std::is_same_v<T, float>) {
    return in;
  } else {
    std::vector<float> out(in.size());
    kernels::bf16_to_fp32(in, out);
    return out;
  }
}

// Copies `columns` of each row from one table to another; rows of the tables are as long as their strides.
template <typename T>
void copy_columns(std::vector<T>& to, int64_t to_row, int64_t to_stride, const std::vector<T>& from,
                  int64_t from_row, int64_t from_stride, int64_t first, int64_t columns) {
  std::copy_n(from.begin() + from_row * from_stride + first, columns,
              to.begin() + to_row * to_stride + first);
}

// Runs every rank of a group of `ranks` and puts their results together; compares them with those of one rank.
template <typename T>
void check_shared(const AttentionShape& whole, int ranks, const Visibility& visibility, double tolerance) {
  CAPTURE(ranks);
  const int64_t N = whole.B * whole.T, stride = whole.qkv_stride(), HD = whole.H * whole.D;
  const int64_t width = 2 * whole.K * whole.D, length = whole.T, own = length / ranks;
  const auto qkv = random_elements<T>(N * stride, 1), dout = random_elements<T>(N * HD, 2);
  const auto& ops = kernels::cpu_backend().ops<T>().attention;
  std::vector<T> expected(dout.size()), expected_gradient(qkv.size());
  std::vector<float> expected_lse(whole.B * whole.H * length);
  ops.forward(expected.data(), expected_lse.data(), qkv.data(), whole, visibility);
  ops.backward(expected_gradient.data(), dout.data(), expected.data(), qkv.data(), expected_lse.data(), whole,
               visibility);

  std::vector<T> kv(N * width);
  for (int64_t n = 0; n < N; ++n) std::copy_n(qkv.begin() + n * stride + HD, width, kv.begin() + n * width);
  std::vector<T> out(dout.size()), gradient(qkv.size());
  std::vector<float> kv_gradient(kv.size());
  for (int rank = 0; rank < ranks; ++rank) {
    AttentionShape shape = whole;
    shape.context = {rank, ranks};
    std::vector<T> own_qkv(whole.B * own * stride), own_dout(whole.B * own * HD), own_out(own_dout.size()),
        own_gradient(own_qkv.size());
    std::vector<float> lse(whole.B * whole.H * own, std::nanf("")), part(kv.size(), std::nanf(""));
    const auto for_each_row = [&](const auto& visit) {
      for (int64_t b = 0; b < whole.B; ++b) {
        for (int64_t row = 0; row < own; ++row)
          visit(b * own + row, b * length + shape.context.position(row, length));
      }
    };
    for_each_row([&](int64_t here, int64_t there) {
      copy_columns(own_qkv, here, stride, qkv, there, stride, 0, stride);
      copy_columns(own_dout, here, HD, dout, there, HD, 0, HD);
    });
    ops.shared_forward(own_out.data(), lse.data(), own_qkv.data(), kv.data(), shape, visibility);
    ops.shared_backward(own_gradient.data(), part.data(), own_dout.data(), own_out.data(), own_qkv.data(),
                        kv.data(), lse.data(), shape, visibility);
    for_each_row([&](int64_t here, int64_t there) {
      copy_columns(out, there, HD, own_out, here, HD, 0, HD);
      copy_columns(gradient, there, stride, own_gradient, here, stride, 0, HD);
    });
    for (size_t i = 0; i < kv_gradient.size(); ++i) kv_gradient[i] += part[i];
  }
  auto all = widened(gradient);
  for (int64_t n = 0; n < N; ++n)
    std::copy_n(kv_gradient.begin() + n * width, width, all.begin() + n * stride + HD);
  CHECK(distance(widened(out), widened(expected)) < tolerance);
  CHECK(distance(all, widened(expected_gradient)) < 2 * tolerance);
}

}  // namespace

TEST_CASE_TEMPLATE("shared attention: ranks with some tokens each give what one gives with all of them", T,
                   float, Bf16) {
  const double tolerance = std::is_same_v<T, float> ? 1e-6 : 4e-3;
  for (const AttentionShape shape : {AttentionShape{1, 8, 1, 1, 2},
                                     {2, 72, 4, 2, 6},
                                     {1, 264, 2, 1, 32},
                                     {2, 136, 4, 2, 64},
                                     {1, 200, 2, 2, 96}}) {
    CAPTURE(shape.T);
    for (const int ranks : {2, 4}) {
      check_shared<T>(shape, ranks, {}, tolerance);
      check_shared<T>(shape, ranks, {.window = 5}, tolerance);
      std::vector<int32_t> begins(shape.B * shape.T);
      for (int64_t n = 0; n < shape.B * shape.T; ++n) begins[n] = static_cast<int32_t>(n % shape.T / 7 * 7);
      check_shared<T>(shape, ranks, {.begins = begins.data()}, tolerance);
    }
  }
}

TEST_CASE("shared attention: every rank has as many scores to compute, and every token one rank") {
  for (const int ranks : {1, 2, 4, 8}) {
    constexpr int64_t kTokens = 64;
    std::vector<int> seen(kTokens);
    std::vector<int64_t> scores(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const plan::ContextPlace place{rank, ranks};
      int64_t before = -1;
      for (int64_t own = 0; own < place.own_tokens(kTokens); ++own) {
        const int64_t position = place.position(own, kTokens);
        CHECK(position > before);
        before = position;
        ++seen[position];
        scores[rank] += position + 1;
      }
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
    CHECK(std::all_of(scores.begin(), scores.end(), [&](int64_t count) { return count == scores[0]; }));
  }
}

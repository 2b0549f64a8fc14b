#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "tests/gpu/harness.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;

namespace {

struct Shape {
  int64_t N, C, V;
};
constexpr Shape kShapes[] = {{0, 8, 5},     {1, 1, 1},       {3, 17, 7},       {129, 24, 5},
                             {1000, 64, 3}, {127, 2048, 31}, {5000, 40, 50257}};

// Adds the rows of the tokens in [first, first + V), in ascending n in fp32, to what `dw` has: the contract to the bit.
Values sum_by_token(const std::vector<int32_t>& tokens, const Values& dy, int64_t C, int64_t V, int64_t first,
                    Values dw = {}) {
  dw.resize(static_cast<size_t>(V * C), 0.0F);
  for (size_t n = 0; n < tokens.size(); ++n) {
    const int64_t row = tokens[n] - first;
    if (row < 0 || row >= V) continue;
    for (int64_t c = 0; c < C; ++c)
      dw[static_cast<size_t>(row * C + c)] += dy[n * static_cast<size_t>(C) + static_cast<size_t>(c)];
  }
  return dw;
}

Values rows_of(const std::vector<int32_t>& tokens, const Values& w, int64_t C, int64_t V, int64_t first) {
  Values y;
  for (const int32_t token : tokens) {
    const int64_t row = token - first;
    for (int64_t c = 0; c < C; ++c)
      y.push_back(row < 0 || row >= V ? 0.0F : w[static_cast<size_t>(row * C + c)]);
  }
  return y;
}

}  // namespace

TEST_CASE_TEMPLATE("embedding: forward and backward are the CPU's bits", T, float, Bf16) {
  for (const Shape& s : kShapes) {
    const auto tokens = random_tokens(s.N, s.V, 1);
    const auto w = as<T>(random_values(s.V * s.C, 2)), dy = as<T>(random_values(s.N * s.C, 3));
    const Values before = random_values(s.V * s.C, 4);
    check_op(what("embedding", kDType<T>, {{"N", s.N}, {"C", s.C}, {"V", s.V}}),
             [&](Run& run) {
               T* const y = run.out<T>(s.N * s.C);
               float* const dw = run.out<float>(s.V * s.C);
               float* const added = run.inout(before);
               const int32_t* const ids = run.in(tokens);
               ops<T>().embedding.forward(y, ids, run.in(w), s.N, s.C);
               const T* const grad = run.in(dy);
               ops<T>().embedding.backward(dw, ids, grad, s.N, s.C, s.V);
               ops<T>().embedding.backward(added, ids, grad, s.N, s.C, s.V, /*accumulate=*/true);
             },
             {{"y", rows_of(tokens, back(w), s.C, s.V, 0), kExact},
              {"dw", sum_by_token(tokens, back(dy), s.C, s.V, 0), kExact},
              {"dw added", sum_by_token(tokens, back(dy), s.C, s.V, 0, before), kExact}});
  }
}

TEST_CASE_TEMPLATE("embedding: a slice takes its own tokens and skips the others", T, float, Bf16) {
  for (const auto& [N, C, V, first] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{0, 8, 5, 5},
                                       {3, 17, 7, 0},
                                       {200, 64, 9, 9},
                                       {200, 64, 9, 18}}) {
    const int64_t rows = N, columns = C, slice = V, begin = first;
    const auto tokens = random_tokens(N, 27, 1);
    const auto w = as<T>(random_values(V * C, 2)), dy = as<T>(random_values(N * C, 3));
    const Values before = random_values(V * C, 4);
    check_op(what("embedding_slice", kDType<T>, {{"N", N}, {"C", C}, {"V", V}, {"first", first}}),
             [&](Run& run) {
               float* const y = run.out<float>(rows * columns);
               float* const dw = run.out<float>(slice * columns);
               float* const added = run.inout(before);
               const int32_t* const ids = run.in(tokens);
               ops<T>().embedding.slice_forward(y, ids, run.in(w), rows, columns, slice, begin);
               const T* const grad = run.in(dy);
               ops<T>().embedding.slice_backward(dw, ids, grad, rows, columns, slice, begin);
               ops<T>().embedding.slice_backward(added, ids, grad, rows, columns, slice, begin,
                                                 /*accumulate=*/true);
             },
             {{"y", rows_of(tokens, back(w), C, V, first), kExact},
              {"dw", sum_by_token(tokens, back(dy), C, V, first), kExact},
              {"dw added", sum_by_token(tokens, back(dy), C, V, first, before), kExact}});
  }
}

TEST_CASE_TEMPLATE("embedding: the sum of three tables, and rows scattered among zeros", T, float, Bf16) {
  for (const int64_t C : {1, 17, 64, 1024}) {
    const int64_t N = 131, M = 37;
    const auto tokens = random_tokens(N, 11, 1), positions = random_tokens(N, 7, 2),
               segments = random_tokens(N, 2, 3);
    const auto word = as<T>(random_values(11 * C, 4)), position = as<T>(random_values(7 * C, 5)),
               type = as<T>(random_values(2 * C, 6)), x = as<T>(random_values(M * C, 7));
    const Values a = rows_of(tokens, back(word), C, 11, 0), b = rows_of(segments, back(type), C, 2, 0),
                 d = rows_of(positions, back(position), C, 7, 0), wide_x = back(x);
    Values sum, scattered(static_cast<size_t>(N * C), 0.0F);
    for (size_t i = 0; i < a.size(); ++i) sum.push_back((a[i] + b[i]) + d[i]);
    std::vector<int32_t> rows;
    for (int64_t m = 0; m < M; ++m) {
      rows.push_back(static_cast<int32_t>((m * 50) % N));  // distinct: N is prime
      std::copy_n(wide_x.begin() + m * C, C, scattered.begin() + rows.back() * C);
    }
    check_op(what("embedding_sum_forward, scatter_rows", kDType<T>, {{"N", N}, {"C", C}, {"M", M}}),
             [&](Run& run) {
               T* const y = run.out<T>(N * C);
               T* const among_zeros = run.out<T>(N * C);
               ops<T>().embedding.sum_forward(y, run.in(tokens), run.in(positions), run.in(segments),
                                              run.in(word), run.in(position), run.in(type), N, C);
               ops<T>().embedding.scatter_rows(among_zeros, run.in(rows), run.in(x), M, N, C);
             },
             {{"sum", back(as<T>(sum)), kExact}, {"scattered", scattered, kExact}});
  }
}

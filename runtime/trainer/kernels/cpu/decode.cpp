#include "runtime/trainer/kernels/decode.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/trainer/kernels/cpu/dispatch.h"
#include "runtime/trainer/kernels/cpu/parallel.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kTogether = 4;           // rows whose sums are in registers at a time
constexpr int kLanes = 16;                 // partial sums of a row, in a fixed order
constexpr int64_t kWorthThread = 1 << 14;  // weights

SHARDRUN_INLINE float wide(float value) {
  return value;
}
SHARDRUN_INLINE float wide(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

template <int Rows, typename W>
SHARDRUN_INLINE void row_products(float* __restrict y, const W* __restrict w, const float* __restrict x,
                                  int64_t C) {
  float partial[Rows][kLanes] = {};
  const int64_t whole = C / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int row = 0; row < Rows; ++row) {
      for (int lane = 0; lane < kLanes; ++lane)
        partial[row][lane] += wide(w[row * C + i + lane]) * x[i + lane];
    }
  }
  for (int row = 0; row < Rows; ++row) {
    for (int64_t i = whole; i < C; ++i) partial[row][i - whole] += wide(w[row * C + i]) * x[i];
    float sum = 0.0f;
    for (const float lane : partial[row]) sum += lane;
    y[row] = sum;
  }
}

template <typename W>
SHARDRUN_INLINE void products(float* y, const W* w, const float* x, int64_t rows, int64_t C) {
  int64_t row = 0;
  for (; row + kTogether <= rows; row += kTogether) row_products<kTogether>(y + row, w + row * C, x, C);
  for (; row < rows; ++row) row_products<1>(y + row, w + row * C, x, C);
}

template <typename W>
void multiply_rows(float* y, const W* w, const float* x, int64_t O, int64_t C) {
  const int64_t groups = (O + kTogether - 1) / kTogether;
  const int64_t smallest = std::max<int64_t>(1, kWorthThread / (kTogether * std::max<int64_t>(1, C)));
  parallel_for(groups, smallest, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTogether, last = std::min(O, end * kTogether);
    vector::dispatch<products<W>>(y + first, w + first * C, x, last - first, C);
  });
}

}  // namespace

void multiply(float* y, const float* w, const float* x, int64_t O, int64_t C) {
  multiply_rows(y, w, x, O, C);
}
void multiply(float* y, const Bf16* w, const float* x, int64_t O, int64_t C) {
  multiply_rows(y, w, x, O, C);
}

void attend(float* out, const float* q, const KeptHeads& kept, int64_t begin, int64_t end, float* scores) {
  const int64_t D = kept.D, group = kept.H / kept.K, count = end - begin;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const int64_t smallest = std::max<int64_t>(1, kWorthThread / std::max<int64_t>(1, count * D));
  parallel_for(kept.H, smallest, [&](int64_t first, int64_t last) {
    for (int64_t h = first; h < last; ++h) {
      const int64_t at = (h / group * kept.capacity + begin) * D;
      float* const row = scores + h * count;
      vector::dispatch<products<float>>(row, kept.keys + at, q + h * D, count, D);
      vector::scale(row, scale, count);
      const float sum = vector::exp_shifted(row, row, vector::maximum(row, count), count);
      std::fill_n(out + h * D, D, 0.0f);
      for (int64_t t = 0; t < count; ++t)
        vector::add_scaled(out + h * D, row[t], kept.values + at + t * D, D);
      vector::scale(out + h * D, 1.0f / sum, D);
    }
  });
}

}  // namespace shardrun::kernels

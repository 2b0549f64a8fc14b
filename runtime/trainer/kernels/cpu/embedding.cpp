// Rows that tokens choose.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/trainer/kernels/cpu/ops.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

constexpr int64_t kSmallestRows = 16, kSmallestColumns = 64;           // fewer are not worth a thread
constexpr int64_t kSmallestSliceRows = 4, kSmallestSliceColumns = 16;  // of a slice, which is shorter

std::vector<float> scratch(int64_t count) {
  return std::vector<float>(count);
}

template <typename T>
class CpuEmbedding final : public EmbeddingOps<T> {
 public:
  void forward(T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C) const override {
    for (int64_t n = 0; n < N; ++n)
      std::memcpy(y + n * C, w + tokens[n] * C, static_cast<size_t>(C) * sizeof(T));
  }

  void backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                bool accumulate) const override {
    // Each thread owns some columns, so that a row's sum has one order.
    parallel_for(C, kSmallestColumns, [&](int64_t begin, int64_t end) {
      const int64_t columns = end - begin;
      for (int64_t v = 0; v < V && !accumulate; ++v) std::fill_n(dw + v * C + begin, columns, 0.0f);
      std::vector<float> wide = scratch(columns);
      for (int64_t n = 0; n < N; ++n) {
        float* row = dw + tokens[n] * C + begin;
        vector::add(row, row, vector::load(dy + n * C + begin, wide.data(), columns), columns);
      }
    });
  }

  void sum_forward(T* y, const int32_t* tokens, const int32_t* positions, const int32_t* segments,
                   const T* word, const T* position, const T* type, int64_t N, int64_t C) const override {
    parallel_for(N, kSmallestRows, [&](int64_t begin, int64_t end) {
      std::vector<float> buffers = scratch(4 * C);
      for (int64_t n = begin; n < end; ++n) {
        float* out = vector::target(y + n * C, buffers.data());
        vector::add(out, vector::load(word + tokens[n] * C, buffers.data() + C, C),
                    vector::load(type + segments[n] * C, buffers.data() + 2 * C, C), C);
        vector::add(out, out, vector::load(position + positions[n] * C, buffers.data() + 3 * C, C), C);
        vector::store(y + n * C, out, C);
      }
    });
  }

  void slice_forward(float* y, const int32_t* tokens, const T* w, int64_t N, int64_t C, int64_t V,
                     int64_t first) const override {
    parallel_for(N, kSmallestSliceRows, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        float* row = y + n * C;
        if (!is_in_slice(tokens[n], first, V)) {
          std::fill_n(row, C, 0.0F);
        } else if (const T* from = w + (tokens[n] - first) * C; vector::load(from, row, C) != row) {
          std::memcpy(row, from, static_cast<size_t>(C) * sizeof(float));
        }
      }
    });
  }

  void slice_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                      int64_t first, bool accumulate) const override {
    parallel_for(C, kSmallestSliceColumns, [&](int64_t begin, int64_t end) {
      const int64_t columns = end - begin;
      for (int64_t v = 0; v < V && !accumulate; ++v) std::fill_n(dw + v * C + begin, columns, 0.0F);
      std::vector<float> wide(columns);
      for (int64_t n = 0; n < N; ++n) {
        if (!is_in_slice(tokens[n], first, V)) continue;
        float* row = dw + (tokens[n] - first) * C + begin;
        vector::add(row, row, vector::load(dy + n * C + begin, wide.data(), columns), columns);
      }
    });
  }

  void scatter_rows(T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C) const override {
    const size_t row_bytes = static_cast<size_t>(C) * sizeof(T);
    std::memset(static_cast<void*>(y), 0, static_cast<size_t>(N) * row_bytes);
    for (int64_t m = 0; m < M; ++m) std::memcpy(y + rows[m] * C, x + m * C, row_bytes);
  }

 private:
  static bool is_in_slice(int64_t token, int64_t first, int64_t V) {
    return token >= first && token < first + V;
  }
};

}  // namespace

template <typename T>
const EmbeddingOps<T>& cpu_embedding() {
  static const CpuEmbedding<T> ops;
  return ops;
}
template const EmbeddingOps<float>& cpu_embedding();
template const EmbeddingOps<Bf16>& cpu_embedding();

}  // namespace shardrun::kernels

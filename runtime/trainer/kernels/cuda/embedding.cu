// Embeddings: rows of a table forward; backward, the rows of the gradient that belong to a token, in ascending order.
//
// Backward sorts (token, row) by token. The sort is stable, so the rows of one token stay ascending, and one block
// then adds them up for each row of the table: no atomics, and the same order of additions as on the CPU.
#include <bit>

#include <cub/device/device_radix_sort.cuh>

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Row blockIdx.x of y becomes the table's row of its token, or zeros for a token outside [first, first + V).
template <int W, typename Out, typename T>
__global__ void __launch_bounds__(kThreads)
    copy_rows(Out* y, const int32_t* tokens, const T* w, int64_t C, int64_t V, int64_t first) {
  const int64_t row = tokens[blockIdx.x] - first;
  Out* const out = y + int64_t{blockIdx.x} * C;
  const bool is_here = row >= 0 && row < V;
  for (int64_t c = int64_t{threadIdx.x} * W; c < C; c += int64_t{blockDim.x} * W) {
    float values[W] = {};
    if (is_here) load(values, w + row * C + c);
    store(out + c, values);
  }
}

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    sum_three_rows(T* y, const int32_t* tokens, const int32_t* positions, const int32_t* segments,
                   const T* word, const T* position, const T* type, int64_t C) {
  const int64_t n = blockIdx.x;
  const T* const a = word + tokens[n] * C;
  const T* const b = type + segments[n] * C;
  const T* const d = position + positions[n] * C;
  for (int64_t c = int64_t{threadIdx.x} * W; c < C; c += int64_t{blockDim.x} * W) {
    float sum[W], more[W], last[W];
    load(sum, a + c);
    load(more, b + c);
    load(last, d + c);
#pragma unroll
    for (int j = 0; j < W; ++j) sum[j] = sum[j] + more[j] + last[j];
    store(y + n * C + c, sum);
  }
}

template <int W, typename T>
__global__ void __launch_bounds__(kThreads) scatter(T* y, const int32_t* rows, const T* x, int64_t C) {
  const T* const in = x + int64_t{blockIdx.x} * C;
  T* const out = y + rows[blockIdx.x] * C;
  for (int64_t c = int64_t{threadIdx.x} * W; c < C; c += int64_t{blockDim.x} * W) {
    float values[W];
    load(values, in + c);
    store(out + c, values);
  }
}

__global__ void __launch_bounds__(kThreads) count_up(int32_t* numbers, int count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) numbers[i] = static_cast<int32_t>(i);
}

// Writes to begins[v] how many of the sorted tokens are below first + v, for v in [0, V]: the rows of token first +
// v are order[begins[v]] … order[begins[v + 1] - 1].
__global__ void __launch_bounds__(kThreads)
    find_begins(int32_t* begins, const uint32_t* sorted, int count, int64_t V, int64_t first) {
  const int64_t v = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (v > V) return;
  int low = 0, high = count;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (static_cast<int64_t>(sorted[middle]) < first + v) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  begins[v] = low;
}

// Row blockIdx.x of dw becomes the sum of dy's rows that have its token.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    sum_rows_of_token(float* dw, const int32_t* begins, const int32_t* order, const T* dy, int64_t C,
                      bool accumulate) {
  const int64_t v = blockIdx.x;
  const int begin = begins[v], end = begins[v + 1];
  if (accumulate && begin == end) return;
  for (int64_t c = int64_t{threadIdx.x} * W; c < C; c += int64_t{blockDim.x} * W) {
    float sum[W] = {};
    if (accumulate) load(sum, dw + v * C + c);
#pragma unroll 4
    for (int i = begin; i < end; ++i) {
      float values[W];
      load(values, dy + order[i] * C + c);
#pragma unroll
      for (int j = 0; j < W; ++j) sum[j] += values[j];
    }
    store(dw + v * C + c, sum);
  }
}

template <typename Out, typename T>
void rows_of(OpScope& op, Out* y, const int32_t* tokens, const T* w, int64_t N, int64_t C, int64_t V,
             int64_t first) {
  if (!op.runs() || N == 0 || C == 0) return;
  constexpr int W = kWidth<T>;
  const bool vectors = C % W == 0 && are_aligned(y, w);
  launch(op.stream(), {static_cast<unsigned>(N), row_threads(vectors ? C / W : C)},
         vectors ? copy_rows<W, Out, T> : copy_rows<1, Out, T>, y, tokens, w, C, V, first);
}

// Tokens are below 2^bits.
template <typename T>
void gradient(OpScope& op, float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
              int64_t first, int bits, bool accumulate) {
  if (!op.runs() || V == 0 || C == 0) return;
  if (N == 0 && accumulate) return;
  if (N == 0) {
    op.check(cudaMemsetAsync(dw, 0, static_cast<size_t>(V * C) * sizeof(float), op.stream()));
    return;
  }
  const auto count = static_cast<int>(N);
  const auto* const keys = reinterpret_cast<const uint32_t*>(tokens);
  const int64_t array = rounded_up(N * 4, kAlignment), table = rounded_up((V + 1) * 4, kAlignment);
  size_t sort_bytes = 0;
  if (!op.check(cub::DeviceRadixSort::SortPairs(
          nullptr, sort_bytes, keys, static_cast<uint32_t*>(nullptr), static_cast<const int32_t*>(nullptr),
          static_cast<int32_t*>(nullptr), count, 0, bits, op.stream()))) {
    return;
  }
  std::byte* const base = op.scratch(static_cast<size_t>(3 * array + table) + sort_bytes);
  if (base == nullptr) return;
  auto* const numbers = reinterpret_cast<int32_t*>(base);
  auto* const order = reinterpret_cast<int32_t*>(base + array);
  auto* const sorted = reinterpret_cast<uint32_t*>(base + 2 * array);
  auto* const begins = reinterpret_cast<int32_t*>(base + 3 * array);
  std::byte* const sort_space = base + 3 * array + table;

  const auto blocks_for = [](int64_t threads) {
    return static_cast<unsigned>(quotient_up(threads, kThreads));
  };
  launch(op.stream(), {blocks_for(N), kThreads}, count_up, numbers, count);
  if (!op.check(cub::DeviceRadixSort::SortPairs(sort_space, sort_bytes, keys, sorted,
                                                static_cast<const int32_t*>(numbers), order, count, 0, bits,
                                                op.stream()))) {
    return;
  }
  launch(op.stream(), {blocks_for(V + 1), kThreads}, find_begins, begins, sorted, count, V, first);
  constexpr int W = kWidth<T>;
  const bool vectors = C % W == 0 && are_aligned(dw, dy);
  launch(op.stream(), {static_cast<unsigned>(V), row_threads(vectors ? C / W : C)},
         vectors ? sum_rows_of_token<W, T> : sum_rows_of_token<1, T>, dw, begins, order, dy, C, accumulate);
}

template <typename T>
class GpuEmbedding final : public EmbeddingOps<T> {
 public:
  explicit GpuEmbedding(Device& device) : device_(device) {}

  void forward(T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C) const override {
    OpScope op(device_, "embedding_forward");
    rows_of(op, y, tokens, w, N, C, INT64_MAX, 0);
  }

  void backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                bool accumulate) const override {
    OpScope op(device_, "embedding_backward");
    const int bits = V > 1 ? static_cast<int>(std::bit_width(static_cast<uint64_t>(V - 1))) : 1;
    gradient(op, dw, tokens, dy, N, C, V, 0, bits, accumulate);
  }

  void sum_forward(T* y, const int32_t* tokens, const int32_t* positions, const int32_t* segments,
                   const T* word, const T* position, const T* type, int64_t N, int64_t C) const override {
    OpScope op(device_, "embedding_sum_forward");
    if (!op.runs() || N == 0 || C == 0) return;
    constexpr int W = kWidth<T>;
    const bool vectors = C % W == 0 && are_aligned(y, word, position, type);
    launch(op.stream(), {static_cast<unsigned>(N), row_threads(vectors ? C / W : C)},
           vectors ? sum_three_rows<W, T> : sum_three_rows<1, T>, y, tokens, positions, segments, word,
           position, type, C);
  }

  void slice_forward(float* y, const int32_t* tokens, const T* w, int64_t N, int64_t C, int64_t V,
                     int64_t first) const override {
    OpScope op(device_, "embedding_slice_forward");
    rows_of(op, y, tokens, w, N, C, V, first);
  }

  void slice_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                      int64_t first, bool accumulate) const override {
    OpScope op(device_, "embedding_slice_backward");
    gradient(op, dw, tokens, dy, N, C, V, first, 31, accumulate);
  }

  void scatter_rows(T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C) const override {
    OpScope op(device_, "scatter_rows");
    if (!op.runs() || N == 0 || C == 0) return;
    if (!op.check(cudaMemsetAsync(y, 0, static_cast<size_t>(N * C) * sizeof(T), op.stream())) || M == 0)
      return;
    constexpr int W = kWidth<T>;
    const bool vectors = C % W == 0 && are_aligned(y, x);
    launch(op.stream(), {static_cast<unsigned>(M), row_threads(vectors ? C / W : C)},
           vectors ? scatter<W, T> : scatter<1, T>, y, rows, x, C);
  }

 private:
  Device& device_;
};

}  // namespace

template <typename T>
std::unique_ptr<EmbeddingOps<T>> make_embedding(Device& device) {
  return std::make_unique<GpuEmbedding<T>>(device);
}
template std::unique_ptr<EmbeddingOps<float>> make_embedding(Device&);
template std::unique_ptr<EmbeddingOps<Bf16>> make_embedding(Device&);

}  // namespace shardrun::kernels::cuda

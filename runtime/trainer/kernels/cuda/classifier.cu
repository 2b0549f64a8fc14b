// Softmax and cross-entropy with the gradient: each row has a block, which reads it twice, the second time
// from the cache.
//
// The first pass keeps a running maximum and the sum of exponentials below it (Milakov & Gimelshein 2018); the
// second writes the gradient, over the logits if the caller wants that. Losses are summed in fp64 by one block.
#include <cfloat>

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"
#include "runtime/trainer/kernels/cuda/vectors.cuh"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// The largest of some numbers and Σ exp(number - largest). The start is finite, so that no difference is NaN unless a
// number is.
struct Online {
  float largest = -FLT_MAX, sum = 0.0F;

  template <int W>
  __device__ void take(const float (&values)[W]) {
    float most = largest;
#pragma unroll
    for (int j = 0; j < W; ++j) most = fmaxf(most, values[j]);
    sum *= expf(largest - most);
#pragma unroll
    for (int j = 0; j < W; ++j) sum += expf(values[j] - most);
    largest = most;
  }
  __device__ void take(const Online& other) {
    const float most = fmaxf(largest, other.largest);
    sum = sum * expf(largest - most) + other.sum * expf(other.largest - most);
    largest = most;
  }
};

struct OnlineOfWarps {
  float largest[kWarps], sum[kWarps];
};

// Reduces a row of V logits, in one order; every thread of the block gets the same bits.
template <int W>
__device__ Online largest_and_sum(const float* row, int64_t V) {
  auto& [largest_of_warp, sum_of_warp] = shared_memory<OnlineOfWarps>();
  Online mine;
  for (int64_t v = int64_t{threadIdx.x} * W; v < V; v += int64_t{kThreads} * W) {
    float values[W];
    load(values, row + v);
    mine.take(values);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    Online other;
    other.largest = __shfl_down_sync(0xffffffffU, mine.largest, offset);
    other.sum = __shfl_down_sync(0xffffffffU, mine.sum, offset);
    mine.take(other);  // only the first lane's result counts
  }
  if (threadIdx.x % 32 == 0) {
    largest_of_warp[threadIdx.x / 32] = mine.largest;
    sum_of_warp[threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  Online all;
  for (int warp = 0; warp < kWarps; ++warp) {
    Online other;
    other.largest = largest_of_warp[warp];
    other.sum = sum_of_warp[warp];
    all.take(other);
  }
  return all;
}

// Writes the gradient to drow, which may be row. A `target` outside the row is none of its logits.
template <int W, typename T>
__device__ void write_gradient(T* drow, const float* row, int64_t V, float largest, float scale,
                               int64_t target, float loss_scale) {
  for (int64_t v = int64_t{threadIdx.x} * W; v < V; v += int64_t{kThreads} * W) {
    float values[W];
    load(values, row + v);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      values[j] = expf(values[j] - largest) * scale;
      if (v + j == target) values[j] -= loss_scale;
    }
    store(drow + v, values);
  }
}

template <int W, typename T>
__device__ void write_zeros(T* row, int64_t V) {
  const float zeros[W] = {};
  for (int64_t v = int64_t{threadIdx.x} * W; v < V; v += int64_t{kThreads} * W) store(row + v, zeros);
}

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    classify_rows(double* losses, T* dlogits, const float* logits, const int32_t* targets, int64_t V,
                  float loss_scale) {
  const int64_t n = blockIdx.x, target = targets[n];
  const float* const row = logits + n * V;
  T* const drow = dlogits + n * V;
  if (target < 0) {
    if (threadIdx.x == 0) losses[n] = 0.0;
    write_zeros<W>(drow, V);
    return;
  }
  const float target_logit = row[target];  // read before the barrier behind which rows are overwritten
  const Online all = largest_and_sum<W>(row, V);
  if (threadIdx.x == 0) losses[n] = log(static_cast<double>(all.sum)) + all.largest - target_logit;
  write_gradient<W>(drow, row, V, all.largest, loss_scale / all.sum, target, loss_scale);
}

template <int W>
__global__ void __launch_bounds__(kThreads)
    measure_slices(float* stats, const float* logits, const int32_t* targets, int64_t V, int64_t first) {
  const int64_t n = blockIdx.x;
  const float* const row = logits + n * V;
  const Online all = largest_and_sum<W>(row, V);
  if (threadIdx.x != 0) return;
  const int64_t target = targets[n] - first;
  stats[n * kSliceStats] = all.largest;
  stats[n * kSliceStats + 1] = all.sum;
  stats[n * kSliceStats + 2] = target >= 0 && target < V ? row[target] : 0.0F;
}

struct LargestAndScale {
  float largest, scale;
};

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    classify_slices(double* losses, T* dlogits, const float* logits, const float* gathered,
                    const int32_t* targets, int64_t N, int64_t V, int64_t first, int ranks,
                    float loss_scale) {
  auto& [shared_largest, shared_scale] = shared_memory<LargestAndScale>();
  const int64_t n = blockIdx.x;
  T* const drow = dlogits + n * V;
  if (targets[n] < 0) {
    if (threadIdx.x == 0) losses[n] = 0.0;
    write_zeros<W>(drow, V);
    return;
  }
  if (threadIdx.x == 0) {
    const auto stat = [&](int rank, int which) { return gathered[(rank * N + n) * kSliceStats + which]; };
    float largest = stat(0, 0), target_logit = 0.0F;
    for (int rank = 1; rank < ranks; ++rank) largest = fmaxf(largest, stat(rank, 0));
    double sum = 0.0;
    for (int rank = 0; rank < ranks; ++rank) {
      sum += static_cast<double>(stat(rank, 1)) * exp(static_cast<double>(stat(rank, 0) - largest));
      target_logit += stat(rank, 2);
    }
    losses[n] = log(sum) + largest - target_logit;
    shared_largest = largest;
    shared_scale = static_cast<float>(loss_scale / sum);
  }
  __syncthreads();
  write_gradient<W>(drow, logits + n * V, V, shared_largest, shared_scale, targets[n] - first, loss_scale);
}

__global__ void __launch_bounds__(kThreads) sum_losses(double* sum, const double* losses, int64_t N) {
  double total[1] = {0.0};
  for (int64_t n = threadIdx.x; n < N; n += kThreads) total[0] += losses[n];
  block_sum(total);
  if (threadIdx.x == 0) *sum = total[0];
}

// What follows puts the kernels on a stream.

// Sums the losses of the rows, which `classify(losses)` fills into scratch, into *loss_sum.
template <typename Classify>
void with_losses(OpScope& op, double* loss_sum, int64_t N, const Classify& classify) {
  auto* const losses = reinterpret_cast<double*>(op.scratch(static_cast<size_t>(N) * sizeof(double)));
  if (!op.runs()) return;
  if (N > 0) classify(losses);
  launch(op.stream(), {1, kThreads}, sum_losses, loss_sum, losses, N);
}

template <typename T>
class GpuClassifier final : public ClassifierOps<T> {
 public:
  explicit GpuClassifier(Device& device) : device_(device) {}

  void cross_entropy(double* loss_sum, T* dlogits, const float* logits, const int32_t* targets, int64_t N,
                     int64_t V, float loss_scale) const override {
    OpScope op(device_, "cross_entropy");
    with_losses(op, loss_sum, N, [&](double* losses) {
      const auto rows = static_cast<unsigned>(N);
      const bool vectors = V % 4 == 0 && are_aligned(dlogits, logits);
      launch(op.stream(), {rows, kThreads}, vectors ? classify_rows<4, T> : classify_rows<1, T>, losses,
             dlogits, logits, targets, V, loss_scale);
    });
  }

  void slice_stats(float* stats, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                   int64_t first) const override {
    OpScope op(device_, "classifier_slice_stats");
    if (!op.runs() || N == 0) return;
    const auto rows = static_cast<unsigned>(N);
    const bool vectors = V % 4 == 0 && are_aligned(logits);
    launch(op.stream(), {rows, kThreads}, vectors ? measure_slices<4> : measure_slices<1>, stats, logits,
           targets, V, first);
  }

  void cross_entropy_slice(double* loss_sum, T* dlogits, const float* logits, const float* gathered,
                           const int32_t* targets, int64_t N, int64_t V, int64_t first, int ranks,
                           float loss_scale) const override {
    OpScope op(device_, "cross_entropy_slice");
    with_losses(op, loss_sum, N, [&](double* losses) {
      const auto rows = static_cast<unsigned>(N);
      const bool vectors = V % 4 == 0 && are_aligned(dlogits, logits);
      launch(op.stream(), {rows, kThreads}, vectors ? classify_slices<4, T> : classify_slices<1, T>, losses,
             dlogits, logits, gathered, targets, N, V, first, ranks, loss_scale);
    });
  }

 private:
  Device& device_;
};

}  // namespace

template <typename T>
std::unique_ptr<ClassifierOps<T>> make_classifier(Device& device) {
  return std::make_unique<GpuClassifier<T>>(device);
}
template std::unique_ptr<ClassifierOps<float>> make_classifier(Device&);
template std::unique_ptr<ClassifierOps<Bf16>> make_classifier(Device&);

}  // namespace shardrun::kernels::cuda

// Attention: the choice between the tensor cores (attention_tensor.cu) and the plain kernels below, which take
// any head size up to 256 and any type, with a block for each query or key, in fp32. The plain ones are for tests
// and small heads.
#include "runtime/trainer/kernels/cuda/attention_problem.cuh"
#include "runtime/trainer/kernels/cuda/attention_tensor.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"
#include "runtime/trainer/kernels/cuda/vectors.cuh"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMostD = 256;  // two columns for each thread

template <typename T>
__device__ void copy_vector(float* to, const T* from, int D) {
  for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) to[d] = wide(from[d]);
}

template <typename T>
__device__ float dot(const float* shared_vector, const T* vector, int D) {
  float sum = 0.0F;
  for (int d = 0; d < D; ++d) sum += shared_vector[d] * wide(vector[d]);
  return sum;
}

// Adds to sums[i], for columns threadIdx.x and threadIdx.x + kThreads, Σ_j weights[j] · row j of `rows`,
// in ascending j.
template <typename T>
__device__ void add_rows(float (&sums)[2], const float* weights, const T* rows, int64_t stride, int count,
                         int D) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int d = static_cast<int>(threadIdx.x) + i * kThreads;
    if (d >= D) continue;
    for (int j = 0; j < count; ++j) sums[i] += weights[j] * wide(rows[j * stride + d]);
  }
}

template <typename T>
__device__ void write_vector(T* to, const float (&values)[2], float factor, int D) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int d = static_cast<int>(threadIdx.x) + i * kThreads;
    if (d < D) to[d] = narrow<T>(values[i] * factor);
  }
}

struct QueryAndWeights {
  float q[kMostD], weights[kThreads];
};
struct QueryParts {
  float q[kMostD], dy[kMostD], weights[kThreads];
};
struct KeyParts {
  float k[kMostD], v[kMostD], weights[kThreads], gradients[kThreads];
};

// Block (t, h, b) takes one query against 128 keys at a time, with a thread for each key.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    forward_plainly(T* out, float* lse, const T* qkv, AttentionProblem p) {
  auto& [q, weights] = shared_memory<QueryAndWeights>();
  const int t = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y),
            b = static_cast<int>(blockIdx.z);
  const int j = static_cast<int>(threadIdx.x), k_head = p.key_head(h);
  const Sight sight = p.sight(b);
  copy_vector(q, qkv + p.at(b, t, h), p.D);
  __syncthreads();
  float largest = -INFINITY, sum = 0.0F, sums[2] = {0.0F, 0.0F};
  const TileRange range = key_tiles(sight, t, 1, kThreads);
  for (int tile = range.first; tile < range.last; ++tile) {
    const int u0 = tile * kThreads, u = u0 + j;
    weights[j] = sight.sees(t, u) ? dot(q, qkv + p.at(b, u, k_head), p.D) * p.scale : -INFINITY;
    __syncthreads();
    float most = largest;
    for (int i = 0; i < kThreads; ++i) most = fmaxf(most, weights[i]);
    const float base = most == -INFINITY ? 0.0F : most, shrink = expf(largest - base);
    largest = most;
    const float mine = expf(weights[j] - base);
    __syncthreads();  // wait until every thread has looked for the maximum
    weights[j] = mine;
    __syncthreads();
    sum *= shrink;
    for (int i = 0; i < kThreads; ++i) sum += weights[i];
    sums[0] *= shrink;
    sums[1] *= shrink;
    add_rows(sums, weights, qkv + p.at(b, u0, k_head + p.K), p.stride, smaller(kThreads, p.T - u0), p.D);
    __syncthreads();  // wait until every thread has used the weights
  }
  write_vector(out + p.out_at(b, t, h), sums, sum > 0.0F ? 1.0F / sum : 0.0F, p.D);
  if (j == 0) lse[p.stat_at(b, h) + t] = sum > 0.0F ? largest + logf(sum) : 0.0F;
}

// Block (t, h, b) computes dq of one query.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    query_gradient_plainly(T* dqkv, const T* dout, const T* qkv, const float* lse, const float* delta,
                           AttentionProblem p) {
  auto& [q, dy, weights] = shared_memory<QueryParts>();
  const int t = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y),
            b = static_cast<int>(blockIdx.z);
  const int j = static_cast<int>(threadIdx.x), k_head = p.key_head(h);
  const Sight sight = p.sight(b);
  copy_vector(q, qkv + p.at(b, t, h), p.D);
  copy_vector(dy, dout + p.out_at(b, t, h), p.D);
  __syncthreads();
  const float my_lse = lse[p.stat_at(b, h) + t], my_delta = delta[p.stat_at(b, h) + t];
  float sums[2] = {0.0F, 0.0F};
  const TileRange range = key_tiles(sight, t, 1, kThreads);
  for (int tile = range.first; tile < range.last; ++tile) {
    const int u0 = tile * kThreads, u = u0 + j;
    float gradient = 0.0F;
    if (sight.sees(t, u)) {
      const float weight = expf(dot(q, qkv + p.at(b, u, k_head), p.D) * p.scale - my_lse);
      gradient = weight * (dot(dy, qkv + p.at(b, u, k_head + p.K), p.D) - my_delta);
    }
    weights[j] = gradient;
    __syncthreads();
    add_rows(sums, weights, qkv + p.at(b, u0, k_head), p.stride, smaller(kThreads, p.T - u0), p.D);
    __syncthreads();
  }
  write_vector(dqkv + p.at(b, t, h), sums, p.scale, p.D);
}

// Block (u, key head, b) computes dk and dv of one key, over the heads that share it and 128 queries at a time,
// with a thread for each query.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    key_gradient_plainly(T* dqkv, const T* dout, const T* qkv, const float* lse, const float* delta,
                         AttentionProblem p) {
  auto& [k, v, weights, gradients] = shared_memory<KeyParts>();
  const int u = static_cast<int>(blockIdx.x), k_head = p.H + static_cast<int>(blockIdx.y);
  const int b = static_cast<int>(blockIdx.z), j = static_cast<int>(threadIdx.x), group = p.H / p.K;
  const Sight sight = p.sight(b);
  copy_vector(k, qkv + p.at(b, u, k_head), p.D);
  copy_vector(v, qkv + p.at(b, u, k_head + p.K), p.D);
  __syncthreads();
  float dk[2] = {0.0F, 0.0F}, dv[2] = {0.0F, 0.0F};
  const TileRange range = query_tiles(sight, u, kThreads);
  for (int h = static_cast<int>(blockIdx.y) * group; h < static_cast<int>(blockIdx.y + 1) * group; ++h) {
    for (int tile = range.first; tile < range.last; ++tile) {
      const int t0 = tile * kThreads, t = t0 + j, count = smaller(kThreads, p.T - t0);
      float weight = 0.0F, gradient = 0.0F;
      if (sight.sees(t, u)) {
        const int64_t stat = p.stat_at(b, h) + t;
        weight = expf(dot(k, qkv + p.at(b, t, h), p.D) * p.scale - lse[stat]);
        gradient = weight * (dot(v, dout + p.out_at(b, t, h), p.D) - delta[stat]);
      }
      weights[j] = weight;
      gradients[j] = gradient;
      __syncthreads();
      add_rows(dv, weights, dout + p.out_at(b, t0, h), p.out_stride, count, p.D);
      add_rows(dk, gradients, qkv + p.at(b, t0, h), p.stride, count, p.D);
      __syncthreads();
    }
  }
  write_vector(dqkv + p.at(b, u, k_head), dk, p.scale, p.D);
  write_vector(dqkv + p.at(b, u, k_head + p.K), dv, 1.0F, p.D);
}

// Computes delta (B,H,T) = Σ dout·out of each token and head, with a warp for each. rows = B·T·H, in the order of out.
template <typename T>
__global__ void __launch_bounds__(kThreads) sum_products(float* delta, const T* dout, const T* out,
                                                         int64_t rows, int64_t length, int64_t heads, int D) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  float sum = 0.0F;
  for (int d = static_cast<int>(threadIdx.x) % 32; d < D; d += 32)
    sum += wide(dout[row * D + d]) * wide(out[row * D + d]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
  const int64_t head = row % heads, token = row / heads;
  if (threadIdx.x % 32 == 0) delta[(token / length * heads + head) * length + token % length] = sum;
}

// There is one block for each token. A vector takes W angles of a head and the W values that stand half a
// head behind theirs.
template <int W, typename T>
__global__ void __launch_bounds__(kMostRowThreads)
    rope_rows(T* x, const float* table, int64_t length, int heads, int half, int64_t stride, float sign) {
  T* const row = x + int64_t{blockIdx.x} * stride;
  const float* const angles = table + int64_t{blockIdx.x} % length * 2 * half;
  const int packs = half / W;
  for (int i = static_cast<int>(threadIdx.x); i < heads * packs; i += static_cast<int>(blockDim.x)) {
    const int at = i % packs * W;
    T* const first = row + int64_t{i / packs} * 2 * half + at;
    float a[W], b[W], cosines[W], sines[W];
    load(a, first);
    load(b, first + half);
    load(cosines, angles + at);
    load(sines, angles + half + at);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const float sine = sign * sines[j], before = a[j];
      a[j] = before * cosines[j] - b[j] * sine;
      b[j] = b[j] * cosines[j] + before * sine;
    }
    store(first, a);
    store(first + half, b);
  }
}

// What follows puts the kernels on a stream.

// Runs `pass` by cuDNN if the device has it for this; returns false if something else has to run it.
template <typename Run>
bool runs_by_cudnn(OpScope& op, CudnnAttention::Pass pass, const AttentionShape& shape,
                   const Visibility& visibility, const Run& run) {
  CudnnAttention* const cudnn = op.state().cudnn.get();
  if (cudnn == nullptr || !CudnnAttention::takes(shape, visibility)) return false;
  const auto bytes = cudnn->prepared(pass, shape, visibility.causal);
  if (!bytes) return false;
  std::byte* const workspace = op.scratch(*bytes);
  if (!op.runs()) return true;
  const base::Result<void> done = run(*cudnn, workspace);
  if (!done) op.fail(done.error().code(), done.error().to_string());
  return true;
}

// Says whether there is anything to do; the shape's own promises are checked.
bool begins_work(const OpScope& op, const AttentionShape& s) {
  SHARDRUN_CHECK(s.D <= kMostD && s.K > 0 && s.H % s.K == 0 && s.B < 65536 && s.H < 65536);
  return op.runs() && s.B > 0 && s.T > 0;
}

template <typename T>
class GpuAttention final : public AttentionOps<T> {
 public:
  explicit GpuAttention(Device& device) : device_(device) {}

  void rope(T* x, const float* table, int64_t B, int64_t length, int64_t heads, int64_t D, int64_t stride,
            bool inverse) const override {
    OpScope op(device_, "rope");
    const int64_t half = D / 2;
    if (!op.runs() || B * length == 0 || heads * half == 0) return;
    constexpr int W = kWidth<T>;
    const float sign = inverse ? -1.0F : 1.0F;
    const auto rows = static_cast<unsigned>(B * length);
    const int heads32 = static_cast<int>(heads), half32 = static_cast<int>(half);
    const bool vectors = half % W == 0 && stride % W == 0 && are_aligned(x, table);
    launch(op.stream(), {rows, row_threads(vectors ? heads * half / W : heads * half)},
           vectors ? rope_rows<W, T> : rope_rows<1, T>, x, table, length, heads32, half32, stride, sign);
  }

  void forward(T* out, float* lse, const T* qkv, const AttentionShape& shape,
               const Visibility& visibility) const override {
    OpScope op(device_, "attention_forward");
    if (!begins_work(op, shape)) return;
    if constexpr (std::is_same_v<T, Bf16>) {
      const auto run = [&](CudnnAttention& cudnn, void* workspace) {
        return cudnn.forward(op.stream(), workspace, out, lse, qkv, shape, visibility.causal);
      };
      if (are_aligned(out, qkv) && runs_by_cudnn(op, CudnnAttention::Pass::kForward, shape, visibility, run))
        return;
      if (tensor_attention_takes(shape) && are_aligned(out, qkv))
        return tensor_attention_forward(op, out, lse, qkv, shape, visibility);
    }
    launch(op.stream(), {attention_grid(shape, shape.H, 1), kThreads}, forward_plainly<T>, out, lse, qkv,
           AttentionProblem(shape, visibility));
  }

  void backward(T* dqkv, const T* dout, const T* out, const T* qkv, const float* lse,
                const AttentionShape& shape, const Visibility& visibility) const override {
    OpScope op(device_, "attention_backward");
    if (!begins_work(op, shape)) return;
    if constexpr (std::is_same_v<T, Bf16>) {
      const auto run = [&](CudnnAttention& cudnn, void* workspace) {
        return cudnn.backward(op.stream(), workspace, dqkv, dout, out, qkv, lse, shape, visibility.causal);
      };
      if (are_aligned(dqkv, dout, out, qkv) &&
          runs_by_cudnn(op, CudnnAttention::Pass::kBackward, shape, visibility, run)) {
        return;
      }
    }
    const int64_t rows = shape.B * shape.T * shape.H;
    auto* const delta = reinterpret_cast<float*>(op.scratch(static_cast<size_t>(rows) * sizeof(float)));
    if (!op.runs()) return;
    launch(op.stream(), {static_cast<unsigned>(quotient_up(rows, kThreads / 32)), kThreads}, sum_products<T>,
           delta, dout, out, rows, shape.T, shape.H, static_cast<int>(shape.D));
    if constexpr (std::is_same_v<T, Bf16>) {
      if (tensor_attention_takes(shape) && are_aligned(dqkv, dout, qkv))
        return tensor_attention_backward(op, dqkv, dout, qkv, lse, delta, shape, visibility);
    }
    const AttentionProblem problem(shape, visibility);
    launch(op.stream(), {attention_grid(shape, shape.H, 1), kThreads}, query_gradient_plainly<T>, dqkv, dout,
           qkv, lse, delta, problem);
    launch(op.stream(), {attention_grid(shape, shape.K, 1), kThreads}, key_gradient_plainly<T>, dqkv, dout,
           qkv, lse, delta, problem);
  }

  void shared_forward(T*, float*, const T*, const T*, const AttentionShape&,
                      const Visibility&) const override {
    OpScope(device_, "attention_shared_forward").fail(base::Code::kUnsupported, kNoSharing);
  }
  void shared_backward(T*, float*, const T*, const T*, const T*, const T*, const float*,
                       const AttentionShape&, const Visibility&) const override {
    OpScope(device_, "attention_shared_backward").fail(base::Code::kUnsupported, kNoSharing);
  }

 private:
  static constexpr const char* kNoSharing = "ranks on GPUs do not share sequences";
  Device& device_;
};

}  // namespace

template <typename T>
std::unique_ptr<AttentionOps<T>> make_attention(Device& device) {
  return std::make_unique<GpuAttention<T>>(device);
}
template std::unique_ptr<AttentionOps<float>> make_attention(Device&);
template std::unique_ptr<AttentionOps<Bf16>> make_attention(Device&);

}  // namespace shardrun::kernels::cuda

// RMSNorm and LayerNorm, forward and backward: a block for each row, in fp32. A row is read again for its second
// pass while it is still in the cache.
//
// Gradients of weights are summed in two steps of fixed order: block b takes the rows b, b + blocks, b + 2·blocks …
// and keeps its sums in shared memory, where every thread owns its columns; then the blocks' sums are added in
// order. The number of blocks depends on the number of rows alone, so the bits do not depend on the GPU's size.
#include <algorithm>

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"
#include "runtime/trainer/kernels/cuda/vectors.cuh"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kMostThreads = 256;
constexpr int64_t kMostBlocks = 512;  // most blocks of a backward pass

// Loads the row's elements at `at`, after the residual was added to them in place if there is one.
template <int W, bool kResidual, typename T>
__device__ void load_row(float (&values)[W], T* x, const T* residual, int64_t at) {
  load(values, x + at);
  if constexpr (kResidual) {
    float more[W];
    load(more, residual + at);
#pragma unroll
    for (int j = 0; j < W; ++j) values[j] = wide(narrow<T>(values[j] + more[j]));  // what backward will read
    store(x + at, values);
  }
}

template <int W, bool kResidual, typename T>
__global__ void __launch_bounds__(kMostThreads)
    rmsnorm_rows(T* y, float* rrms, T* x, const T* residual, const T* w, int64_t C, float epsilon) {
  const int64_t begin = int64_t{blockIdx.x} * C, first = int64_t{threadIdx.x} * W,
                step = int64_t{blockDim.x} * W;
  float squares[1] = {0.0F};
  for (int64_t c = first; c < C; c += step) {
    float values[W];
    load_row<W, kResidual>(values, x, residual, begin + c);
#pragma unroll
    for (int j = 0; j < W; ++j) squares[0] += values[j] * values[j];
  }
  block_sum(squares);
  const float r = 1.0F / sqrtf(squares[0] / static_cast<float>(C) + epsilon);
  if (threadIdx.x == 0) rrms[blockIdx.x] = r;
  for (int64_t c = first; c < C; c += step) {
    float values[W], weights[W];
    load(values, x + begin + c);
    load(weights, w + c);
#pragma unroll
    for (int j = 0; j < W; ++j) values[j] = values[j] * r * weights[j];
    store(y + begin + c, values);
  }
}

// Computes, with r = 1/rms and g = dy·w:  dx += r·g - x·r³·mean(g·x), and the blocks' sums (blocks, C) of dy·x·r.
template <int W, typename T>
__global__ void __launch_bounds__(kMostThreads)
    rmsnorm_gradient_rows(T* dx, float* sums, const T* dy, const T* x, const T* w, const float* rrms,
                          int64_t N, int64_t C) {
  // These are W planes of C/W, so that neighbouring threads use neighbouring banks.
  float* const own = dynamic_shared_memory<float>();
  const int64_t packs = C / W, first = threadIdx.x, step = blockDim.x;
  for (int64_t pack = first; pack < packs; pack += step) {
#pragma unroll
    for (int j = 0; j < W; ++j) own[j * packs + pack] = 0.0F;
  }
  for (int64_t n = blockIdx.x; n < N; n += gridDim.x) {
    const float r = rrms[n];
    const int64_t begin = n * C;
    float dot[1] = {0.0F};
    for (int64_t pack = first; pack < packs; pack += step) {
      float grad[W], in[W], weights[W];
      load(grad, dy + begin + pack * W);
      load(in, x + begin + pack * W);
      load(weights, w + pack * W);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float product = grad[j] * in[j] * r;
        own[j * packs + pack] += product;
        dot[0] += product * weights[j];
      }
    }
    block_sum(dot);
    const float pull = r * r * (dot[0] / static_cast<float>(C));
    for (int64_t pack = first; pack < packs; pack += step) {
      float grad[W], in[W], weights[W], before[W];
      load(grad, dy + begin + pack * W);
      load(in, x + begin + pack * W);
      load(weights, w + pack * W);
      load(before, dx + begin + pack * W);
#pragma unroll
      for (int j = 0; j < W; ++j) before[j] += grad[j] * r * weights[j] - pull * in[j];
      store(dx + begin + pack * W, before);
    }
  }
  for (int64_t pack = first; pack < packs; pack += step) {
    float values[W];
#pragma unroll
    for (int j = 0; j < W; ++j) values[j] = own[j * packs + pack];
    store(sums + int64_t{blockIdx.x} * C + pack * W, values);
  }
}

template <int W, bool kResidual, typename T>
__global__ void __launch_bounds__(kMostThreads)
    layernorm_rows(T* y, float* means, float* rstds, T* x, const T* residual, const T* gamma, const T* beta,
                   int64_t C, float epsilon) {
  const int64_t begin = int64_t{blockIdx.x} * C, first = int64_t{threadIdx.x} * W,
                step = int64_t{blockDim.x} * W;
  float sum[1] = {0.0F}, squares[1] = {0.0F};
  for (int64_t c = first; c < C; c += step) {
    float values[W];
    load_row<W, kResidual>(values, x, residual, begin + c);
#pragma unroll
    for (int j = 0; j < W; ++j) sum[0] += values[j];
  }
  block_sum(sum);
  const float mean = sum[0] / static_cast<float>(C);
  for (int64_t c = first; c < C; c += step) {
    float values[W];
    load(values, x + begin + c);
#pragma unroll
    for (int j = 0; j < W; ++j) squares[0] += (values[j] - mean) * (values[j] - mean);
  }
  block_sum(squares);
  const float rstd = 1.0F / sqrtf(squares[0] / static_cast<float>(C) + epsilon);
  if (threadIdx.x == 0) {
    means[blockIdx.x] = mean;
    rstds[blockIdx.x] = rstd;
  }
  for (int64_t c = first; c < C; c += step) {
    float values[W], scale[W], shift[W];
    load(values, x + begin + c);
    load(scale, gamma + c);
    load(shift, beta + c);
#pragma unroll
    for (int j = 0; j < W; ++j) values[j] = (values[j] - mean) * rstd * scale[j] + shift[j];
    store(y + begin + c, values);
  }
}

// Computes, with n the normalised row and g = dy·gamma:  dx = rstd·(g - mean(g) - n·mean(g·n)), and the blocks' sums
// (blocks, C) of dy·n in `gamma_sums` and of dy in `beta_sums`. dx may be dy: a thread reads what it overwrites.
template <int W, typename T>
__global__ void __launch_bounds__(kMostThreads)
    layernorm_gradient_rows(T* dx, float* gamma_sums, float* beta_sums, const T* dy, const T* x,
                            const T* gamma, const float* means, const float* rstds, int64_t N, int64_t C) {
  float* const own = dynamic_shared_memory<float>();  // W planes of C/W for gamma, then as many for beta
  const int64_t packs = C / W, first = threadIdx.x, step = blockDim.x;
  for (int64_t pack = first; pack < packs; pack += step) {
#pragma unroll
    for (int j = 0; j < W; ++j) own[j * packs + pack] = own[C + j * packs + pack] = 0.0F;
  }
  for (int64_t n = blockIdx.x; n < N; n += gridDim.x) {
    const float mean = means[n], rstd = rstds[n];
    const int64_t begin = n * C;
    float dots[2] = {0.0F, 0.0F};
    for (int64_t pack = first; pack < packs; pack += step) {
      float grad[W], in[W], scale[W];
      load(grad, dy + begin + pack * W);
      load(in, x + begin + pack * W);
      load(scale, gamma + pack * W);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float normal = (in[j] - mean) * rstd, g = grad[j] * scale[j];
        own[j * packs + pack] += grad[j] * normal;
        own[C + j * packs + pack] += grad[j];
        dots[0] += g;
        dots[1] += g * normal;
      }
    }
    block_sum(dots);
    const float mean_g = dots[0] / static_cast<float>(C), mean_gn = dots[1] / static_cast<float>(C);
    for (int64_t pack = first; pack < packs; pack += step) {
      float grad[W], in[W], scale[W];
      load(grad, dy + begin + pack * W);
      load(in, x + begin + pack * W);
      load(scale, gamma + pack * W);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        grad[j] = rstd * (grad[j] * scale[j] - mean_g - (in[j] - mean) * rstd * mean_gn);
      }
      store(dx + begin + pack * W, grad);
    }
  }
  for (int64_t pack = first; pack < packs; pack += step) {
    float of_gamma[W], of_beta[W];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      of_gamma[j] = own[j * packs + pack];
      of_beta[j] = own[C + j * packs + pack];
    }
    store(gamma_sums + int64_t{blockIdx.x} * C + pack * W, of_gamma);
    store(beta_sums + int64_t{blockIdx.x} * C + pack * W, of_beta);
  }
}

// What follows puts the kernels on a stream.

// Returns how many elements a thread takes at once in rows of C.
template <typename T, typename... Pointers>
int width_of(int64_t C, const Pointers*... pointers) {
  return C % kWidth<T> == 0 && are_aligned(pointers...) ? kWidth<T> : 1;
}

// Starts a block for each row of `packs` vectors.
template <typename... Parameters>
void launch_rows(OpScope& op, int64_t N, int64_t packs, void (*kernel)(Parameters...),
                 std::type_identity_t<Parameters>... arguments) {
  launch(op.stream(), {static_cast<unsigned>(N), row_threads(packs, kMostThreads)}, kernel, arguments...);
}

// A backward pass: its blocks keep the sums of `arrays` gradients of weights, (blocks, C) each; then those are summed.
class WeightGradients {
 public:
  WeightGradients(OpScope& op, int64_t N, int64_t C, int arrays)
      : op_(op),
        blocks_(std::min(N, kMostBlocks)),
        C_(C),
        arrays_(arrays),
        bytes_of_array_(rounded_up(blocks_ * C * static_cast<int64_t>(sizeof(float)), kAlignment)),
        base_(op.scratch(static_cast<size_t>(bytes_of_array_ * arrays) + sum_rows_bytes(blocks_, C))) {}

  float* array(int which) const { return reinterpret_cast<float*>(base_ + bytes_of_array_ * which); }

  // `kernel` takes rows of C / width vectors and fills the arrays.
  template <typename... Parameters>
  void launch_blocks(int width, void (*kernel)(Parameters...),
                     std::type_identity_t<Parameters>... arguments) {
    const size_t shared = static_cast<size_t>(arrays_) * static_cast<size_t>(C_) * sizeof(float);
    if (!op_.runs() || blocks_ == 0) return;
    launch(op_.stream(), {static_cast<unsigned>(blocks_), row_threads(C_ / width, kMostThreads), shared},
           kernel, arguments...);
  }
  void sum_into(float* out, int which) {
    if (!op_.runs()) return;
    sum_rows<float>(op_.stream(), out, array(which), blocks_, C_, false, base_ + bytes_of_array_ * arrays_);
  }

 private:
  OpScope& op_;
  int64_t blocks_, C_;
  int arrays_;
  int64_t bytes_of_array_;
  std::byte* base_;
};

template <typename T>
void rmsnorm(OpScope& op, T* y, float* rrms, T* x, const T* residual, const T* w, int64_t N, int64_t C,
             float epsilon) {
  if (!op.runs() || N == 0) return;
  constexpr int W = kWidth<T>;
  const int width = width_of<T>(C, y, x, residual, w);
  const auto kernel = residual == nullptr ? width == W ? rmsnorm_rows<W, false, T> : rmsnorm_rows<1, false, T>
                      : width == W ? rmsnorm_rows<W, true, T>
                                          : rmsnorm_rows<1, true, T>;
  launch_rows(op, N, C / width, kernel, y, rrms, x, residual, w, C, epsilon);
}

template <typename T>
class GpuNorms final : public NormOps<T> {
 public:
  explicit GpuNorms(Device& device) : device_(device) {}

  void rmsnorm_forward(T* y, float* rrms, const T* x, const T* w, int64_t N, int64_t C,
                       float epsilon) const override {
    OpScope op(device_, "rmsnorm_forward");
    // Without a residual it only reads x.
    rmsnorm<T>(op, y, rrms, const_cast<T*>(x), nullptr, w, N, C, epsilon);
  }

  void rmsnorm_residual_forward(T* y, float* rrms, T* x, const T* residual, const T* w, int64_t N, int64_t C,
                                float epsilon) const override {
    OpScope op(device_, "rmsnorm_residual_forward");
    rmsnorm(op, y, rrms, x, residual, w, N, C, epsilon);
  }

  void rmsnorm_backward(T* dx, float* dw, const T* dy, const T* x, const T* w, const float* rrms, int64_t N,
                        int64_t C) const override {
    OpScope op(device_, "rmsnorm_backward");
    WeightGradients gradients(op, N, C, 1);
    constexpr int W = kWidth<T>;
    const int width = width_of<T>(C, dx, dy, x, w);
    gradients.launch_blocks(width, width == W ? rmsnorm_gradient_rows<W, T> : rmsnorm_gradient_rows<1, T>, dx,
                            gradients.array(0), dy, x, w, rrms, N, C);
    gradients.sum_into(dw, 0);
  }

  // runtime/spec/gpu_rules.cpp refuses jobs that would come here.
  void head_norms_forward(T*, T*, float*, const T*, const AttentionShape&, float) const override {
    OpScope(device_, "head_norms_forward").fail(base::Code::kUnsupported, "a GPU has no norms of heads");
  }
  void head_norms_backward(T*, float*, const T*, const T*, const float*,
                           const AttentionShape&) const override {
    OpScope(device_, "head_norms_backward").fail(base::Code::kUnsupported, "a GPU has no norms of heads");
  }

  void layernorm_forward(T* y, float* mean, float* rstd, T* x, const T* residual, const T* gamma,
                         const T* beta, int64_t N, int64_t C, float epsilon) const override {
    OpScope op(device_, "layernorm_forward");
    if (!op.runs() || N == 0) return;
    constexpr int W = kWidth<T>;
    const int width = width_of<T>(C, y, x, residual, gamma, beta);
    const auto kernel = residual == nullptr
                            ? width == W ? layernorm_rows<W, false, T> : layernorm_rows<1, false, T>
                        : width == W ? layernorm_rows<W, true, T>
                                     : layernorm_rows<1, true, T>;
    launch_rows(op, N, C / width, kernel, y, mean, rstd, x, residual, gamma, beta, C, epsilon);
  }

  void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                          const float* mean, const float* rstd, int64_t N, int64_t C) const override {
    OpScope op(device_, "layernorm_backward");
    WeightGradients gradients(op, N, C, 2);
    constexpr int W = kWidth<T>;
    const int width = width_of<T>(C, dx, dy, x, gamma);
    gradients.launch_blocks(width, width == W ? layernorm_gradient_rows<W, T> : layernorm_gradient_rows<1, T>,
                            dx, gradients.array(0), gradients.array(1), dy, x, gamma, mean, rstd, N, C);
    gradients.sum_into(dgamma, 0);
    gradients.sum_into(dbeta, 1);
  }

 private:
  Device& device_;
};

}  // namespace

template <typename T>
std::unique_ptr<NormOps<T>> make_norms(Device& device) {
  return std::make_unique<GpuNorms<T>>(device);
}
template std::unique_ptr<NormOps<float>> make_norms(Device&);
template std::unique_ptr<NormOps<Bf16>> make_norms(Device&);

}  // namespace shardrun::kernels::cuda

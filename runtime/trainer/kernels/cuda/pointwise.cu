// Ops that treat every element, or every pair, by itself: conversions, SwiGLU, GELU, tanh, residual.
#include <algorithm>

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"
#include "runtime/trainer/kernels/cuda/vectors.cuh"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Runs body.at<W>(i) for every W-th i of [0, count), and body.at<1> for what is left.
template <int W, typename Body>
__global__ void __launch_bounds__(kThreads) over_elements(int64_t count, Body body) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, stride = int64_t{gridDim.x} * kThreads;
  const int64_t packs = count / W;
  for (int64_t pack = first; pack < packs; pack += stride) body.template at<W>(pack * W);
  if constexpr (W > 1) {
    for (int64_t i = packs * W + first; i < count; i += stride) body.template at<1>(i);
  }
}

// Compute y = f(a) and y = f(a, b), a value at a time; y may be a or b.
template <typename Function, typename Out, typename In>
struct Unary {
  Out* y;
  const In* a;
  template <int W>
  __device__ void at(int64_t i) const {
    float values[W];
    load(values, a + i);
#pragma unroll
    for (float& value : values) value = Function::of(value);
    store(y + i, values);
  }
};
template <typename Function, typename T>
struct Binary {
  T* y;
  const T *a, *b;
  template <int W>
  __device__ void at(int64_t i) const {
    float left[W], right[W];
    load(left, a + i);
    load(right, b + i);
#pragma unroll
    for (int j = 0; j < W; ++j) left[j] = Function::of(left[j], right[j]);
    store(y + i, left);
  }
};

// Computes Φ(x); erfc keeps its relative accuracy where Φ is small.
__device__ float normal_distribution(float x) {
  return 0.5F * erfcf(-0.70710678F * x);
}

struct Same {
  static __device__ float of(float x) { return x; }
};
struct Gelu {
  static __device__ float of(float x) { return x * normal_distribution(x); }
};
struct GeluGradient {
  static __device__ float of(float dy, float x) {
    return dy * (normal_distribution(x) + x * 0.39894228F * expf(-0.5F * x * x));
  }
};
struct Tanh {
  static __device__ float of(float x) { return tanhf(x); }
};
struct TanhGradient {
  static __device__ float of(float dy, float y) { return dy * (1.0F - y * y); }
};
struct Sum {
  static __device__ float of(float a, float b) { return a + b; }
};

// There is one block for each row.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads) swiglu_rows(T* y, const T* gate_up, int64_t F) {
  const T* const gate = gate_up + int64_t{blockIdx.x} * 2 * F;
  const T* const up = gate + F;
  T* const out = y + int64_t{blockIdx.x} * F;
  for (int64_t f = int64_t{threadIdx.x} * W; f < F; f += int64_t{blockDim.x} * W) {
    float g[W], u[W];
    load(g, gate + f);
    load(u, up + f);
#pragma unroll
    for (int j = 0; j < W; ++j) g[j] = g[j] / (1.0F + expf(-g[j])) * u[j];
    store(out + f, g);
  }
}

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_gradient_rows(T* dgate_up, const T* dy, const T* gate_up, int64_t F) {
  const T* const gate = gate_up + int64_t{blockIdx.x} * 2 * F;
  T* const dgate = dgate_up + int64_t{blockIdx.x} * 2 * F;
  const T* const grad = dy + int64_t{blockIdx.x} * F;
  for (int64_t f = int64_t{threadIdx.x} * W; f < F; f += int64_t{blockDim.x} * W) {
    float g[W], u[W], d[W];
    load(g, gate + f);
    load(u, gate + F + f);
    load(d, grad + f);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const float sigmoid = 1.0F / (1.0F + expf(-g[j]));
      u[j] *= d[j] * sigmoid * (1.0F + g[j] * (1.0F - sigmoid));
      d[j] *= g[j] * sigmoid;
    }
    store(dgate + f, u);
    store(dgate + F + f, d);
  }
}

// Columns of rows that are farther apart than they are long: y += scale·x, and y = scale·x.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_to_column_rows(T* y, const T* x, float scale, int64_t C, int64_t stride) {
  T* const out = y + int64_t{blockIdx.x} * stride;
  const T* const in = x + int64_t{blockIdx.x} * C;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    float sum[1], value[1];
    load(sum, out + c);
    load(value, in + c);
    sum[0] += scale * value[0];
    store(out + c, sum);
  }
}
template <typename T>
__global__ void __launch_bounds__(kThreads)
    take_column_rows(T* y, const T* x, float scale, int64_t C, int64_t stride) {
  T* const out = y + int64_t{blockIdx.x} * C;
  const T* const in = x + int64_t{blockIdx.x} * stride;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    float value[1];
    load(value, in + c);
    value[0] *= scale;
    store(out + c, value);
  }
}

// What follows puts the kernels on a stream.

template <int kVectorWidth, typename Body>
void launch_over(Device& device, const char* name, int64_t count, bool aligned, const Body& body) {
  OpScope op(device, name);
  if (!op.runs() || count == 0) return;
  const int64_t packs = aligned ? quotient_up(count, kVectorWidth) : count;
  // Enough blocks to fill the GPU several times over; each thread then has a few vectors.
  const int64_t most = int64_t{op.state().multiprocessors} * 32;
  const auto blocks = static_cast<unsigned>(std::min(quotient_up(packs, kThreads), most));
  launch(op.stream(), {blocks, kThreads},
         aligned ? over_elements<kVectorWidth, Body> : over_elements<1, Body>, count, body);
}

template <typename Function, typename Out, typename In>
void unary(Device& device, const char* name, Out* y, const In* x, int64_t count) {
  constexpr int kBoth = std::min(kWidth<Out>, kWidth<In>);  // 8 bytes of the narrower type, if they differ
  launch_over<kBoth>(device, name, count, are_aligned(y, x), Unary<Function, Out, In>{y, x});
}
template <typename Function, typename T>
void binary(Device& device, const char* name, T* y, const T* a, const T* b, int64_t count) {
  launch_over<kWidth<T>>(device, name, count, are_aligned(y, a, b), Binary<Function, T>{y, a, b});
}

template <typename T>
class GpuPointwise final : public PointwiseOps<T> {
 public:
  explicit GpuPointwise(Device& device) : device_(device) {}

  void swiglu_forward(T* y, const T* gate_up, int64_t N, int64_t F) const override {
    OpScope op(device_, "swiglu_forward");
    if (!op.runs() || N == 0 || F == 0) return;
    constexpr int W = kWidth<T>;
    const bool vectors = F % W == 0 && are_aligned(y, gate_up);
    launch(op.stream(), {static_cast<unsigned>(N), row_threads(vectors ? F / W : F)},
           vectors ? swiglu_rows<W, T> : swiglu_rows<1, T>, y, gate_up, F);
  }

  void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F) const override {
    OpScope op(device_, "swiglu_backward");
    if (!op.runs() || N == 0 || F == 0) return;
    constexpr int W = kWidth<T>;
    const bool vectors = F % W == 0 && are_aligned(dgate_up, dy, gate_up);
    launch(op.stream(), {static_cast<unsigned>(N), row_threads(vectors ? F / W : F)},
           vectors ? swiglu_gradient_rows<W, T> : swiglu_gradient_rows<1, T>, dgate_up, dy, gate_up, F);
  }

  void gelu_forward(T* y, const T* x, int64_t count) const override {
    unary<Gelu>(device_, "gelu_forward", y, x, count);
  }

  void gelu_backward(T* dx, const T* dy, const T* x, int64_t count) const override {
    binary<GeluGradient>(device_, "gelu_backward", dx, dy, x, count);
  }

  void tanh_forward(T* y, const T* x, int64_t count) const override {
    unary<Tanh>(device_, "tanh_forward", y, x, count);
  }

  void tanh_backward(T* dx, const T* dy, const T* y, int64_t count) const override {
    binary<TanhGradient>(device_, "tanh_backward", dx, dy, y, count);
  }

  void add(T* y, const T* a, const T* b, int64_t count) const override {
    binary<Sum>(device_, "add", y, a, b, count);
  }

  void add_to_columns(T* y, const T* x, float scale, int64_t N, int64_t C, int64_t stride) const override {
    OpScope op(device_, "add_to_columns");
    if (!op.runs() || N == 0 || C == 0) return;
    launch(op.stream(), {static_cast<unsigned>(N), row_threads(C)}, add_to_column_rows<T>, y, x, scale, C,
           stride);
  }

  void take_columns(T* y, const T* x, float scale, int64_t N, int64_t C, int64_t stride) const override {
    OpScope op(device_, "take_columns");
    if (!op.runs() || N == 0 || C == 0) return;
    launch(op.stream(), {static_cast<unsigned>(N), row_threads(C)}, take_column_rows<T>, y, x, scale, C,
           stride);
  }

  void from_fp32(T* out, const float* in, int64_t count) const override {
    unary<Same>(device_, "from_fp32", out, in, count);
  }

 private:
  Device& device_;
};

}  // namespace

template <typename T>
std::unique_ptr<PointwiseOps<T>> make_pointwise(Device& device) {
  return std::make_unique<GpuPointwise<T>>(device);
}
template std::unique_ptr<PointwiseOps<float>> make_pointwise(Device&);
template std::unique_ptr<PointwiseOps<Bf16>> make_pointwise(Device&);

}  // namespace shardrun::kernels::cuda

// AdamW, LAMB and sums of squares over flat spans. Spans may begin anywhere: where all of them are off a 16-byte
// boundary by as much, the elements before it are taken one at a time and the others four at a time.
#include <algorithm>

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int W = 4;
// Each block makes one sum. Their number does not follow the GPU's size, so that bits do not depend on the GPU.
constexpr int64_t kMostBlocks = 1024;

// How [0, count) is cut: `head` elements, then vectors of W, then the tail. Without a common alignment
// all of it is head.
struct Cut {
  int64_t count, head;
};

template <typename... Pointers>
Cut cut(int64_t count, const float* first, const Pointers*... others) {
  const auto offset = reinterpret_cast<uintptr_t>(first) % 16;
  const bool same = ((reinterpret_cast<uintptr_t>(others) % 16 == offset) && ...);
  const int64_t head = same ? static_cast<int64_t>((16 - offset) % 16 / sizeof(float)) : count;
  return {count, std::min(head, count)};
}

// Runs body.at<W>(i, more...) over the vectors of this thread, and body.at<1> over its single elements.
template <typename Body, typename... More>
__device__ void over_cut(const Cut& cut, const Body& body, More&... more) {
  const int64_t mine = int64_t{blockIdx.x} * kThreads + threadIdx.x, stride = int64_t{gridDim.x} * kThreads;
  const int64_t packs = (cut.count - cut.head) / W, tail = cut.head + packs * W;
  for (int64_t i = mine; i < cut.head; i += stride) body.template at<1>(i, more...);
  for (int64_t pack = mine; pack < packs; pack += stride) body.template at<W>(cut.head + pack * W, more...);
  for (int64_t i = tail + mine; i < cut.count; i += stride) body.template at<1>(i, more...);
}

unsigned blocks_for(const Cut& cut, int64_t most) {
  const int64_t items = std::max((cut.count - cut.head) / W, cut.head);
  return static_cast<unsigned>(std::clamp<int64_t>(quotient_up(items, kThreads), 1, most));
}

template <typename Body>
__global__ void __launch_bounds__(kThreads) run_over(Cut cut, Body body) {
  over_cut(cut, body);
}

// Writes to sums (gridDim.x, Body::kSums), in fp64, the sums of what body.at adds to its second argument.
template <typename Body>
__global__ void __launch_bounds__(kThreads) sum_over(double* sums, Cut cut, Body body) {
  double mine[Body::kSums] = {};
  over_cut(cut, body, mine);
  block_sum(mine);
  if (threadIdx.x == 0) {
    for (int k = 0; k < Body::kSums; ++k) sums[blockIdx.x * Body::kSums + k] = mine[k];
  }
}

template <int kSums>
__global__ void __launch_bounds__(kThreads) add_up(double* out, const double* sums, int count) {
  double mine[kSums] = {};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    for (int k = 0; k < kSums; ++k) mine[k] += sums[i * kSums + k];
  }
  block_sum(mine);
  if (threadIdx.x == 0) {
    for (int k = 0; k < kSums; ++k) out[k] = mine[k];
  }
}

// Computes out[k] = the sum over all elements of what `body` adds.
template <typename Body>
void sum_into(OpScope& op, double* out, const Cut& cut, const Body& body) {
  const unsigned blocks = blocks_for(cut, kMostBlocks);
  auto* const sums = reinterpret_cast<double*>(op.scratch(blocks * Body::kSums * sizeof(double)));
  if (!op.runs()) return;
  launch(op.stream(), {blocks, kThreads}, sum_over<Body>, sums, cut, body);
  launch(op.stream(), {1, kThreads}, add_up<Body::kSums>, out, sums, static_cast<int>(blocks));
}

template <typename Body>
void launch_over(OpScope& op, const Cut& cut, const Body& body) {
  if (!op.runs() || cut.count == 0) return;
  launch(op.stream(), {blocks_for(cut, int64_t{op.state().multiprocessors} * 32), kThreads}, run_over<Body>,
         cut, body);
}

// Update an element's moments by its gradient, and return the direction of its step: AdamW's and LAMB's.
template <typename Parameters>
__device__ void update_moments(float& m, float& v, float gradient, const Parameters& p) {
  const float g = gradient * p.gradient_scale;
  m = p.beta1 * m + (1.0F - p.beta1) * g;
  v = p.beta2 * v + (1.0F - p.beta2) * g * g;
}
template <typename Parameters>
__device__ float direction(float m, float v, float w, const Parameters& p) {
  return m / p.bias_correction1 / (sqrtf(v / p.bias_correction2) + p.epsilon) + p.weight_decay * w;
}

struct Widen {
  float* out;
  const Bf16* in;

  template <int kCount>
  __device__ void at(int64_t i) const {
    float values[kCount];
    load(values, in + i);
    store(out + i, values);
  }
};

struct AdamW {
  float *master, *moment1, *moment2;
  const float* gradient;
  AdamWParameters p;

  template <int kCount>
  __device__ void at(int64_t i) const {
    float w[kCount], m[kCount], v[kCount], g[kCount];
    load(w, master + i);
    load(m, moment1 + i);
    load(v, moment2 + i);
    load(g, gradient + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      update_moments(m[j], v[j], g[j], p);
      w[j] -= p.learning_rate * direction(m[j], v[j], w[j], p);
    }
    store(master + i, w);
    store(moment1 + i, m);
    store(moment2 + i, v);
  }
};

struct LambMeasure {
  static constexpr int kSums = 2;
  const float* master;
  float *moment1, *moment2;
  const float* gradient;
  LambParameters p;

  template <int kCount>
  __device__ void at(int64_t i, double (&sums)[kSums]) const {
    float w[kCount], m[kCount], v[kCount], g[kCount];
    load(w, master + i);
    load(m, moment1 + i);
    load(v, moment2 + i);
    load(g, gradient + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      update_moments(m[j], v[j], g[j], p);
      const float u = direction(m[j], v[j], w[j], p);
      sums[0] += static_cast<double>(w[j]) * w[j];
      sums[1] += static_cast<double>(u) * u;
    }
    store(moment1 + i, m);
    store(moment2 + i, v);
  }
};

struct LambApply {
  float* master;
  const float *moment1, *moment2, *rate;
  LambParameters p;

  template <int kCount>
  __device__ void at(int64_t i) const {
    float w[kCount], m[kCount], v[kCount];
    load(w, master + i);
    load(m, moment1 + i);
    load(v, moment2 + i);
    const float r = *rate;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      w[j] -= r * direction(m[j], v[j], w[j], p);
    }
    store(master + i, w);
  }
};

struct Squares {
  static constexpr int kSums = 1;
  const float* values;

  template <int kCount>
  __device__ void at(int64_t i, double (&sums)[kSums]) const {
    float v[kCount];
    load(v, values + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sums[0] += static_cast<double>(v[j]) * v[j];
  }
};

__global__ void add_values(double* y, const double* x, int64_t count) {
  if (threadIdx.x < count) y[threadIdx.x] += x[threadIdx.x];
}

class GpuOptimizer final : public OptimizerOps {
 public:
  explicit GpuOptimizer(Device& device) : device_(device), pointwise_(make_pointwise<Bf16>(device)) {}

  void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out) const override {
    SHARDRUN_CHECK(in.size() == out.size());
    static_assert(sizeof(Bf16) == sizeof(uint16_t));
    pointwise_->from_fp32(reinterpret_cast<Bf16*>(out.data()), in.data(), static_cast<int64_t>(in.size()));
  }

  void bf16_to_fp32(std::span<const Bf16> in, std::span<float> out) const override {
    SHARDRUN_CHECK(in.size() == out.size());
    OpScope op(device_, "bf16_to_fp32");
    Cut whole = cut(static_cast<int64_t>(in.size()), out.data());
    const auto first = reinterpret_cast<uintptr_t>(in.data() + whole.head);
    if (first % (W * sizeof(Bf16)) != 0) whole.head = whole.count;
    launch_over(op, whole, Widen{out.data(), in.data()});
  }

  void adamw_step(std::span<float> master, std::span<float> moment1, std::span<float> moment2,
                  std::span<const float> gradient, const AdamWParameters& parameters) const override {
    SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size() &&
                   master.size() == gradient.size());
    OpScope op(device_, "adamw_step");
    launch_over(op,
                cut(static_cast<int64_t>(master.size()), master.data(), moment1.data(), moment2.data(),
                    gradient.data()),
                AdamW{master.data(), moment1.data(), moment2.data(), gradient.data(), parameters});
  }

  void lamb_measure(LambSquares* squares, std::span<const float> master, std::span<float> moment1,
                    std::span<float> moment2, std::span<const float> gradient,
                    const LambParameters& parameters) const override {
    SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size() &&
                   master.size() == gradient.size());
    static_assert(sizeof(LambSquares) == 2 * sizeof(double) &&
                  offsetof(LambSquares, update) == sizeof(double));
    OpScope op(device_, "lamb_measure");
    sum_into(op, &squares->master,
             cut(static_cast<int64_t>(master.size()), master.data(), moment1.data(), moment2.data(),
                 gradient.data()),
             LambMeasure{master.data(), moment1.data(), moment2.data(), gradient.data(), parameters});
  }

  void lamb_apply(std::span<float> master, std::span<const float> moment1, std::span<const float> moment2,
                  const float* rate, const LambParameters& parameters) const override {
    SHARDRUN_CHECK(master.size() == moment1.size() && master.size() == moment2.size());
    OpScope op(device_, "lamb_apply");
    launch_over(op, cut(static_cast<int64_t>(master.size()), master.data(), moment1.data(), moment2.data()),
                LambApply{master.data(), moment1.data(), moment2.data(), rate, parameters});
  }

  void accumulate(double* y, const double* x, int64_t count) const override {
    SHARDRUN_CHECK(count <= 32);
    OpScope op(device_, "accumulate");
    if (op.runs() && count > 0) launch(op.stream(), {1, 32}, add_values, y, x, count);
  }

  void sum_of_squares(double* sum, std::span<const float> values) const override {
    OpScope op(device_, "sum_of_squares");
    sum_into(op, sum, cut(static_cast<int64_t>(values.size()), values.data()), Squares{values.data()});
  }

 private:
  Device& device_;
  std::unique_ptr<PointwiseOps<Bf16>> pointwise_;
};

}  // namespace

std::unique_ptr<OptimizerOps> make_optimizer(Device& device) {
  return std::make_unique<GpuOptimizer>(device);
}

}  // namespace shardrun::kernels::cuda

// The CPU as a backend: every op runs at once, on the caller's threads.
#include "runtime/trainer/kernels/backend.h"

#include <array>
#include <cstring>

namespace shardrun::kernels {
namespace {

template <typename T>
class CpuOps final : public Ops<T> {
 public:
  void linear_forward(T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const override {
    kernels::linear_forward(y, x, w, N, C, O);
  }
  void linear_forward_fp32(float* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const override {
    kernels::linear_forward_fp32(y, x, w, N, C, O);
  }
  void linear_bias_forward(T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                           int64_t O) const override {
    kernels::linear_bias_forward(y, x, w, bias, N, C, O);
  }
  void linear_bias_forward_fp32(float* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                                int64_t O) const override {
    kernels::linear_bias_forward_fp32(y, x, w, bias, N, C, O);
  }
  void linear_backward_input(T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O,
                             bool accumulate) const override {
    kernels::linear_backward_input(dx, dy, w, N, C, O, accumulate);
  }
  void linear_backward_input_fp32(float* dx, const T* dy, const T* w, int64_t N, int64_t C,
                                  int64_t O) const override {
    kernels::linear_backward_input_fp32(dx, dy, w, N, C, O);
  }
  void linear_backward_weight(float* dw, const T* dy, const T* x, int64_t N, int64_t C, int64_t O,
                              bool accumulate) const override {
    kernels::linear_backward_weight(dw, dy, x, N, C, O, accumulate);
  }
  void bias_backward(float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate) const override {
    kernels::bias_backward(dbias, dy, N, O, accumulate);
  }
  void embedding_forward(T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C) const override {
    kernels::embedding_forward(y, tokens, w, N, C);
  }
  void embedding_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                          bool accumulate) const override {
    kernels::embedding_backward(dw, tokens, dy, N, C, V, accumulate);
  }
  void embedding_sum_forward(T* y, const int32_t* tokens, const int32_t* positions, const int32_t* segments,
                             const T* word, const T* position, const T* type, int64_t N,
                             int64_t C) const override {
    kernels::embedding_sum_forward(y, tokens, positions, segments, word, position, type, N, C);
  }
  void embedding_slice_forward(float* y, const int32_t* tokens, const T* w, int64_t N, int64_t C, int64_t V,
                               int64_t first) const override {
    kernels::embedding_slice_forward(y, tokens, w, N, C, V, first);
  }
  void embedding_slice_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C,
                                int64_t V, int64_t first, bool accumulate) const override {
    kernels::embedding_slice_backward(dw, tokens, dy, N, C, V, first, accumulate);
  }
  void scatter_rows(T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C) const override {
    kernels::scatter_rows(y, rows, x, M, N, C);
  }
  void rmsnorm_forward(T* y, float* rrms, const T* x, const T* w, int64_t N, int64_t C,
                       float epsilon) const override {
    kernels::rmsnorm_forward(y, rrms, x, w, N, C, epsilon);
  }
  void rmsnorm_residual_forward(T* y, float* rrms, T* x, const T* residual, const T* w, int64_t N, int64_t C,
                                float epsilon) const override {
    kernels::add(x, residual, x, N * C);
    kernels::rmsnorm_forward(y, rrms, x, w, N, C, epsilon);
  }
  void rmsnorm_backward(T* dx, float* dw, const T* dy, const T* x, const T* w, const float* rrms, int64_t N,
                        int64_t C) const override {
    kernels::rmsnorm_backward(dx, dw, dy, x, w, rrms, N, C);
  }
  void layernorm_forward(T* y, float* mean, float* rstd, T* x, const T* residual, const T* gamma,
                         const T* beta, int64_t N, int64_t C, float epsilon) const override {
    kernels::layernorm_forward(y, mean, rstd, x, residual, gamma, beta, N, C, epsilon);
  }
  void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                          const float* mean, const float* rstd, int64_t N, int64_t C) const override {
    kernels::layernorm_backward(dx, dgamma, dbeta, dy, x, gamma, mean, rstd, N, C);
  }
  void rope(T* x, const float* table, int64_t B, int64_t length, int64_t heads, int64_t D, int64_t stride,
            bool inverse) const override {
    kernels::rope(x, table, B, length, heads, D, stride, inverse);
  }
  void attention_forward(T* out, float* lse, const T* qkv, const AttentionShape& shape,
                         const Visibility& visibility) const override {
    kernels::attention_forward(out, lse, qkv, shape, visibility);
  }
  void attention_backward(T* dqkv, const T* dout, const T* out, const T* qkv, const float* lse,
                          const AttentionShape& shape, const Visibility& visibility) const override {
    kernels::attention_backward(dqkv, dout, out, qkv, lse, shape, visibility);
  }
  void swiglu_forward(T* y, const T* gate_up, int64_t N, int64_t F) const override {
    kernels::swiglu_forward(y, gate_up, N, F);
  }
  void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F) const override {
    kernels::swiglu_backward(dgate_up, dy, gate_up, N, F);
  }
  void gelu_forward(T* y, const T* x, int64_t count) const override { kernels::gelu_forward(y, x, count); }
  void gelu_backward(T* dx, const T* dy, const T* x, int64_t count) const override {
    kernels::gelu_backward(dx, dy, x, count);
  }
  void tanh_forward(T* y, const T* x, int64_t count) const override { kernels::tanh_forward(y, x, count); }
  void tanh_backward(T* dx, const T* dy, const T* y, int64_t count) const override {
    kernels::tanh_backward(dx, dy, y, count);
  }
  void add(T* y, const T* a, const T* b, int64_t count) const override { kernels::add(y, a, b, count); }
  void from_fp32(T* out, const float* in, int64_t count) const override {
    kernels::from_fp32(out, in, count);
  }
  void cross_entropy(double* loss_sum, T* dlogits, const float* logits, const int32_t* targets, int64_t N,
                     int64_t V, float loss_scale) const override {
    *loss_sum = kernels::cross_entropy(dlogits, logits, targets, N, V, loss_scale);
  }
  void cross_entropy_slice(double* loss_sum, T* dlogits, const float* logits, const float* gathered,
                           const int32_t* targets, int64_t N, int64_t V, int64_t first, int ranks,
                           float loss_scale) const override {
    *loss_sum =
        kernels::cross_entropy_slice(dlogits, logits, gathered, targets, N, V, first, ranks, loss_scale);
  }
};

// Sums in fp64 in sixteen lanes: same bits for any thread count.
double squares_of(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double total = 0.0;
  for (double lane : lanes) total += lane;
  for (; i < values.size(); ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

class CpuBackend final : public Backend {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "CPU"; }
  int index() const override { return -1; }
  void* stream() const override { return nullptr; }
  Result<std::unique_ptr<base::DeviceLink>> make_link() override {
    return std::unique_ptr<base::DeviceLink>();
  }
  Result<const Fp8Ops*> fp8_ops() const override {
    return base::Error(
        base::Code::kUnsupported,
        "CPUs do not multiply fp8; remove [precision] fp8, or set [resources] device = \"gpu\"");
  }

  Result<base::Memory> allocate(int64_t bytes) override { return base::Memory::create(bytes); }
  void zero(void* memory, int64_t bytes) override { std::memset(memory, 0, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void upload(void* to, const void* host, int64_t bytes) override { copy(to, host, bytes); }
  Result<void> download(void* host, const void* from, int64_t bytes) override {
    copy(host, from, bytes);
    return {};
  }
  Result<void> read_aside(void* host, const void* from, int64_t bytes) override {
    return download(host, from, bytes);
  }
  Result<void> finish() override { return {}; }
  void stamp() override {}  // what was asked of it is done when a call returns
  Result<std::vector<int64_t>> take_stamps() override { return std::vector<int64_t>(); }

  Result<CudnnAttentionUse> use_cudnn_attention(const AttentionShape&, bool, int64_t) override {
    return base::Error(base::Code::kUnsupported, "cuDNN is for GPUs");
  }
  void use_own_attention() override {}
  Result<void> repeat(const Repetition&, const std::function<Result<void>()>& ops) override { return ops(); }
  void use_graphs(bool) override {}
  void tune_products(bool) override {}
  std::string product_table() const override { return ""; }
  Result<void> load_product_table(std::string_view) override { return {}; }
  std::vector<std::string> plain_products() const override { return {}; }

  void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out) override {
    kernels::fp32_to_bf16(in, out);
  }
  void rope_table(float* table, int64_t T, int64_t D, double theta) override {
    kernels::rope_table(table, T, D, theta);
  }
  void classifier_slice_stats(float* stats, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                              int64_t first) override {
    kernels::classifier_slice_stats(stats, logits, targets, N, V, first);
  }
  void accumulate(double* y, const double* x, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) y[i] += x[i];
  }
  void sum_of_squares(double* sum, std::span<const float> values) override { *sum = squares_of(values); }
  void adamw_step(std::span<float> master, std::span<float> moment1, std::span<float> moment2,
                  std::span<const float> gradient, const AdamWParameters& parameters) override {
    kernels::adamw_step(master, moment1, moment2, gradient, parameters);
  }
  void lamb_measure(LambSquares* squares, std::span<const float> master, std::span<float> moment1,
                    std::span<float> moment2, std::span<const float> gradient,
                    const LambParameters& parameters) override {
    *squares = kernels::lamb_measure(master, moment1, moment2, gradient, parameters);
  }
  void lamb_apply(std::span<float> master, std::span<const float> moment1, std::span<const float> moment2,
                  const float* rate, const LambParameters& parameters) override {
    kernels::lamb_apply(master, moment1, moment2, *rate, parameters);
  }

 private:
  const Ops<float>& fp32_ops() const override { return fp32_; }
  const Ops<Bf16>& bf16_ops() const override { return bf16_; }

  CpuOps<float> fp32_;
  CpuOps<Bf16> bf16_;
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace shardrun::kernels

// A GPU as a backend: every op is put on the device's stream. This file needs no CUDA header.
#include "runtime/trainer/kernels/cuda/backend.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/trainer/kernels/cuda/ops.h"

namespace shardrun::kernels::cuda {
namespace {

template <typename T>
class GpuOps final : public Ops<T> {
 public:
  explicit GpuOps(Device& device) : device_(device) {}

  void linear_forward(T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const override {
    cuda::linear_forward(device_, y, x, w, N, C, O);
  }
  void linear_forward_fp32(float* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const override {
    cuda::linear_forward_fp32(device_, y, x, w, N, C, O);
  }
  void linear_bias_forward(T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                           int64_t O) const override {
    cuda::linear_bias_forward(device_, y, x, w, bias, N, C, O);
  }
  void linear_bias_forward_fp32(float* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                                int64_t O) const override {
    cuda::linear_bias_forward_fp32(device_, y, x, w, bias, N, C, O);
  }
  void linear_backward_input(T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O,
                             bool accumulate) const override {
    cuda::linear_backward_input(device_, dx, dy, w, N, C, O, accumulate);
  }
  void linear_backward_input_fp32(float* dx, const T* dy, const T* w, int64_t N, int64_t C,
                                  int64_t O) const override {
    cuda::linear_backward_input_fp32(device_, dx, dy, w, N, C, O);
  }
  void linear_backward_weight(float* dw, const T* dy, const T* x, int64_t N, int64_t C, int64_t O,
                              bool accumulate) const override {
    cuda::linear_backward_weight(device_, dw, dy, x, N, C, O, accumulate);
  }
  void bias_backward(float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate) const override {
    cuda::bias_backward(device_, dbias, dy, N, O, accumulate);
  }
  void embedding_forward(T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C) const override {
    cuda::embedding_forward(device_, y, tokens, w, N, C);
  }
  void embedding_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                          bool accumulate) const override {
    cuda::embedding_backward(device_, dw, tokens, dy, N, C, V, accumulate);
  }
  void embedding_sum_forward(T* y, const int32_t* tokens, const int32_t* positions, const int32_t* segments,
                             const T* word, const T* position, const T* type, int64_t N,
                             int64_t C) const override {
    cuda::embedding_sum_forward(device_, y, tokens, positions, segments, word, position, type, N, C);
  }
  void embedding_slice_forward(float* y, const int32_t* tokens, const T* w, int64_t N, int64_t C, int64_t V,
                               int64_t first) const override {
    cuda::embedding_slice_forward(device_, y, tokens, w, N, C, V, first);
  }
  void embedding_slice_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C,
                                int64_t V, int64_t first, bool accumulate) const override {
    cuda::embedding_slice_backward(device_, dw, tokens, dy, N, C, V, first, accumulate);
  }
  void scatter_rows(T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C) const override {
    cuda::scatter_rows(device_, y, rows, x, M, N, C);
  }
  void rmsnorm_forward(T* y, float* rrms, const T* x, const T* w, int64_t N, int64_t C,
                       float epsilon) const override {
    cuda::rmsnorm_forward(device_, y, rrms, x, w, N, C, epsilon);
  }
  void rmsnorm_residual_forward(T* y, float* rrms, T* x, const T* residual, const T* w, int64_t N, int64_t C,
                                float epsilon) const override {
    cuda::rmsnorm_residual_forward(device_, y, rrms, x, residual, w, N, C, epsilon);
  }
  void rmsnorm_backward(T* dx, float* dw, const T* dy, const T* x, const T* w, const float* rrms, int64_t N,
                        int64_t C) const override {
    cuda::rmsnorm_backward(device_, dx, dw, dy, x, w, rrms, N, C);
  }
  void layernorm_forward(T* y, float* mean, float* rstd, T* x, const T* residual, const T* gamma,
                         const T* beta, int64_t N, int64_t C, float epsilon) const override {
    cuda::layernorm_forward(device_, y, mean, rstd, x, residual, gamma, beta, N, C, epsilon);
  }
  void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                          const float* mean, const float* rstd, int64_t N, int64_t C) const override {
    cuda::layernorm_backward(device_, dx, dgamma, dbeta, dy, x, gamma, mean, rstd, N, C);
  }
  void rope(T* x, const float* table, int64_t B, int64_t length, int64_t heads, int64_t D, int64_t stride,
            bool inverse) const override {
    cuda::rope(device_, x, table, B, length, heads, D, stride, inverse);
  }
  void attention_forward(T* out, float* lse, const T* qkv, const AttentionShape& shape,
                         const Visibility& visibility) const override {
    cuda::attention_forward(device_, out, lse, qkv, shape, visibility);
  }
  void attention_backward(T* dqkv, const T* dout, const T* out, const T* qkv, const float* lse,
                          const AttentionShape& shape, const Visibility& visibility) const override {
    cuda::attention_backward(device_, dqkv, dout, out, qkv, lse, shape, visibility);
  }
  void swiglu_forward(T* y, const T* gate_up, int64_t N, int64_t F) const override {
    cuda::swiglu_forward(device_, y, gate_up, N, F);
  }
  void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F) const override {
    cuda::swiglu_backward(device_, dgate_up, dy, gate_up, N, F);
  }
  void gelu_forward(T* y, const T* x, int64_t count) const override {
    cuda::gelu_forward(device_, y, x, count);
  }
  void gelu_backward(T* dx, const T* dy, const T* x, int64_t count) const override {
    cuda::gelu_backward(device_, dx, dy, x, count);
  }
  void tanh_forward(T* y, const T* x, int64_t count) const override {
    cuda::tanh_forward(device_, y, x, count);
  }
  void tanh_backward(T* dx, const T* dy, const T* y, int64_t count) const override {
    cuda::tanh_backward(device_, dx, dy, y, count);
  }
  void add(T* y, const T* a, const T* b, int64_t count) const override { cuda::add(device_, y, a, b, count); }
  void from_fp32(T* out, const float* in, int64_t count) const override {
    cuda::from_fp32(device_, out, in, count);
  }
  void cross_entropy(double* loss_sum, T* dlogits, const float* logits, const int32_t* targets, int64_t N,
                     int64_t V, float loss_scale) const override {
    cuda::cross_entropy(device_, loss_sum, dlogits, logits, targets, N, V, loss_scale);
  }
  void cross_entropy_slice(double* loss_sum, T* dlogits, const float* logits, const float* gathered,
                           const int32_t* targets, int64_t N, int64_t V, int64_t first, int ranks,
                           float loss_scale) const override {
    cuda::cross_entropy_slice(device_, loss_sum, dlogits, logits, gathered, targets, N, V, first, ranks,
                              loss_scale);
  }

 private:
  Device& device_;
};

class GpuFp8Ops final : public Fp8Ops {
 public:
  explicit GpuFp8Ops(Device& device) : device_(device) {}

  void quantize(const Fp8Matrix& out, Fp8Scaling* scaling, const Bf16* in, int64_t rows, int64_t columns,
                Fp8Scale scale) const override {
    fp8_quantize(device_, out, scaling, in, rows, columns, scale);
  }
  void linear_forward(Bf16* y, const Fp8Matrix& x, const Fp8Matrix& w, int64_t N, int64_t C,
                      int64_t O) const override {
    fp8_linear_forward(device_, y, x, w, N, C, O);
  }
  void linear_forward_fp32(float* y, const Fp8Matrix& x, const Fp8Matrix& w, int64_t N, int64_t C,
                           int64_t O) const override {
    fp8_linear_forward(device_, y, x, w, N, C, O);
  }
  void linear_backward_input(Bf16* dx, const Fp8Matrix& dy, const Fp8Matrix& w, int64_t N, int64_t C,
                             int64_t O) const override {
    fp8_linear_backward_input(device_, dx, dy, w, N, C, O);
  }
  void linear_backward_input_fp32(float* dx, const Fp8Matrix& dy, const Fp8Matrix& w, int64_t N, int64_t C,
                                  int64_t O) const override {
    fp8_linear_backward_input(device_, dx, dy, w, N, C, O);
  }
  void linear_backward_weight(float* dw, const Fp8Matrix& dy, const Fp8Matrix& x, int64_t N, int64_t C,
                              int64_t O, bool accumulate) const override {
    fp8_linear_backward_weight(device_, dw, dy, x, N, C, O, accumulate);
  }

 private:
  Device& device_;
};

// Pieces of pinned memory, taken in turn, through which the host's bytes go to the GPU in the order of its stream.
// So uploads do not wait for the GPU, unless the host is far ahead of it.
class Uploads {
 public:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;

  static Result<Uploads> create(base::DeviceLink& link) {
    Uploads uploads(link);
    ASSIGN_OR_RETURN(auto before, link.make_mark());
    uploads.before_ = std::move(before);
    for (Piece& piece : uploads.pieces_) {
      ASSIGN_OR_RETURN(auto memory, link.allocate_pinned(kPieceBytes));
      ASSIGN_OR_RETURN(auto copied, link.make_mark());
      piece = {std::move(memory), std::move(copied)};
    }
    return uploads;
  }

  Result<void> put(std::byte* to, const std::byte* from, int64_t bytes) {
    for (int64_t done = 0; done < bytes; done += kPieceBytes) {
      const auto count = static_cast<size_t>(std::min(kPieceBytes, bytes - done));
      RETURN_IF_ERROR(put_piece(pieces_[next_++ % pieces_.size()], to + done, from + done, count));
    }
    return {};
  }

 private:
  using Stream = base::DeviceLink::Stream;
  struct Piece {
    std::unique_ptr<base::DeviceLink::PinnedMemory> memory;
    std::unique_ptr<base::DeviceLink::Mark> copied;
    bool is_used = false;
  };

  explicit Uploads(base::DeviceLink& link) : link_(&link) {}

  Result<void> put_piece(Piece& piece, std::byte* to, const std::byte* from, size_t bytes) {
    while (piece.is_used) {
      ASSIGN_OR_RETURN(const auto free, link_->is_done(*piece.copied));
      if (free) break;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    piece.is_used = true;
    std::memcpy(piece.memory->bytes().data(), from, bytes);
    RETURN_IF_ERROR(link_->record(*before_, Stream::kCompute));
    RETURN_IF_ERROR(link_->wait(Stream::kIn, *before_));
    RETURN_IF_ERROR(link_->copy(Stream::kIn, to, piece.memory->bytes().data(), bytes));
    RETURN_IF_ERROR(link_->record(*piece.copied, Stream::kIn));
    return link_->wait(Stream::kCompute, *piece.copied);
  }

  base::DeviceLink* link_;
  std::unique_ptr<base::DeviceLink::Mark> before_;
  std::array<Piece, 12> pieces_;
  size_t next_ = 0;
};

class GpuBackend final : public Backend {
 public:
  GpuBackend(std::unique_ptr<Device> device, std::unique_ptr<base::DeviceLink> link, Uploads uploads,
             std::unique_ptr<base::DeviceLink::PinnedMemory> aside)
      : device_(std::move(device)),
        link_(std::move(link)),
        uploads_(std::move(uploads)),
        aside_(std::move(aside)),
        fp32_(*device_),
        bf16_(*device_),
        fp8_(*device_) {}

  DeviceKind kind() const override { return DeviceKind::kGpu; }
  std::string name() const override { return device_->name(); }
  int index() const override { return device_->index(); }
  void* stream() const override { return device_->stream(); }
  Result<std::unique_ptr<base::DeviceLink>> make_link() override { return device_->make_link(); }

  Result<const Fp8Ops*> fp8_ops() const override {
    constexpr int kOldest = 89;
    if (device_->capability() >= kOldest) return static_cast<const Fp8Ops*>(&fp8_);
    return base::Error(base::Code::kUnsupported,
                       device_->name() + " has compute capability " +
                           std::to_string(device_->capability() / 10) + "." +
                           std::to_string(device_->capability() % 10) +
                           ", fp8 needs 8.9; remove [precision] fp8, or choose newer GPUs");
  }

  Result<base::Memory> allocate(int64_t bytes) override {
    ASSIGN_OR_RETURN(auto memory, device_->allocate(bytes));
    device_->fill(memory.get(), 0, static_cast<size_t>(bytes));
    return base::Memory::adopt(memory.release(), bytes, [](std::byte* data) { FreesMemory()(data); });
  }
  void zero(void* memory, int64_t bytes) override { device_->fill(memory, 0, static_cast<size_t>(bytes)); }
  void copy(void* to, const void* from, int64_t bytes) override { device_->copy(to, from, bytes); }
  void upload(void* to, const void* host, int64_t bytes) override {
    if (upload_failure_) return;
    auto put = uploads_.put(static_cast<std::byte*>(to), static_cast<const std::byte*>(host), bytes);
    if (!put) upload_failure_ = std::move(put).error().context("upload");
  }
  Result<void> download(void* host, const void* from, int64_t bytes) override {
    if (upload_failure_) return *upload_failure_;
    return device_->copy_out(host, from, bytes);
  }
  Result<void> read_aside(void* host, const void* from, int64_t bytes) override {
    using Stream = base::DeviceLink::Stream;
    const auto piece = static_cast<int64_t>(aside_->bytes().size());
    for (int64_t done = 0; done < bytes; done += piece) {
      const auto count = static_cast<size_t>(std::min(piece, bytes - done));
      RETURN_IF_ERROR(link_->copy(Stream::kOut, aside_->bytes().data(),
                                  static_cast<const std::byte*>(from) + done, count));
      RETURN_IF_ERROR(link_->drain(Stream::kOut));
      std::memcpy(static_cast<std::byte*>(host) + done, aside_->bytes().data(), count);
    }
    return {};
  }
  void stamp() override { device_->stamp(); }
  Result<std::vector<int64_t>> take_stamps() override { return device_->take_stamps(); }
  Result<void> finish() override {
    if (upload_failure_) return *upload_failure_;
    return device_->synchronize();
  }

  Result<CudnnAttentionUse> use_cudnn_attention(const AttentionShape& shape, bool causal,
                                                int64_t most_bytes) override {
    ASSIGN_OR_RETURN(const auto bytes, device_->use_cudnn_attention(shape, causal, most_bytes));
    return CudnnAttentionUse{device_->cudnn_version(), bytes};
  }
  void use_own_attention() override { device_->use_own_attention(); }
  Result<void> repeat(const Repetition& what, const std::function<Result<void>()>& ops) override {
    return device_->repeat(what, ops);
  }
  void use_graphs(bool on) override { device_->use_graphs(on); }
  void tune_products(bool on) override { device_->tune_products(on); }
  std::string product_table() const override { return device_->product_table(); }
  Result<void> load_product_table(std::string_view text) override {
    return device_->load_product_table(text);
  }

  std::vector<std::string> plain_products() const override { return device_->plain_products(); }

  void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out) override {
    static_assert(sizeof(Bf16) == sizeof(uint16_t));
    cuda::fp32_to_bf16(*device_, in, {reinterpret_cast<Bf16*>(out.data()), out.size()});
  }
  void rope_table(float* table, int64_t T, int64_t D, double theta) override {
    cuda::rope_table(*device_, table, T, D, theta);
  }
  void classifier_slice_stats(float* stats, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                              int64_t first) override {
    cuda::classifier_slice_stats(*device_, stats, logits, targets, N, V, first);
  }
  void accumulate(double* y, const double* x, int64_t count) override {
    cuda::accumulate(*device_, y, x, count);
  }
  void sum_of_squares(double* sum, std::span<const float> values) override {
    cuda::sum_of_squares(*device_, sum, values);
  }
  void adamw_step(std::span<float> master, std::span<float> moment1, std::span<float> moment2,
                  std::span<const float> gradient, const AdamWParameters& parameters) override {
    cuda::adamw_step(*device_, master, moment1, moment2, gradient, parameters);
  }
  void lamb_measure(LambSquares* squares, std::span<const float> master, std::span<float> moment1,
                    std::span<float> moment2, std::span<const float> gradient,
                    const LambParameters& parameters) override {
    cuda::lamb_measure(*device_, squares, master, moment1, moment2, gradient, parameters);
  }
  void lamb_apply(std::span<float> master, std::span<const float> moment1, std::span<const float> moment2,
                  const float* rate, const LambParameters& parameters) override {
    cuda::lamb_apply(*device_, master, moment1, moment2, rate, parameters);
  }

 private:
  const Ops<float>& fp32_ops() const override { return fp32_; }
  const Ops<Bf16>& bf16_ops() const override { return bf16_; }

  std::unique_ptr<Device> device_;
  std::unique_ptr<base::DeviceLink> link_;
  Uploads uploads_;
  std::unique_ptr<base::DeviceLink::PinnedMemory> aside_;
  std::optional<base::Error> upload_failure_;  // the first failure
  GpuOps<float> fp32_;
  GpuOps<Bf16> bf16_;
  GpuFp8Ops fp8_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(std::unique_ptr<Device> device) {
  constexpr size_t kAsideBytes = size_t{4} << 20;
  ASSIGN_OR_RETURN(auto link, device->make_link());
  ASSIGN_OR_RETURN(auto uploads, Uploads::create(*link));
  ASSIGN_OR_RETURN(auto aside, (link)->allocate_pinned(kAsideBytes));
  return std::unique_ptr<Backend>(
      std::make_unique<GpuBackend>(std::move(device), std::move(link), std::move(uploads), std::move(aside)));
}

}  // namespace shardrun::kernels::cuda

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
        optimizer_(make_optimizer(*device_)),
        fp8_(make_fp8(*device_)) {}

  DeviceKind kind() const override { return DeviceKind::kGpu; }
  std::string name() const override { return device_->name(); }
  int index() const override { return device_->index(); }
  void* stream() const override { return device_->stream(); }
  Result<std::unique_ptr<base::DeviceLink>> make_link() override { return device_->make_link(); }

  const OptimizerOps& optimizer() const override { return *optimizer_; }
  Result<const Fp8Ops*> fp8_ops() const override {
    constexpr int kOldest = 89;
    if (device_->capability() >= kOldest) return static_cast<const Fp8Ops*>(fp8_.get());
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

 private:
  const Ops<float>& fp32_ops() const override { return fp32_.all(); }
  const Ops<Bf16>& bf16_ops() const override { return bf16_.all(); }

  std::unique_ptr<Device> device_;
  std::unique_ptr<base::DeviceLink> link_;
  Uploads uploads_;
  std::unique_ptr<base::DeviceLink::PinnedMemory> aside_;
  std::optional<base::Error> upload_failure_;  // the first failure
  GpuOps<float> fp32_;
  GpuOps<Bf16> bf16_;
  std::unique_ptr<OptimizerOps> optimizer_;
  std::unique_ptr<Fp8Ops> fp8_;
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

// The CPU as a backend: every op runs at once, on the caller's threads.
#include "runtime/trainer/kernels/backend.h"

#include <cstring>

#include "runtime/trainer/kernels/cpu/ops.h"

namespace shardrun::kernels {
namespace {

template <typename T>
Ops<T> cpu_ops() {
  return {cpu_products<T>(),  cpu_embedding<T>(), cpu_norms<T>(),
          cpu_attention<T>(), cpu_pointwise<T>(), cpu_classifier<T>()};
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

  const OptimizerOps& optimizer() const override { return cpu_optimizer(); }

 private:
  const Ops<float>& fp32_ops() const override { return fp32_; }
  const Ops<Bf16>& bf16_ops() const override { return bf16_; }

  Ops<float> fp32_ = cpu_ops<float>();
  Ops<Bf16> bf16_ = cpu_ops<Bf16>();
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace shardrun::kernels

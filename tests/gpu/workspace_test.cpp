// Compares the workspace that `shardrun plan` counts and a rank allocates with what each op asks of it: on the
// emulated GPU, which computes nothing here, so sizes are those of real jobs.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <variant>

#include "runtime/spec/job_spec.h"
#include "runtime/trainer/kernels/cuda/ops.h"
#include "runtime/trainer/kernels/gpu.h"
#include "runtime/trainer/train/session_parts.h"
#include "runtime/trainer/train/spec_options.h"
#include "tests/emulation/emulated_gpu.h"

using namespace shardrun;

namespace {

namespace cuda = kernels::cuda;
using kernels::Bf16;

constexpr int64_t kRanks = 2;

// Returns a place where nobody reads or writes.
template <typename T>
T* somewhere() {
  return reinterpret_cast<T*>(uintptr_t{1} << 30);
}

struct NothingComputed {
  NothingComputed() { emulation::skip_computing(true); }
  ~NothingComputed() { emulation::skip_computing(false); }
  NothingComputed(const NothingComputed&) = delete;
  NothingComputed& operator=(const NothingComputed&) = delete;
};

// A device with the planned workspace, and whether that is still all it holds.
class Planned {
 public:
  explicit Planned(int64_t workspace_bytes) {
    auto made = cuda::Device::create({.workspace_bytes = static_cast<size_t>(workspace_bytes)});
    REQUIRE(made);
    device_ = std::move(made).value();
    held_ = emulation::held_memory().gpu;
  }
  template <typename RunOp>
  void check(const char* op, const RunOp& run) {
    run(*device_);
    const int64_t grown = emulation::held_memory().gpu - held_;
    INFO(std::string(op), ": its workspace is ", grown, " bytes more than planned");
    CHECK_EQ(grown, 0);
    held_ += grown;  // each op that grows it is named once
    CHECK(device_->status());
  }

 private:
  std::unique_ptr<cuda::Device> device_;
  int64_t held_ = 0;
};

template <typename T>
void check_linear(Planned& planned, const plan::LinearCall& call) {
  using Op = plan::LinearCall::Op;
  const auto [N, C, O] = std::array{call.N, call.C, call.O};
  const T* const in = somewhere<T>();
  const T* const bias = call.bias ? in : nullptr;
  planned.check("linear", [&](cuda::Device& device) {
    const auto ops = cuda::make_products<T>(device);
    switch (call.op) {
      case Op::kForward:
        if (bias == nullptr) return ops->linear_forward(somewhere<T>(), in, in, N, C, O);
        return ops->linear_bias_forward(somewhere<T>(), in, in, bias, N, C, O);
      case Op::kForwardFp32:
        if (bias == nullptr) return ops->linear_forward_fp32(somewhere<float>(), in, in, N, C, O);
        return ops->linear_bias_forward_fp32(somewhere<float>(), in, in, bias, N, C, O);
      case Op::kBackwardInput:
        return ops->linear_backward_input(somewhere<T>(), in, in, N, C, O, call.accumulate);
      case Op::kBackwardInputFp32:
        return ops->linear_backward_input_fp32(somewhere<float>(), in, in, N, C, O);
      case Op::kBackwardWeight:
        return ops->linear_backward_weight(somewhere<float>(), in, in, N, C, O, call.accumulate);
    }
  });
  planned.check("bias_backward", [&](cuda::Device& device) {
    cuda::make_products<T>(device)->bias_backward(somewhere<float>(), in, N, O, /*accumulate=*/true);
  });
}

template <typename T>
void check_norms(Planned& planned, int64_t N, int64_t C) {
  const T* const in = somewhere<T>();
  float* const sums = somewhere<float>();
  planned.check("rmsnorm_forward", [&](cuda::Device& device) {
    cuda::make_norms<T>(device)->rmsnorm_residual_forward(somewhere<T>(), sums, somewhere<T>(), in, in, N, C,
                                                          1e-5F);
  });
  planned.check("rmsnorm_backward", [&](cuda::Device& device) {
    cuda::make_norms<T>(device)->rmsnorm_backward(somewhere<T>(), sums, in, in, in, sums, N, C);
  });
  planned.check("layernorm_forward", [&](cuda::Device& device) {
    cuda::make_norms<T>(device)->layernorm_forward(somewhere<T>(), sums, sums, somewhere<T>(), in, in, in, N,
                                                   C, 1e-5F);
  });
  planned.check("layernorm_backward", [&](cuda::Device& device) {
    cuda::make_norms<T>(device)->layernorm_backward(somewhere<T>(), sums, sums, in, in, in, sums, sums, N, C);
  });
}

template <typename T>
void check_attention(Planned& planned, const kernels::AttentionShape& shape) {
  const T* const in = somewhere<T>();
  planned.check("attention_forward", [&](cuda::Device& device) {
    cuda::make_attention<T>(device)->forward(somewhere<T>(), somewhere<float>(), in, shape);
  });
  planned.check("attention_backward", [&](cuda::Device& device) {
    cuda::make_attention<T>(device)->backward(somewhere<T>(), in, in, in, somewhere<float>(), shape);
  });
}

template <typename T>
void check_ends(Planned& planned, int64_t N, int64_t C, int64_t V) {
  const T* const in = somewhere<T>();
  const int32_t* const tokens = somewhere<int32_t>();
  float* const fp32 = somewhere<float>();
  double* const sum = somewhere<double>();
  planned.check("embedding_forward", [&](cuda::Device& device) {
    cuda::make_embedding<T>(device)->forward(somewhere<T>(), tokens, in, N, C);
  });
  planned.check("embedding_backward", [&](cuda::Device& device) {
    cuda::make_embedding<T>(device)->backward(fp32, tokens, in, N, C, V);
  });
  planned.check("embedding_slice_backward", [&](cuda::Device& device) {
    cuda::make_embedding<T>(device)->slice_backward(fp32, tokens, in, N, C, V / kRanks, /*first=*/0);
  });
  planned.check("cross_entropy", [&](cuda::Device& device) {
    cuda::make_classifier<T>(device)->cross_entropy(sum, somewhere<T>(), fp32, tokens, N, V, 1.0F);
  });
  planned.check("cross_entropy_slice", [&](cuda::Device& device) {
    cuda::make_classifier<T>(device)->cross_entropy_slice(sum, somewhere<T>(), fp32, fp32, tokens, N,
                                                          V / kRanks, 0, kRanks, 1.0F);
  });
}

void check_fp8(Planned& planned, const plan::LinearCall& call) {
  const auto [N, C, O] = std::array{call.N, call.C, call.O};
  kernels::Fp8Matrix matrix{};
  matrix.values = matrix.transposed = somewhere<uint8_t>();
  matrix.inverse = somewhere<float>();
  for (const auto& [rows, columns] : {std::array{N, C}, std::array{O, C}, std::array{N, O}}) {
    for (const auto scale : {kernels::Fp8Scale::kDelayed, kernels::Fp8Scale::kPresent}) {
      planned.check("fp8_quantize", [&, rows = rows, columns = columns](cuda::Device& device) {
        cuda::make_fp8(device)->quantize(matrix, somewhere<kernels::Fp8Scaling>(), somewhere<const Bf16>(),
                                         rows, columns, scale);
      });
    }
  }
  planned.check("fp8_linear", [&](cuda::Device& device) {
    const auto ops = cuda::make_fp8(device);
    ops->linear_forward(somewhere<Bf16>(), matrix, matrix, N, C, O);
    ops->linear_backward_input_fp32(somewhere<float>(), matrix, matrix, N, C, O);
    ops->linear_backward_weight(somewhere<float>(), matrix, matrix, N, C, O, true);
  });
}

void check_optimizer(Planned& planned, size_t count) {
  const std::span<float> values(somewhere<float>(), count);
  planned.check("sum_of_squares", [&](cuda::Device& device) {
    cuda::make_optimizer(device)->sum_of_squares(somewhere<double>(), values);
  });
  planned.check("lamb_measure", [&](cuda::Device& device) {
    cuda::make_optimizer(device)->lamb_measure(somewhere<kernels::LambSquares>(), values, values, values,
                                               values, {});
  });
  planned.check("adamw_step", [&](cuda::Device& device) {
    cuda::make_optimizer(device)->adamw_step(values, values, values, values, {});
  });
}

template <typename T>
void check_job(train::SessionOptions options, int tensor_parallel) {
  options.device = kernels::DeviceKind::kGpu;
  options.compute = std::is_same_v<T, Bf16> ? kernels::DType::kBf16 : kernels::DType::kFp32;
  const int64_t C = plan::shape_of(options.model).hidden, N = options.micro_batch * options.sequence_length;
  const auto list = plan::ops(options, tensor_parallel);
  Planned planned(plan::gpu_workspace_bytes(options, tensor_parallel));
  for (const plan::LinearCall& call : list.linears) {
    check_linear<T>(planned, call);
    if (std::is_same_v<T, Bf16>) check_fp8(planned, call);
  }
  check_norms<T>(planned, N, C);
  check_attention<T>(planned, list.attention);
  check_ends<T>(planned, N, C, plan::shape_of(options.model).vocab);
  check_optimizer(planned, size_t{1} << 34);
}

train::SessionOptions of_size(const train::Network& network, int64_t micro_batch, int sequence_length) {
  train::SessionOptions options;
  options.model = network;
  options.micro_batch = micro_batch;
  options.sequence_length = sequence_length;
  return options;
}

}  // namespace

TEST_CASE("workspace: no op of any job of jobs/ asks for more than `shardrun plan` counts") {
  const NothingComputed scene;
  for (const std::string name :
       {"bert-large", "llama-14b-one-gpu", "llama-2-13b-p4de", "llama-2-13b-p5", "llama-2-70b-finetune",
        "llama-2-70b-p4de", "llama-2-70b-p5", "llama-2-7b-p4de", "llama-2-7b-p5", "tiny-llama"}) {
    CAPTURE(name);
    const auto spec = spec::load_job_spec(JOBS "/" + name + ".toml");
    REQUIRE(spec);
    record::LaunchPlan plan;
    plan.batch.micro_batch = spec->batch.micro_batch;
    check_job<Bf16>(train::session_options(*spec, plan), spec->sharding.tensor_parallel);
    check_job<float>(train::session_options(*spec, plan), spec->sharding.tensor_parallel);
  }
}

TEST_CASE(
    "workspace: no op asks for more than planned where rows, vocabularies or sequences are the longest") {
  const NothingComputed scene;
  const model::LlamaConfig wide{
      .layers = 2, .hidden = 24576, .heads = 192, .kv_heads = 8, .ffn = 65536, .vocab = 256000};
  const model::BertConfig many_words{.layers = 2, .hidden = 1024, .heads = 16, .ffn = 4096, .vocab = 1000000};
  const model::BertConfig wide_layers{.layers = 2, .hidden = 1024, .heads = 16, .ffn = 262144, .vocab = 1000};
  const model::LlamaConfig long_sequences{
      .layers = 2, .hidden = 16384, .heads = 128, .kv_heads = 8, .ffn = 53248, .vocab = 128256};
  for (const int tensor_parallel : {1, 8}) {
    check_job<Bf16>(of_size(wide, 4, 4096), tensor_parallel);
    check_job<Bf16>(of_size(long_sequences, 1, 1 << 20), tensor_parallel);
  }
  check_job<Bf16>(of_size(many_words, 64, 512), 1);
  check_job<Bf16>(of_size(wide_layers, 64, 512), 1);
  check_job<Bf16>(
      of_size(
          model::LlamaConfig{
              .layers = 2, .hidden = 1024, .heads = 4, .kv_heads = 4, .ffn = 2816, .vocab = 32000},
          1464, 2048),
      1);
}

TEST_CASE("workspace: an op that outgrows its plan is seen") {
  const NothingComputed scene;
  auto made = cuda::Device::create({.workspace_bytes = 1 << 20});
  REQUIRE(made);
  const int64_t held = emulation::held_memory().gpu;
  cuda::make_norms<float>(**made)->rmsnorm_backward(somewhere<float>(), somewhere<float>(),
                                                    somewhere<const float>(), somewhere<const float>(),
                                                    somewhere<const float>(), somewhere<float>(), 4096, 4096);
  CHECK_EQ(emulation::held_memory().gpu - held, 512 * 4096 * 4 + 4 * 4096 * 4 - (1 << 20));
}

#include "runtime/trainer/kernels/specialised.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cpu/thread_workspace.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

// In the order of Op.
constexpr std::string_view kNames[] = {"attention_backward", "attention_forward",  "rmsnorm_backward",
                                       "rmsnorm_forward",    "layernorm_backward", "layernorm_forward",
                                       "swiglu_backward",    "swiglu_forward",     "rope",
                                       "cross_entropy",      "cross_entropy_slice"};

struct Description {
  std::string_view source, parameters, call;  // {} stands for the element type
};

constexpr std::string_view kAttention = "attention.cpp", kNorms = "norms.cpp", kPointwise = "pointwise.cpp";

// In the order of Op, as far as CPUs specialise them.
constexpr Description kDescriptions[] = {
    {kAttention,
     "{0}* dqkv, const {0}* dout, const {0}* out, const {0}* qkv, const float* lse, const AttentionShape* "
     "shape, "
     "const Visibility* visibility",
     "attention_backward(dqkv, dout, out, qkv, lse, *shape, *visibility)"},
    {kAttention,
     "{0}* out, float* lse, const {0}* qkv, const AttentionShape* shape, const Visibility* visibility",
     "attention_forward(out, lse, qkv, *shape, *visibility)"},
    {kNorms, "{0}* dx, float* dw, const {0}* dy, const {0}* x, const {0}* w, const float* rrms, int64_t N",
     "rmsnorm_backward(dx, dw, dy, x, w, rrms, N, SHARDRUN_SPECIALISED)"},
    {kNorms, "{0}* y, float* rrms, const {0}* x, const {0}* w, int64_t N, float epsilon",
     "rmsnorm_forward(y, rrms, x, w, N, SHARDRUN_SPECIALISED, epsilon)"},
    {kNorms,
     "{0}* dx, float* dgamma, float* dbeta, const {0}* dy, const {0}* x, const {0}* gamma, const float* "
     "mean, "
     "const float* rstd, int64_t N",
     "layernorm_backward(dx, dgamma, dbeta, dy, x, gamma, mean, rstd, N, SHARDRUN_SPECIALISED)"},
    {kNorms,
     "{0}* y, float* mean, float* rstd, {0}* x, const {0}* residual, const {0}* gamma, const {0}* beta, "
     "int64_t N, "
     "float epsilon",
     "layernorm_forward(y, mean, rstd, x, residual, gamma, beta, N, SHARDRUN_SPECIALISED, epsilon)"},
    {kPointwise, "{0}* dgate_up, const {0}* dy, const {0}* gate_up, int64_t N",
     "swiglu_backward(dgate_up, dy, gate_up, N, SHARDRUN_SPECIALISED)"},
    {kPointwise, "{0}* y, const {0}* gate_up, int64_t N",
     "swiglu_forward(y, gate_up, N, SHARDRUN_SPECIALISED)"},
    {kPointwise,
     "{0}* x, const float* table, int64_t B, int64_t T, int64_t heads, int64_t stride, bool inverse",
     "rope(x, table, B, T, heads, SHARDRUN_SPECIALISED, stride, inverse)"},
};

const Description& description(const KernelShape& shape) {
  const auto op = static_cast<size_t>(shape.op);
  SHARDRUN_CHECK(shape.target == Target::kCpu && op < std::size(kDescriptions));
  return kDescriptions[op];
}

// Written before other threads run ops, read by all of them afterwards.
std::vector<std::pair<KernelShape, void*>>& installed() {
  static std::vector<std::pair<KernelShape, void*>> kernels;
  return kernels;
}
std::atomic<int64_t>& missed() {
  static std::atomic<int64_t> calls{0};
  return calls;
}

}  // namespace

std::string name_of(const KernelShape& shape) {
  std::string name = fmt::format("{}{}_{}_{}", shape.target == Target::kCuda ? "cuda_" : "",
                                 kNames[static_cast<size_t>(shape.op)],
                                 shape.dtype == DType::kFp32 ? "fp32" : "bf16", shape.size);
  if (shape.heads > 0) name += fmt::format("_{}_{}", shape.heads, shape.kv_heads);
  return name;
}

std::string translation_unit(const KernelShape& shape) {
  const Description& op = description(shape);
  const std::string_view element = shape.dtype == DType::kFp32 ? "float" : "Bf16";
  return fmt::format(
      "#define SHARDRUN_SPECIALISED {}\n"
      "#include \"runtime/trainer/kernels/cpu/vector.cpp\"\n"
      "#include \"runtime/trainer/kernels/cpu/small_products.cpp\"\n"
      "#include \"runtime/trainer/kernels/cpu/{}\"\n"
      "#include \"runtime/base/result.h\"\n"
      "#include \"runtime/trainer/kernels/cpu/thread_workspace.h\"\n"
      "using namespace shardrun::kernels;\n"
      "void shardrun::base::check_failed(const char* condition, const char* file, int line, "
      "std::string_view) {{\n"
      "  std::fprintf(stderr, \"%s:%d: %s does not hold\\n\", file, line, condition);\n"
      "  std::abort();\n"
      "}}\n"
      "extern \"C\" {{\n"
      "__attribute__((visibility(\"default\"))) std::byte* (*{})(int64_t);\n"
      "__attribute__((visibility(\"default\"))) void {}({}) {{ {}; }}\n"
      "}}\n"
      "std::byte* shardrun::kernels::thread_workspace(int64_t bytes) {{ return {}(bytes); }}\n",
      shape.size, op.source, kWorkspaceSymbol, kKernelSymbol,
      fmt::format(fmt::runtime(op.parameters), element), op.call, kWorkspaceSymbol);
}

Workspace workspace() {
  return thread_workspace;
}

std::span<const std::string_view> kernel_flags() {
  // Tuned for no processor in particular: g++ 12's tuning for the newest ones makes these loops a quarter slower.
#define SHARDRUN_KERNEL_FLAGS                                                                    \
  "-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fopenmp", "-fno-math-errno", \
      "-fno-trapping-math"
  static constexpr std::string_view kBaseline[] = {SHARDRUN_KERNEL_FLAGS};
#if defined(__x86_64__)
  static constexpr std::string_view kAvx2[] = {SHARDRUN_KERNEL_FLAGS, "-march=x86-64-v3"};
  static constexpr std::string_view kAvx512[] = {SHARDRUN_KERNEL_FLAGS, "-march=x86-64-v4"};
  if (vector::instruction_set() == vector::InstructionSet::kAvx512) return kAvx512;
  if (vector::instruction_set() == vector::InstructionSet::kAvx2) return kAvx2;
#endif
#undef SHARDRUN_KERNEL_FLAGS
  return kBaseline;
}

void install(const KernelShape& shape, void* kernel) {
  SHARDRUN_CHECK(kernel != nullptr && shape.target == Target::kCpu);
  installed().emplace_back(shape, kernel);
}

void forget_all() {
  installed().clear();
  missed() = 0;
}

void* find(const KernelShape& shape) {
  const auto& kernels = installed();
  const auto found =
      std::find_if(kernels.begin(), kernels.end(), [&](const auto& entry) { return entry.first == shape; });
  if (found != kernels.end()) return found->second;
  if (!kernels.empty()) ++missed();
  return nullptr;
}

int64_t unspecialised_calls() {
  return missed();
}

}  // namespace shardrun::kernels

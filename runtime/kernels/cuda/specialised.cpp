#include "runtime/kernels/cuda/specialised.h"

#include <fmt/format.h>

#include "runtime/base/result.h"
#include "runtime/kernels/cuda/blocks.h"

namespace shardrun::kernels::cuda {
namespace {

constexpr std::string_view kNorms = "norms.cu", kPointwise = "pointwise.cu", kClassifier = "classifier.cu",
                           kPlainAttention = "attention.cu", kTensorAttention = "attention_tensor.cu";
constexpr unsigned kAttentionThreads = 128, kClassifierThreads = 512;  // as in those files

struct Entry {
  std::string_view name, parameters, body;
};

// {T} is the element type, {L} that of logits, {W} a vector's width, {S} the size; {H} and {K} are heads.
constexpr Entry kRmsNormForward[] = {
    {"shardrun_rmsnorm_forward",
     "{T}* y, float* rrms, {T}* x, const {T}* residual, const {T}* w, float epsilon",
     "rmsnorm_rows<{W}, false>(y, rrms, x, residual, w, {S}, epsilon);"},
    {"shardrun_rmsnorm_residual_forward",
     "{T}* y, float* rrms, {T}* x, const {T}* residual, const {T}* w, float epsilon",
     "rmsnorm_rows<{W}, true>(y, rrms, x, residual, w, {S}, epsilon);"}};
constexpr Entry kRmsNormBackward[] = {
    {"shardrun_rmsnorm_backward",
     "{T}* dx, float* sums, const {T}* dy, const {T}* x, const {T}* w, const float* rrms, int64_t N",
     "rmsnorm_gradient_rows<{W}>(dx, sums, dy, x, w, rrms, N, {S});"}};
constexpr Entry kLayerNormForward[] = {
    {"shardrun_layernorm_forward",
     "{T}* y, float* means, float* rstds, {T}* x, const {T}* residual, const {T}* gamma, const {T}* beta, "
     "float epsilon",
     "layernorm_rows<{W}, false>(y, means, rstds, x, residual, gamma, beta, {S}, epsilon);"},
    {"shardrun_layernorm_residual_forward",
     "{T}* y, float* means, float* rstds, {T}* x, const {T}* residual, const {T}* gamma, const {T}* beta, "
     "float epsilon",
     "layernorm_rows<{W}, true>(y, means, rstds, x, residual, gamma, beta, {S}, epsilon);"}};
constexpr Entry kLayerNormBackward[] = {
    {"shardrun_layernorm_backward",
     "{T}* dx, float* gamma_sums, float* beta_sums, const {T}* dy, const {T}* x, const {T}* gamma, "
     "const float* means, const float* rstds, int64_t N",
     "layernorm_gradient_rows<{W}>(dx, gamma_sums, beta_sums, dy, x, gamma, means, rstds, N, {S});"}};
constexpr Entry kSwiGluForward[] = {
    {"shardrun_swiglu_forward", "{T}* y, const {T}* gate_up", "swiglu_rows<{W}>(y, gate_up, {S});"}};
constexpr Entry kSwiGluBackward[] = {{"shardrun_swiglu_backward",
                                      "{T}* dgate_up, const {T}* dy, const {T}* gate_up",
                                      "swiglu_gradient_rows<{W}>(dgate_up, dy, gate_up, {S});"}};
constexpr Entry kRope[] = {
    {"shardrun_rope", "{T}* x, const float* table, int64_t length, float sign",
     "rope_rows<{W}>(x, table, length, {H} + {K}, {S} / 2, int64_t{{{H} + 2 * {K}}} * {S}, sign);"}};
constexpr Entry kCrossEntropy[] = {
    {"shardrun_cross_entropy",
     "double* losses, {T}* dlogits, const float* logits, const int32_t* targets, float loss_scale",
     "classify_rows<{L}>(losses, dlogits, logits, targets, {S}, loss_scale);"},
    {"shardrun_cross_entropy_bf16",
     "double* losses, {T}* dlogits, const {T}* logits, const int32_t* targets, float loss_scale",
     "classify_rows<{W}>(losses, dlogits, logits, targets, {S}, loss_scale);"}};
constexpr Entry kCrossEntropySlice[] = {
    {"shardrun_classifier_slice_stats",
     "float* stats, const float* logits, const int32_t* targets, int64_t first",
     "measure_slices<{L}>(stats, logits, targets, {S}, first);"},
    {"shardrun_cross_entropy_slice",
     "double* losses, {T}* dlogits, const float* logits, const float* gathered, const int32_t* targets, "
     "int64_t N, int64_t first, int ranks, float loss_scale",
     "classify_slices<{L}>(losses, dlogits, logits, gathered, targets, N, {S}, first, ranks, loss_scale);"}};
#define SHARDRUN_KNOWN_HEADS \
  "p.H = {H}; p.K = {K}; p.stride = ({H} + 2 * {K}) * {S}; p.out_stride = {H} * {S}; p.D = {S}; "
constexpr Entry kTensorForward[] = {{"shardrun_attention_forward",
                                     "Bf16* out, float* lse, const Bf16* qkv, AttentionProblem p",
                                     SHARDRUN_KNOWN_HEADS "forward_tiles<{S}>(out, lse, qkv, p);"}};
constexpr Entry kTensorBackward[] = {
    {"shardrun_attention_query_gradient",
     "Bf16* dqkv, const Bf16* dout, const Bf16* qkv, const float* lse, const float* delta, AttentionProblem "
     "p",
     SHARDRUN_KNOWN_HEADS "query_gradient_tiles<{S}>(dqkv, dout, qkv, lse, delta, p);"},
    {"shardrun_attention_key_gradient",
     "Bf16* dqkv, const Bf16* dout, const Bf16* qkv, const float* lse, const float* delta, AttentionProblem "
     "p",
     SHARDRUN_KNOWN_HEADS "key_gradient_tiles<{S}>(dqkv, dout, qkv, lse, delta, p);"}};
constexpr Entry kPlainForward[] = {{"shardrun_attention_forward",
                                    "{T}* out, float* lse, const {T}* qkv, AttentionProblem p",
                                    SHARDRUN_KNOWN_HEADS "forward_plainly(out, lse, qkv, p);"}};
constexpr Entry kPlainBackward[] = {
    {"shardrun_attention_query_gradient",
     "{T}* dqkv, const {T}* dout, const {T}* qkv, const float* lse, const float* delta, AttentionProblem p",
     SHARDRUN_KNOWN_HEADS "query_gradient_plainly(dqkv, dout, qkv, lse, delta, p);"},
    {"shardrun_attention_key_gradient",
     "{T}* dqkv, const {T}* dout, const {T}* qkv, const float* lse, const float* delta, AttentionProblem p",
     SHARDRUN_KNOWN_HEADS "key_gradient_plainly(dqkv, dout, qkv, lse, delta, p);"}};
#undef SHARDRUN_KNOWN_HEADS

struct Description {
  std::string_view source;
  std::span<const Entry> entries;
  unsigned threads;
};

Description description(const KernelShape& shape) {
  const int64_t size = shape.size, packs = size / width_for(shape.dtype, size);
  const bool tensor = shape.dtype == DType::kBf16 && (size == 64 || size == 128);
  switch (shape.op) {
    case Op::kAttentionBackward:
      if (tensor) return {kTensorAttention, kTensorBackward, kAttentionThreads};
      return {kPlainAttention, kPlainBackward, kAttentionThreads};
    case Op::kAttentionForward:
      if (tensor) return {kTensorAttention, kTensorForward, kAttentionThreads};
      return {kPlainAttention, kPlainForward, kAttentionThreads};
    case Op::kRmsNormBackward:
      return {kNorms, kRmsNormBackward, row_threads(packs)};
    case Op::kRmsNormForward:
      return {kNorms, kRmsNormForward, row_threads(packs)};
    case Op::kLayerNormBackward:
      return {kNorms, kLayerNormBackward, row_threads(packs)};
    case Op::kLayerNormForward:
      return {kNorms, kLayerNormForward, row_threads(packs)};
    case Op::kSwiGluBackward:
      return {kPointwise, kSwiGluBackward, row_threads(packs)};
    case Op::kSwiGluForward:
      return {kPointwise, kSwiGluForward, row_threads(packs)};
    case Op::kRope: {
      const int64_t half = size / 2;
      return {kPointwise, kRope,
              row_threads((shape.heads + shape.kv_heads) * half / width_for(shape.dtype, half))};
    }
    case Op::kCrossEntropy:
      return {kClassifier,
              std::span(kCrossEntropy).first(shape.dtype == DType::kBf16 ? kMostEntries : size_t{1}),
              kClassifierThreads};
    case Op::kCrossEntropySlice:
      return {kClassifier, kCrossEntropySlice, kClassifierThreads};
  }
  SHARDRUN_CHECK(false);
}

}  // namespace

int64_t width_for(DType narrowest, int64_t size) {
  const int64_t width = 16 / size_of(narrowest);
  return size % width == 0 ? width : 1;
}

std::span<const std::string_view> kernel_flags() {
  static constexpr std::string_view kFlags[] = {"--std=c++20", "--device-as-default-execution-space"};
  return kFlags;
}

std::vector<std::string_view> entry_names(const KernelShape& shape) {
  std::vector<std::string_view> names;
  for (const Entry& entry : description(shape).entries) names.push_back(entry.name);
  return names;
}

std::string translation_unit(const KernelShape& shape) {
  const Description op = description(shape);
  std::string text = fmt::format(
      "#undef __global__\n#undef __launch_bounds__\n"
      "#define __global__ __device__ __forceinline__\n#define __launch_bounds__(...)\n"
      "#include \"runtime/kernels/cuda/{}\"\n"
      "using namespace shardrun::kernels;\nusing namespace shardrun::kernels::cuda;\n",
      op.source);
  const int64_t row = shape.op == Op::kRope ? shape.size / 2 : shape.size;
  for (const Entry& entry : op.entries) {
    const auto fill = [&](std::string_view pattern) {
      return fmt::format(fmt::runtime(pattern), fmt::arg("T", shape.dtype == DType::kFp32 ? "float" : "Bf16"),
                         fmt::arg("W", width_for(shape.dtype, row)),
                         fmt::arg("L", width_for(DType::kFp32, row)), fmt::arg("S", shape.size),
                         fmt::arg("H", shape.heads), fmt::arg("K", shape.kv_heads));
    };
    text += fmt::format(
        "extern \"C\" __attribute__((global)) __attribute__((launch_bounds({0}))) void {1}({2}) {{\n"
        "  __builtin_assume(blockDim.x == {0});\n  {3}\n}}\n",
        op.threads, entry.name, fill(entry.parameters), fill(entry.body));
  }
  return text;
}

}  // namespace shardrun::kernels::cuda

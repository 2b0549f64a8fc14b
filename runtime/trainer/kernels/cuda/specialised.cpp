#include "runtime/trainer/kernels/cuda/specialised.h"

#include <array>

#include <fmt/format.h>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cuda/blocks.h"

namespace shardrun::kernels::cuda {
namespace {

constexpr std::string_view kNorms = "norms.cu", kPointwise = "pointwise.cu", kClassifier = "classifier.cu",
                           kPlainAttention = "attention.cu", kTensorAttention = "attention_tensor.cu";
constexpr unsigned kAttentionThreads = 128, kClassifierThreads = 512;  // as in those files

struct Constant {
  std::string_view parameter, value;
};
using Constants = std::array<Constant, 5>;

struct Entry {
  std::string_view name, kernel, parameters;
  Constants constants;
  std::string_view blocks{};  // of the kernel's launch bounds, as its source names them; empty: it has none
};

// {T} is the element type, {L} the width of a vector of logits in fp32, {W} of any other, {S} the size; {H} and {K} are
// heads.
constexpr Constants kColumns = {{{"C", "{S}"}}};
constexpr std::string_view kRmsNormForwardParameters =
    "{T}* y, float* rrms, {T}* x, const {T}* residual, const {T}* w, int64_t C, float epsilon";
constexpr Entry kRmsNormForward[] = {
    {"shardrun_rmsnorm_forward", "rmsnorm_rows<{W}, false, {T}>", kRmsNormForwardParameters, kColumns},
    {"shardrun_rmsnorm_residual_forward", "rmsnorm_rows<{W}, true, {T}>", kRmsNormForwardParameters,
     kColumns}};
constexpr Entry kRmsNormBackward[] = {{"shardrun_rmsnorm_backward", "rmsnorm_gradient_rows<{W}, {T}>",
                                       "{T}* dx, float* sums, const {T}* dy, const {T}* x, const {T}* w, "
                                       "const float* rrms, int64_t N, int64_t C",
                                       kColumns}};
constexpr std::string_view kLayerNormForwardParameters =
    "{T}* y, float* means, float* rstds, {T}* x, const {T}* residual, const {T}* gamma, const {T}* beta, "
    "int64_t C, float epsilon";
constexpr Entry kLayerNormForward[] = {
    {"shardrun_layernorm_forward", "layernorm_rows<{W}, false, {T}>", kLayerNormForwardParameters, kColumns},
    {"shardrun_layernorm_residual_forward", "layernorm_rows<{W}, true, {T}>", kLayerNormForwardParameters,
     kColumns}};
constexpr Entry kLayerNormBackward[] = {
    {"shardrun_layernorm_backward", "layernorm_gradient_rows<{W}, {T}>",
     "{T}* dx, float* gamma_sums, float* beta_sums, const {T}* dy, const {T}* x, const {T}* gamma, "
     "const float* means, const float* rstds, int64_t N, int64_t C",
     kColumns}};
constexpr Constants kFeedForward = {{{"F", "{S}"}}};
constexpr Entry kSwiGluForward[] = {{"shardrun_swiglu_forward", "swiglu_rows<{W}, {T}>",
                                     "{T}* y, const {T}* gate_up, int64_t F", kFeedForward}};
constexpr Entry kSwiGluBackward[] = {{"shardrun_swiglu_backward", "swiglu_gradient_rows<{W}, {T}>",
                                      "{T}* dgate_up, const {T}* dy, const {T}* gate_up, int64_t F",
                                      kFeedForward}};
constexpr Entry kRope[] = {
    {"shardrun_rope",
     "rope_rows<{W}, {T}>",
     "{T}* x, const float* table, int64_t length, int heads, int half, int64_t stride, float sign",
     {{{"heads", "{H} + {K}"}, {"half", "{S} / 2"}, {"stride", "int64_t{{{H} + 2 * {K}}} * {S}"}}}}};
constexpr Constants kVocabulary = {{{"V", "{S}"}}};
constexpr Entry kCrossEntropy[] = {{"shardrun_cross_entropy", "classify_rows<{L}, {T}, float>",
                                    "double* losses, {T}* dlogits, const float* logits, "
                                    "const int32_t* targets, int64_t V, float loss_scale",
                                    kVocabulary},
                                   {"shardrun_cross_entropy_bf16", "classify_rows<{W}, {T}, {T}>",
                                    "double* losses, {T}* dlogits, const {T}* logits, "
                                    "const int32_t* targets, int64_t V, float loss_scale",
                                    kVocabulary}};
constexpr Entry kCrossEntropySlice[] = {
    {"shardrun_classifier_slice_stats", "measure_slices<{L}>",
     "float* stats, const float* logits, const int32_t* targets, int64_t V, int64_t first", kVocabulary},
    {"shardrun_cross_entropy_slice", "classify_slices<{L}, {T}>",
     "double* losses, {T}* dlogits, const float* logits, const float* gathered, const int32_t* targets, "
     "int64_t N, int64_t V, int64_t first, int ranks, float loss_scale",
     kVocabulary}};
constexpr Constants kHeads = {{{"p.H", "{H}"},
                               {"p.K", "{K}"},
                               {"p.stride", "({H} + 2 * {K}) * {S}"},
                               {"p.out_stride", "{H} * {S}"},
                               {"p.D", "{S}"}}};
constexpr std::string_view kAttentionForwardParameters =
    "{T}* out, float* lse, const {T}* qkv, AttentionProblem p";
constexpr std::string_view kAttentionBackwardParameters =
    "{T}* dqkv, const {T}* dout, const {T}* qkv, const float* lse, const float* delta, AttentionProblem p";
constexpr std::string_view kForwardName = "shardrun_attention_forward",
                           kQueriesName = "shardrun_attention_query_gradient",
                           kKeysName = "shardrun_attention_key_gradient";
constexpr Entry kTensorForward[] = {
    {kForwardName, "forward_tiles<{S}>", kAttentionForwardParameters, kHeads}};
constexpr Entry kTensorBackward[] = {
    {kQueriesName, "query_gradient_tiles<{S}>", kAttentionBackwardParameters, kHeads,
     "kBlocksOfQueries<{S}>"},
    {kKeysName, "key_gradient_tiles<{S}>", kAttentionBackwardParameters, kHeads}};
constexpr Entry kPlainForward[] = {
    {kForwardName, "forward_plainly<{T}>", kAttentionForwardParameters, kHeads}};
constexpr Entry kPlainBackward[] = {
    {kQueriesName, "query_gradient_plainly<{T}>", kAttentionBackwardParameters, kHeads},
    {kKeysName, "key_gradient_plainly<{T}>", kAttentionBackwardParameters, kHeads}};

struct Description {
  std::string_view source;
  std::span<const Entry> entries;
  unsigned threads;
};

Description description(const KernelShape& shape) {
  const int64_t size = shape.size, packs = size / width_for(shape.dtype, size);
  const bool tensor = fits_tensor_cores(shape.dtype, size);
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

// "y, F" of "float* y, int64_t F".
std::string names_of(std::string_view parameters) {
  std::string names;
  while (!parameters.empty()) {
    const std::string_view one = parameters.substr(0, parameters.find(", "));
    parameters.remove_prefix(std::min(one.size() + 2, parameters.size()));
    if (!names.empty()) names += ", ";
    names += one.substr(one.rfind(' ') + 1);
  }
  return names;
}

std::string filled(std::string_view pattern, const KernelShape& shape) {
  const int64_t row = shape.op == Op::kRope ? shape.size / 2 : shape.size;
  return fmt::format(fmt::runtime(pattern), fmt::arg("T", shape.dtype == DType::kFp32 ? "float" : "Bf16"),
                     fmt::arg("W", width_for(shape.dtype, row)), fmt::arg("L", width_for(DType::kFp32, row)),
                     fmt::arg("S", shape.size), fmt::arg("H", shape.heads), fmt::arg("K", shape.kv_heads));
}

}  // namespace

std::span<const std::string_view> kernel_flags() {
  static constexpr std::string_view kFlags[] = {"--std=c++20", "--device-as-default-execution-space"};
  return kFlags;
}

std::vector<std::string_view> entry_names(const KernelShape& shape) {
  std::vector<std::string_view> names;
  for (const Entry& entry : description(shape).entries) names.push_back(entry.name);
  return names;
}

std::vector<std::string> kernel_names(const KernelShape& shape) {
  std::vector<std::string> names;
  for (const Entry& entry : description(shape).entries) names.push_back(filled(entry.kernel, shape));
  return names;
}

unsigned block_threads(const KernelShape& shape) {
  return description(shape).threads;
}

std::string translation_unit(const KernelShape& shape) {
  const Description op = description(shape);
  std::string text = fmt::format(
      "#undef __global__\n#undef __launch_bounds__\n"
      "#define __global__ __device__ __forceinline__\n#define __launch_bounds__(...)\n"
      "#include \"runtime/trainer/kernels/cuda/{}\"\n"
      "using namespace shardrun::kernels;\nusing namespace shardrun::kernels::cuda;\n"
      "template <typename A, typename B> constexpr bool kSame = false;\n"
      "template <typename A> constexpr bool kSame<A, A> = true;\n",
      op.source);
  const auto fill = [&](std::string_view pattern) { return filled(pattern, shape); };
  for (const Entry& entry : op.entries) {
    const std::string kernel = fill(entry.kernel);
    const std::string blocks = entry.blocks.empty() ? "" : ", " + fill(entry.blocks);
    text += fmt::format(
        "extern \"C\" __attribute__((global)) __attribute__((launch_bounds({0}{3}))) void {1}({2}) {{\n"
        "  __builtin_assume(blockDim.x == {0});\n",
        op.threads, entry.name, fill(entry.parameters), blocks);
    for (const Constant& constant : entry.constants) {
      if (constant.parameter.empty()) break;
      text += fmt::format("  __builtin_assume({0} == {1});\n  {0} = {1};\n", constant.parameter,
                          fill(constant.value));
    }
    text += fmt::format("  {0}({1});\n}}\nstatic_assert(kSame<decltype(&{2}), decltype(&{0})>);\n", kernel,
                        names_of(entry.parameters), entry.name);
  }
  return text;
}

}  // namespace shardrun::kernels::cuda

// The specialisable ops that a model runs: a dry trace of it.
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"

namespace shardrun::model {

std::vector<kernels::KernelShape> kernel_shapes(const LlamaConfig& config, kernels::DType compute,
                                                int tensor_parallel, kernels::Target target) {
  using kernels::Op;
  const int64_t head_size = config.hidden / config.heads, ffn = config.ffn / tensor_parallel;
  if (target == kernels::Target::kCuda) {
    const int64_t heads = config.heads / tensor_parallel, kv_heads = config.kv_heads / tensor_parallel;
    const Op classifier = tensor_parallel > 1 ? Op::kCrossEntropySlice : Op::kCrossEntropy;
    return {{Op::kRope, compute, head_size, target, heads, kv_heads},
            {Op::kAttentionForward, compute, head_size, target, heads, kv_heads},
            {Op::kAttentionBackward, compute, head_size, target, heads, kv_heads},
            {Op::kRmsNormForward, compute, config.hidden, target},
            {Op::kRmsNormBackward, compute, config.hidden, target},
            {Op::kSwiGluForward, compute, ffn, target},
            {Op::kSwiGluBackward, compute, ffn, target},
            {classifier, compute, config.vocab / tensor_parallel, target}};
  }
  return {{Op::kRope, compute, head_size},
          {Op::kAttentionForward, compute, head_size},
          {Op::kAttentionBackward, compute, head_size},
          {Op::kRmsNormForward, compute, config.hidden},
          {Op::kRmsNormBackward, compute, config.hidden},
          {Op::kSwiGluForward, compute, ffn},
          {Op::kSwiGluBackward, compute, ffn}};
}

std::vector<kernels::KernelShape> kernel_shapes(const BertConfig& config, kernels::DType compute,
                                                kernels::Target target) {
  using kernels::Op;
  const int64_t head_size = config.hidden / config.heads;
  if (target == kernels::Target::kCuda) {
    return {{Op::kAttentionForward, compute, head_size, target, config.heads, config.heads},
            {Op::kAttentionBackward, compute, head_size, target, config.heads, config.heads},
            {Op::kLayerNormForward, compute, config.hidden, target},
            {Op::kLayerNormBackward, compute, config.hidden, target},
            {Op::kCrossEntropy, compute, config.vocab, target}};
  }
  return {{Op::kAttentionForward, compute, head_size},
          {Op::kAttentionBackward, compute, head_size},
          {Op::kLayerNormForward, compute, config.hidden},
          {Op::kLayerNormBackward, compute, config.hidden}};
}

}  // namespace shardrun::model

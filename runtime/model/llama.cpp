// Forward and backward of the blocks, read top to bottom; every op is documented in kernels/ops.h.
#include "runtime/model/llama.h"

#include <algorithm>

#include "runtime/model/llama_buffers.h"

namespace shardrun::model {

using kernels::Bf16;

namespace {

template <typename T>
class TypedLlama : public Llama {
 public:
  TypedLlama(const LlamaConfig& config, int micro_batch, int sequence_length, Memory memory)
      : sizes_(config, micro_batch, sequence_length),
        blocks_(block_layouts(config)),
        memory_(std::move(memory)),
        buffers_(sizes_, memory_.data()) {
    kernels::rope_table(buffers_.rope, sizes_.T, sizes_.D, config.rope_theta);
    for (int block = 0; block < block_count(); ++block) visits_.push_back(block);
  }

  const std::vector<BlockLayout>& blocks() const override { return blocks_; }
  std::span<const int> visits() const override { return visits_; }

  void set_batch(const Batch& batch) override {
    const auto tokens = batch.tokens, targets = batch.targets;
    SHARDRUN_CHECK(static_cast<int64_t>(tokens.size()) == sizes_.N && targets.size() == tokens.size());
    const auto vocab = static_cast<int32_t>(sizes_.V);
    SHARDRUN_CHECK(std::all_of(tokens.begin(), tokens.end(), [=](int32_t t) { return t >= 0 && t < vocab; }));
    SHARDRUN_CHECK(
        std::all_of(targets.begin(), targets.end(), [=](int32_t t) { return t >= -1 && t < vocab; }));
    std::copy(tokens.begin(), tokens.end(), buffers_.tokens);
    std::copy(targets.begin(), targets.end(), buffers_.targets);
    loss_scale_ = batch.loss_scale;
    loss_ = {};
    loss_.tokens = std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
  }

  Result<void> forward(int visit, std::span<const std::byte> parameters) override {
    const int block = visit;
    const T* p = checked(block, parameters);
    if (block == 0) {
      kernels::embedding_forward(buffers_.stream[0], buffers_.tokens, p, sizes_.N, sizes_.C);
    } else if (block + 1 < block_count()) {
      layer_forward(block - 1, p);
    } else {
      head_forward(p);
    }
    return {};
  }

  Loss loss() const override { return loss_; }

  Result<void> backward(int visit, std::span<const std::byte> parameters,
                        std::span<float> gradient) override {
    const int block = visit;
    const T* p = checked(block, parameters);
    SHARDRUN_CHECK(static_cast<int64_t>(gradient.size()) == blocks_[static_cast<size_t>(block)].elements);
    if (block == 0) {
      kernels::embedding_backward(gradient.data(), buffers_.tokens, buffers_.dstream, sizes_.N, sizes_.C,
                                  sizes_.V);
    } else if (block + 1 < block_count()) {
      layer_backward(block - 1, p, gradient.data());
    } else {
      head_backward(p, gradient.data());
    }
    return {};
  }

 private:
  int block_count() const { return static_cast<int>(blocks_.size()); }
  const T* checked(int block, std::span<const std::byte> parameters) const {
    SHARDRUN_CHECK(block >= 0 && block < block_count());
    SHARDRUN_CHECK(parameters.size() ==
                   static_cast<size_t>(blocks_[static_cast<size_t>(block)].elements) * sizeof(T));
    return reinterpret_cast<const T*>(parameters.data());
  }

  // Offsets inside a layer's flat buffer. q, k, v lie side by side, and so do gate and up: one product each.
  struct LayerOffsets {
    explicit LayerOffsets(const Sizes& s)
        : norm1(0),
          qkv(s.C),
          out(qkv + s.QKV * s.C),
          norm2(out + s.C * s.HD),
          gate_up(norm2 + s.C),
          down(gate_up + 2 * s.F * s.C) {}
    int64_t norm1, qkv, out, norm2, gate_up, down;
  };

  void layer_forward(int layer, const T* p) {
    const Sizes& s = sizes_;
    const LayerOffsets at(s);
    LayerActivations<T>& a = buffers_.layers[static_cast<size_t>(layer)];
    const T* x = buffers_.stream[static_cast<size_t>(layer)];
    T* y = buffers_.stream[static_cast<size_t>(layer) + 1];
    const kernels::AttentionShape shape{s.B, s.T, s.H, s.K, s.D};

    kernels::rmsnorm_forward(a.normed1, a.rrms1, x, p + at.norm1, s.N, s.C, s.epsilon);
    kernels::linear_forward(a.qkv, a.normed1, p + at.qkv, s.N, s.C, s.QKV);
    kernels::rope(a.qkv, buffers_.rope, s.B, s.T, s.H + s.K, s.D, s.QKV, /*inverse=*/false);
    kernels::attention_forward(a.attention, a.lse, a.qkv, shape);
    kernels::linear_forward(buffers_.wide, a.attention, p + at.out, s.N, s.HD, s.C);
    kernels::add(a.middle, x, buffers_.wide, s.N * s.C);

    kernels::rmsnorm_forward(a.normed2, a.rrms2, a.middle, p + at.norm2, s.N, s.C, s.epsilon);
    kernels::linear_forward(a.gate_up, a.normed2, p + at.gate_up, s.N, s.C, 2 * s.F);
    kernels::swiglu_forward(a.activated, a.gate_up, s.N, s.F);
    kernels::linear_forward(buffers_.wide, a.activated, p + at.down, s.N, s.F, s.C);
    kernels::add(y, a.middle, buffers_.wide, s.N * s.C);
  }

  // dstream holds the gradient of the layer's output and leaves with that of its input.
  void layer_backward(int layer, const T* p, float* g) {
    const Sizes& s = sizes_;
    const LayerOffsets at(s);
    LayerActivations<T>& a = buffers_.layers[static_cast<size_t>(layer)];
    const T* x = buffers_.stream[static_cast<size_t>(layer)];
    T* d = buffers_.dstream;
    T* narrow = buffers_.narrow;  // N × max(C, F, H·D)
    T* wide = buffers_.wide;      // N × max(2F, QKV, C)
    const kernels::AttentionShape shape{s.B, s.T, s.H, s.K, s.D};

    kernels::linear_backward_weight(g + at.down, d, a.activated, s.N, s.F, s.C, /*accumulate=*/false);
    kernels::linear_backward_input(narrow, d, p + at.down, s.N, s.F, s.C);
    kernels::swiglu_backward(wide, narrow, a.gate_up, s.N, s.F);
    kernels::linear_backward_weight(g + at.gate_up, wide, a.normed2, s.N, s.C, 2 * s.F, /*accumulate=*/false);
    kernels::linear_backward_input(narrow, wide, p + at.gate_up, s.N, s.C, 2 * s.F);
    kernels::rmsnorm_backward(d, g + at.norm2, narrow, a.middle, p + at.norm2, a.rrms2, s.N, s.C);

    kernels::linear_backward_weight(g + at.out, d, a.attention, s.N, s.HD, s.C, /*accumulate=*/false);
    kernels::linear_backward_input(narrow, d, p + at.out, s.N, s.HD, s.C);
    kernels::attention_backward(wide, narrow, a.attention, a.qkv, a.lse, shape);
    kernels::rope(wide, buffers_.rope, s.B, s.T, s.H + s.K, s.D, s.QKV, /*inverse=*/true);
    kernels::linear_backward_weight(g + at.qkv, wide, a.normed1, s.N, s.C, s.QKV, /*accumulate=*/false);
    kernels::linear_backward_input(narrow, wide, p + at.qkv, s.N, s.C, s.QKV);
    kernels::rmsnorm_backward(d, g + at.norm1, narrow, x, p + at.norm1, a.rrms1, s.N, s.C);
  }

  void head_forward(const T* p) {
    const Sizes& s = sizes_;
    kernels::rmsnorm_forward(buffers_.head_normed, buffers_.head_rrms, buffers_.stream.back(), p, s.N, s.C,
                             s.epsilon);
    loss_.sum = 0.0;
    for (int64_t row = 0; row < s.N; row += s.chunk) loss_.sum += chunk_logits(p, row);
  }

  // Logits, loss and dlogits of the chunk that starts at `row`; returns the sum of its losses.
  double chunk_logits(const T* p, int64_t row) {
    const Sizes& s = sizes_;
    const int64_t rows = std::min(s.chunk, s.N - row);
    kernels::linear_forward_fp32(buffers_.logits, buffers_.head_normed + row * s.C, p + s.C, rows, s.C, s.V);
    return kernels::cross_entropy(buffers_.dlogits, buffers_.logits, buffers_.targets + row, rows, s.V,
                                  loss_scale_);
  }

  void head_backward(const T* p, float* g) {
    const Sizes& s = sizes_;
    for (int64_t row = 0; row < s.N; row += s.chunk) {
      const int64_t rows = std::min(s.chunk, s.N - row);
      if (s.chunk < s.N) chunk_logits(p, row);  // a single chunk is still there from forward
      kernels::linear_backward_input(buffers_.narrow + row * s.C, buffers_.dlogits, p + s.C, rows, s.C, s.V);
      kernels::linear_backward_weight(g + s.C, buffers_.dlogits, buffers_.head_normed + row * s.C, rows, s.C,
                                      s.V,
                                      /*accumulate=*/row > 0);
    }
    std::fill_n(reinterpret_cast<std::byte*>(buffers_.dstream), static_cast<size_t>(s.N * s.C) * sizeof(T),
                std::byte{0});
    kernels::rmsnorm_backward(buffers_.dstream, g, buffers_.narrow, buffers_.stream.back(), p,
                              buffers_.head_rrms, s.N, s.C);
  }

  Sizes sizes_;
  std::vector<BlockLayout> blocks_;
  std::vector<int> visits_;
  Memory memory_;
  Buffers<T> buffers_;
  float loss_scale_ = 1.0f;
  Loss loss_;
};

}  // namespace

int64_t Llama::activation_bytes(const LlamaConfig& config, kernels::DType compute, int micro_batch,
                                int sequence_length) {
  const Sizes sizes(config, micro_batch, sequence_length);
  return compute == kernels::DType::kFp32 ? Buffers<float>(sizes, nullptr).bytes
                                          : Buffers<Bf16>(sizes, nullptr).bytes;
}

base::Result<std::unique_ptr<Llama>> Llama::create(const LlamaConfig& config, kernels::DType compute,
                                                   int micro_batch, int sequence_length) {
  RETURN_IF_ERROR(check(config));
  if (micro_batch < 1 || sequence_length < 1) {
    return base::Error(base::Code::kInvalid, "micro_batch and sequence_length must be positive");
  }
  auto memory = Memory::create(activation_bytes(config, compute, micro_batch, sequence_length));
  if (!memory) return std::move(memory).error().context("activations");
  std::unique_ptr<Llama> llama;
  if (compute == kernels::DType::kFp32) {
    llama =
        std::make_unique<TypedLlama<float>>(config, micro_batch, sequence_length, std::move(memory).value());
  } else {
    llama =
        std::make_unique<TypedLlama<Bf16>>(config, micro_batch, sequence_length, std::move(memory).value());
  }
  return llama;
}

}  // namespace shardrun::model

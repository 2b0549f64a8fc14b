// Forward and backward of the blocks, read top to bottom; every op is documented in kernels/ops.h.
#include "runtime/model/bert.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/memory.h"
#include "runtime/model/bert_buffers.h"

namespace shardrun::model {

using base::Memory;
using kernels::Bf16;

namespace {

template <typename T>
class TypedBert : public Bert {
 public:
  TypedBert(const BertConfig& config, const ModelOptions& options, Memory saved, Memory scratch)
      : sizes_(config, options),
        blocks_(block_layouts(config)),
        saved_(std::move(saved)),
        scratch_(std::move(scratch)),
        buffers_(sizes_, saved_.data(), scratch_.data()) {
    SHARDRUN_CHECK(blocks_[0].elements == EmbeddingOffsets(sizes_).end);
    SHARDRUN_CHECK(blocks_[1].elements == BertLayerOffsets(sizes_).end);
    for (int block = 0; block <= config.layers; ++block) visits_.push_back(block);
    visits_.push_back(0);
    for (int64_t b = 0; b < sizes_.B; ++b) buffers_.first_rows[b] = static_cast<int32_t>(b * sizes_.T);
  }

  const std::vector<BlockLayout>& blocks() const override { return blocks_; }
  std::span<const int> visits() const override { return visits_; }
  std::span<const std::byte> hidden_states() const override {
    return std::as_bytes(std::span(buffers_.output, static_cast<size_t>(sizes_.N * sizes_.C)));
  }

  void set_batch(const Batch& batch) override;

  Result<void> forward(int visit, std::span<const std::byte> parameters) override {
    const T* p = checked(visit, parameters);
    if (visit == 0) {
      embedding_forward(p);
    } else if (visit <= sizes_.L) {
      layer_forward(visit - 1, p);
    } else {
      predictions_forward(p);
      relation_forward(p);
    }
    return {};
  }

  Loss loss() const override { return loss_; }

  Result<void> backward(int visit, std::span<const std::byte> parameters,
                        std::span<float> gradient) override {
    const T* p = checked(visit, parameters);
    SHARDRUN_CHECK(static_cast<int64_t>(gradient.size()) == block_of(visit).elements);
    if (visit == 0) {
      embedding_backward(p, gradient.data());
    } else if (visit <= sizes_.L) {
      layer_backward(visit - 1, p, gradient.data());
    } else {
      const EmbeddingOffsets at(sizes_);
      std::fill(gradient.begin() + at.position, gradient.begin() + at.pooler, 0.0f);
      predictions_backward(p, gradient.data());
      relation_backward(p, gradient.data());
    }
    return {};
  }

 private:
  const BlockLayout& block_of(int visit) const {
    return blocks_[static_cast<size_t>(visits_[static_cast<size_t>(visit)])];
  }
  const T* checked(int visit, std::span<const std::byte> parameters) const {
    SHARDRUN_CHECK(visit >= 0 && visit < static_cast<int>(visits_.size()));
    SHARDRUN_CHECK(parameters.size() == static_cast<size_t>(block_of(visit).elements) * sizeof(T));
    return reinterpret_cast<const T*>(parameters.data());
  }
  kernels::AttentionShape attention_shape() const {
    return {sizes_.B, sizes_.T, sizes_.H, sizes_.H, sizes_.D};
  }
  kernels::Visibility visibility() const {
    return {.causal = false, .begins = buffers_.begins, .lengths = buffers_.lengths};
  }

  void embedding_forward(const T* p) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    kernels::embedding_sum_forward(buffers_.embedded, buffers_.tokens, buffers_.positions, buffers_.segments,
                                   p + at.word, p + at.position, p + at.type, s.N, s.C);
    kernels::layernorm_forward<T>(buffers_.layers.front().input, buffers_.mean, buffers_.rstd,
                                  buffers_.embedded, nullptr, p + at.gamma, p + at.beta, s.N, s.C, s.epsilon);
  }

  void embedding_backward(const T* p, float* g) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    T* d = buffers_.gradient;
    kernels::layernorm_backward(d, g + at.gamma, g + at.beta, d, buffers_.embedded, p + at.gamma,
                                buffers_.mean, buffers_.rstd, s.N, s.C);
    kernels::embedding_backward(g + at.word, buffers_.tokens, d, s.N, s.C, s.V);
    kernels::embedding_backward(g + at.position, buffers_.positions, d, s.N, s.C, s.P);
    kernels::embedding_backward(g + at.type, buffers_.segments, d, s.N, s.C, s.types);
    std::fill(g + at.pooler, g + at.end, 0.0f);
  }

  T* output_of(int layer) {
    const auto next = static_cast<size_t>(layer) + 1;
    return next < buffers_.layers.size() ? buffers_.layers[next].input : buffers_.output;
  }

  void attention_forward(BertLayerActivations<T>& a, const T* p, const BertLayerOffsets& at) {
    const BertSizes& s = sizes_;
    kernels::linear_bias_forward(a.qkv, a.input, p + at.qkv, p + at.qkv_bias, s.N, s.C, 3 * s.C);
    kernels::attention_forward(a.attention, a.lse, a.qkv, attention_shape(), visibility());
    kernels::linear_bias_forward(a.sum1, a.attention, p + at.out, p + at.out_bias, s.N, s.C, s.C);
    kernels::layernorm_forward<T>(a.normed1, a.mean1, a.rstd1, a.sum1, a.input, p + at.gamma1, p + at.beta1,
                                  s.N, s.C, s.epsilon);
  }

  // sum2 without the residual.
  void feed_forward(BertLayerActivations<T>& a, const T* p, const BertLayerOffsets& at) {
    const BertSizes& s = sizes_;
    kernels::linear_bias_forward(a.up, a.normed1, p + at.up, p + at.up_bias, s.N, s.C, s.F);
    kernels::gelu_forward(a.activated, a.up, s.N * s.F);
    kernels::linear_bias_forward(a.sum2, a.activated, p + at.down, p + at.down_bias, s.N, s.F, s.C);
  }

  void layer_forward(int layer, const T* p) {
    const BertSizes& s = sizes_;
    const BertLayerOffsets at(s);
    BertLayerActivations<T>& a = buffers_.layers[static_cast<size_t>(layer)];
    attention_forward(a, p, at);
    feed_forward(a, p, at);
    kernels::layernorm_forward<T>(output_of(layer), a.mean2, a.rstd2, a.sum2, a.normed1, p + at.gamma2,
                                  p + at.beta2, s.N, s.C, s.epsilon);
    saved_.evict(a.begin, a.end - a.begin);
  }

  // What forward did not keep.
  void recompute(BertLayerActivations<T>& a, const T* p, const BertLayerOffsets& at) {
    const BertSizes& s = sizes_;
    if (s.checkpointing == Checkpointing::kFull) {
      attention_forward(a, p, at);
      feed_forward(a, p, at);
      kernels::add(a.sum2, a.sum2, a.normed1, s.N * s.C);
    } else if (s.checkpointing == Checkpointing::kSelective) {
      kernels::layernorm_forward<T>(a.normed1, a.mean1, a.rstd1, a.sum1, nullptr, p + at.gamma1, p + at.beta1,
                                    s.N, s.C, s.epsilon);
      kernels::gelu_forward(a.activated, a.up, s.N * s.F);
    }
  }

  // `gradient` holds that of the layer's output and leaves with that of its input.
  void layer_backward(int layer, const T* p, float* g) {
    const BertSizes& s = sizes_;
    const BertLayerOffsets at(s);
    BertLayerActivations<T>& a = buffers_.layers[static_cast<size_t>(layer)];
    if (layer > 0) {
      const BertLayerActivations<T>& next = buffers_.layers[static_cast<size_t>(layer) - 1];
      saved_.prefetch(next.begin, next.end - next.begin);
    }
    recompute(a, p, at);
    T *d = buffers_.gradient, *narrow = buffers_.narrow, *wide = buffers_.wide;

    kernels::layernorm_backward(d, g + at.gamma2, g + at.beta2, d, a.sum2, p + at.gamma2, a.mean2, a.rstd2,
                                s.N, s.C);
    kernels::bias_backward(g + at.down_bias, d, s.N, s.C, /*accumulate=*/false);
    kernels::linear_backward_weight(g + at.down, d, a.activated, s.N, s.F, s.C, /*accumulate=*/false);
    kernels::linear_backward_input(wide, d, p + at.down, s.N, s.F, s.C);
    kernels::gelu_backward(wide, wide, a.up, s.N * s.F);
    kernels::bias_backward(g + at.up_bias, wide, s.N, s.F, /*accumulate=*/false);
    kernels::linear_backward_weight(g + at.up, wide, a.normed1, s.N, s.C, s.F, /*accumulate=*/false);
    kernels::linear_backward_input(d, wide, p + at.up, s.N, s.C, s.F, /*accumulate=*/true);

    kernels::layernorm_backward(d, g + at.gamma1, g + at.beta1, d, a.sum1, p + at.gamma1, a.mean1, a.rstd1,
                                s.N, s.C);
    kernels::bias_backward(g + at.out_bias, d, s.N, s.C, /*accumulate=*/false);
    kernels::linear_backward_weight(g + at.out, d, a.attention, s.N, s.C, s.C, /*accumulate=*/false);
    kernels::linear_backward_input(narrow, d, p + at.out, s.N, s.C, s.C);
    kernels::attention_backward(wide, narrow, a.attention, a.qkv, a.lse, attention_shape(), visibility());
    kernels::bias_backward(g + at.qkv_bias, wide, s.N, 3 * s.C, /*accumulate=*/false);
    kernels::linear_backward_weight(g + at.qkv, wide, a.input, s.N, s.C, 3 * s.C, /*accumulate=*/false);
    kernels::linear_backward_input(d, wide, p + at.qkv, s.N, s.C, 3 * s.C, /*accumulate=*/true);
    saved_.evict(a.begin, a.end - a.begin);
  }

  void predictions_forward(const T* p) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    BertHeadActivations<T>& h = buffers_.head;
    loss_.sum = 0.0;
    if (padded_ == 0) return;
    kernels::embedding_forward(h.rows, buffers_.predicted, buffers_.output, padded_, s.C);
    kernels::linear_bias_forward(h.transformed, h.rows, p + at.transform, p + at.transform_bias, padded_, s.C,
                                 s.C);
    kernels::gelu_forward(h.activated, h.transformed, padded_ * s.C);
    kernels::layernorm_forward<T>(h.normed, h.mean, h.rstd, h.activated, nullptr, p + at.transform_gamma,
                                  p + at.transform_beta, padded_, s.C, s.epsilon);
    for (int64_t row = 0; row < padded_; row += s.chunk) loss_.sum += chunk_logits(p, row);
  }

  // Logits, loss and dlogits of the chunk that starts at `row`; returns the sum of its losses.
  double chunk_logits(const T* p, int64_t row) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    const int64_t rows = std::min(s.chunk, padded_ - row);
    kernels::linear_bias_forward_fp32(buffers_.head.logits, buffers_.head.normed + row * s.C, p + at.word,
                                      p + at.decoder_bias, rows, s.C, s.V);
    return kernels::cross_entropy(buffers_.head.dlogits, buffers_.head.logits, buffers_.targets + row, rows,
                                  s.V, loss_scale_);
  }

  // Starts the stream's gradient: zero in all rows but the predicted ones.
  void predictions_backward(const T* p, float* g) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    BertHeadActivations<T>& h = buffers_.head;
    if (padded_ == 0) {
      std::fill(g + at.word, g + at.position, 0.0f);
      std::fill(g + at.transform, g + at.relation, 0.0f);
      kernels::scatter_rows<T>(buffers_.gradient, nullptr, nullptr, 0, s.N, s.C);
      return;
    }
    T* d = buffers_.dnormed;
    for (int64_t row = 0; row < padded_; row += s.chunk) {
      const int64_t rows = std::min(s.chunk, padded_ - row);
      if (s.chunk < padded_) chunk_logits(p, row);  // a single chunk is still there from forward
      kernels::linear_backward_input(d + row * s.C, h.dlogits, p + at.word, rows, s.C, s.V);
      kernels::linear_backward_weight(g + at.word, h.dlogits, h.normed + row * s.C, rows, s.C, s.V,
                                      /*accumulate=*/row > 0);
      kernels::bias_backward(g + at.decoder_bias, h.dlogits, rows, s.V, /*accumulate=*/row > 0);
    }
    kernels::layernorm_backward(d, g + at.transform_gamma, g + at.transform_beta, d, h.activated,
                                p + at.transform_gamma, h.mean, h.rstd, padded_, s.C);
    kernels::gelu_backward(d, d, h.transformed, padded_ * s.C);
    kernels::bias_backward(g + at.transform_bias, d, padded_, s.C, /*accumulate=*/false);
    kernels::linear_backward_weight(g + at.transform, d, h.rows, padded_, s.C, s.C, /*accumulate=*/false);
    kernels::linear_backward_input(h.rows, d, p + at.transform, padded_, s.C, s.C);
    kernels::scatter_rows(buffers_.gradient, buffers_.predicted, h.rows, loss_.tokens, s.N, s.C);
  }

  void relation_forward(const T* p) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    BertHeadActivations<T>& h = buffers_.head;
    kernels::embedding_forward(h.first, buffers_.first_rows, buffers_.output, s.B, s.C);
    kernels::linear_bias_forward(h.pooled, h.first, p + at.pooler, p + at.pooler_bias, s.B, s.C, s.C);
    kernels::tanh_forward(h.pooled, h.pooled, s.B * s.C);
    kernels::linear_bias_forward_fp32(h.relation, h.pooled, p + at.relation, p + at.relation_bias, s.B, s.C,
                                      kRelations);
    loss_.next_sentence_sum = kernels::cross_entropy(h.drelation, h.relation, buffers_.next_sentence, s.B,
                                                     kRelations, next_sentence_scale_);
  }

  // Adds to the stream's gradient in column 0.
  void relation_backward(const T* p, float* g) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    BertHeadActivations<T>& h = buffers_.head;
    T* d = buffers_.dpooled;
    kernels::bias_backward(g + at.relation_bias, h.drelation, s.B, kRelations, /*accumulate=*/false);
    kernels::linear_backward_weight(g + at.relation, h.drelation, h.pooled, s.B, s.C, kRelations,
                                    /*accumulate=*/false);
    kernels::linear_backward_input(d, h.drelation, p + at.relation, s.B, s.C, kRelations);
    kernels::tanh_backward(d, d, h.pooled, s.B * s.C);
    kernels::bias_backward(g + at.pooler_bias, d, s.B, s.C, /*accumulate=*/false);
    kernels::linear_backward_weight(g + at.pooler, d, h.first, s.B, s.C, s.C, /*accumulate=*/false);
    kernels::linear_backward_input(h.first, d, p + at.pooler, s.B, s.C, s.C);
    for (int64_t b = 0; b < s.B; ++b) {
      T* row = buffers_.gradient + b * s.T * s.C;
      kernels::add(row, row, h.first + b * s.C, s.C);
    }
  }

  BertSizes sizes_;
  std::vector<BlockLayout> blocks_;
  std::vector<int> visits_;
  Memory saved_, scratch_;
  BertBuffers<T> buffers_;
  int64_t padded_ = 0;  // rows of the head: loss_.tokens, rounded up
  float loss_scale_ = 1.0f, next_sentence_scale_ = 0.0f;
  Loss loss_;
};

bool all_within(std::span<const int32_t> values, int64_t least, int64_t end) {
  return std::all_of(values.begin(), values.end(), [=](int32_t v) { return v >= least && v < end; });
}

// `values`, or the default everywhere when there are none.
void copy_or(int32_t* to, std::span<const int32_t> values, int64_t count, int32_t otherwise) {
  SHARDRUN_CHECK(values.empty() || static_cast<int64_t>(values.size()) == count);
  if (values.empty()) {
    std::fill_n(to, count, otherwise);
  } else {
    std::copy(values.begin(), values.end(), to);
  }
}

template <typename T>
void TypedBert<T>::set_batch(const Batch& batch) {
  const BertSizes& s = sizes_;
  SHARDRUN_CHECK(static_cast<int64_t>(batch.tokens.size()) == s.N &&
                 batch.targets.size() == batch.tokens.size());
  SHARDRUN_CHECK(all_within(batch.tokens, 0, s.V) && all_within(batch.targets, -1, s.V));
  SHARDRUN_CHECK(all_within(batch.segments, 0, s.types) && all_within(batch.lengths, 0, s.T + 1));
  SHARDRUN_CHECK(all_within(batch.next_sentence, -1, kRelations) &&
                 all_within(batch.document_begins, 0, s.T));
  std::copy(batch.tokens.begin(), batch.tokens.end(), buffers_.tokens);
  copy_or(buffers_.segments, batch.segments, s.N, 0);
  copy_or(buffers_.begins, batch.document_begins, s.N, 0);
  copy_or(buffers_.lengths, batch.lengths, s.B, static_cast<int32_t>(s.T));
  copy_or(buffers_.next_sentence, batch.next_sentence, s.B, -1);
  for (int64_t n = 0; n < s.N; ++n) {
    buffers_.positions[n] = static_cast<int32_t>(n % s.T) - buffers_.begins[n];
    SHARDRUN_CHECK(buffers_.positions[n] >= 0);
  }
  loss_scale_ = batch.loss_scale;
  next_sentence_scale_ = batch.next_sentence_scale;
  loss_ = {};
  for (int64_t n = 0; n < s.N; ++n) {
    if (batch.targets[static_cast<size_t>(n)] < 0) continue;
    SHARDRUN_CHECK(loss_.tokens < s.M);
    buffers_.predicted[loss_.tokens] = static_cast<int32_t>(n);
    buffers_.targets[loss_.tokens++] = batch.targets[static_cast<size_t>(n)];
  }
  // Padding repeats row 0 without a target, so all of its gradients are zero.
  padded_ = BertSizes::padded_rows(loss_.tokens);
  std::fill(buffers_.predicted + loss_.tokens, buffers_.predicted + padded_, 0);
  std::fill(buffers_.targets + loss_.tokens, buffers_.targets + padded_, -1);
  loss_.sequences = std::count_if(buffers_.next_sentence, buffers_.next_sentence + s.B,
                                  [](int32_t label) { return label >= 0; });
}

template <typename T>
ActivationBytes bytes_of(const BertSizes& sizes, bool offloads) {
  const BertBuffers<T> buffers(sizes, nullptr, nullptr);
  if (!offloads) return {.resident = buffers.saved_bytes + buffers.scratch_bytes};
  return {buffers.scratch_bytes, buffers.saved_bytes, buffers.offload_window()};
}

template <typename T>
Result<std::unique_ptr<Bert>> make(const BertConfig& config, const ModelOptions& options) {
  const BertBuffers<T> plan(BertSizes(config, options), nullptr, nullptr);
  auto saved = options.offload_directory.empty()
                   ? Memory::create(plan.saved_bytes)
                   : Memory::create_in_file(plan.saved_bytes, options.offload_directory);
  if (!saved) return std::move(saved).error().context("activations");
  auto scratch = Memory::create(plan.scratch_bytes);
  if (!scratch) return std::move(scratch).error().context("activations");
  return std::unique_ptr<Bert>(
      std::make_unique<TypedBert<T>>(config, options, std::move(saved).value(), std::move(scratch).value()));
}

}  // namespace

ActivationBytes Bert::activation_bytes(const BertConfig& config, const ModelOptions& options) {
  const BertSizes sizes(config, options);
  const bool offloads = !options.offload_directory.empty();
  return options.compute == kernels::DType::kFp32 ? bytes_of<float>(sizes, offloads)
                                                  : bytes_of<Bf16>(sizes, offloads);
}

Result<std::unique_ptr<Bert>> Bert::create(const BertConfig& config, const ModelOptions& options) {
  RETURN_IF_ERROR(check(config));
  if (options.micro_batch < 1 || options.sequence_length < 1) {
    return base::Error(base::Code::kInvalid, "micro_batch and sequence_length must be positive");
  }
  if (options.sequence_length > config.max_positions) {
    return base::Error(
        base::Code::kInvalid,
        fmt::format("sequence_length {} is above this BERT's max_positions {}; shorten the one "
                    "or raise the other",
                    options.sequence_length, config.max_positions));
  }
  return options.compute == kernels::DType::kFp32 ? make<float>(config, options)
                                                  : make<Bf16>(config, options);
}

}  // namespace shardrun::model

// Forward and backward of the blocks, read top to bottom; every op is documented in kernels/ops.h.
#include "runtime/trainer/model/bert.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "runtime/base/memory.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/model/activation_memory.h"
#include "runtime/trainer/model/bert_offsets.h"

namespace shardrun::model {

using base::Memory;
using kernels::Bf16;
using plan::BertBuffers;
using plan::BertHeadActivations;
using plan::BertLayerActivations;
using plan::kChunkLoss;
using plan::kLosses;
using plan::kRelations;

namespace {

template <typename T>
class TypedBert : public Bert {
 public:
  TypedBert(const BertConfig& config, const ModelOptions& options, ActivationMemory memory)
      : backend_(*options.backend),
        ops_(backend_.ops<T>()),
        sizes_(config, options),
        blocks_(block_layouts(config)),
        saved_(std::move(memory.saved)),
        scratch_(std::move(memory.scratch)),
        buffers_(sizes_, saved_.data(), scratch_.data()),
        offloaded_(std::move(memory.offloaded)) {
    SHARDRUN_CHECK(blocks_[0].elements == EmbeddingOffsets(sizes_).end);
    SHARDRUN_CHECK(blocks_[1].elements == BertLayerOffsets(sizes_).end);
    for (int block = 0; block <= config.layers; ++block) visits_.push_back(block);
    visits_.push_back(0);
    std::vector<int32_t> first_rows;
    for (int64_t b = 0; b < sizes_.relations; ++b) first_rows.push_back(static_cast<int32_t>(b * sizes_.T));
    upload(buffers_.first_rows, first_rows);
  }

  const std::vector<BlockLayout>& blocks() const override { return blocks_; }
  const std::vector<BlockLayout>& frozen() const override { return frozen_; }
  std::span<const int> visits() const override { return visits_; }
  std::span<const std::byte> hidden_states() const override {
    return std::as_bytes(std::span(buffers_.output, sizes_.N * sizes_.C));
  }

  void set_batch(const Batch& batch) override;

  Result<void> forward(int visit, std::span<const std::byte> parameters,
                       std::span<const std::byte> /*frozen*/) override {
    const T* p = checked(visit, parameters);
    if (visit == 0) return embedding_forward(p);
    if (visit <= sizes_.L) {
      return repeat("a layer's forward", visit - 1, {p, nullptr},
                    [&] { return layer_forward(visit - 1, p); });
    }
    predictions_forward(p);
    if (sizes_.relations > 0) relation_forward(p);
    return {};
  }

  Loss loss() const override {
    double sums[2] = {0.0, 0.0};
    (void)backend_.download(sums, buffers_.losses, sizeof sums);  // the backend keeps and tells its failures
    return {sums[0], predicted_, sums[1], labels_};
  }
  const double* loss_sums() const override { return buffers_.losses; }

  Result<void> backward(int visit, std::span<const std::byte> parameters, std::span<float> gradient,
                        bool accumulate, std::span<const std::byte> /*frozen*/) override {
    const T* p = checked(visit, parameters);
    SHARDRUN_CHECK(static_cast<int64_t>(gradient.size()) == block_of(visit).elements);
    accumulate_ = accumulate;
    float* const g = gradient.data();
    if (visit == 0) {
      embedding_backward(p, g);
      return {};
    }
    if (visit <= sizes_.L) {
      return repeat("a layer's backward", visit - 1, {p, g}, [&] { return layer_backward(visit - 1, p, g); });
    }
    const EmbeddingOffsets at(sizes_);
    give_nothing(g, at.position, at.pooler);
    predictions_backward(p, g);
    if (sizes_.relations > 0) relation_backward(p, g);
    return {};
  }

 private:
  void upload(int32_t* to, std::span<const int32_t> from) {
    backend_.upload(to, from.data(), static_cast<int64_t>(from.size_bytes()));
  }
  // To elements [begin, end) of a block's gradient.
  void give_nothing(float* gradient, int64_t begin, int64_t end) {
    if (!accumulate_) backend_.zero(gradient + begin, (end - begin) * int64_t{sizeof(float)});
  }
  // As the op, whose gradients of weights may here be added to others'.
  void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                          const float* mean, const float* rstd, int64_t N) {
    const int64_t C = sizes_.C;
    float *const own_gamma = accumulate_ ? buffers_.norm_gradient : dgamma, *const own_beta =
                                                                                accumulate_ ? own_gamma + C
                                                                                            : dbeta;
    ops_.norms.layernorm_backward(dx, own_gamma, own_beta, dy, x, gamma, mean, rstd, N, C);
    if (!accumulate_) return;
    const kernels::Ops<float>& fp32 = backend_.ops<float>();
    fp32.pointwise.add(dgamma, dgamma, own_gamma, C);
    fp32.pointwise.add(dbeta, dbeta, own_beta, C);
  }
  const BlockLayout& block_of(int visit) const { return blocks_[visits_[visit]]; }
  const T* checked(int visit, std::span<const std::byte> parameters) const {
    SHARDRUN_CHECK(visit >= 0 && visit < static_cast<int>(visits_.size()));
    SHARDRUN_CHECK(parameters.size() == static_cast<size_t>(block_of(visit).elements) * sizeof(T));
    return reinterpret_cast<const T*>(parameters.data());
  }
  kernels::AttentionShape attention_shape() const {
    return {sizes_.B, sizes_.T, sizes_.H, sizes_.H, sizes_.D};
  }

  Result<void> embedding_forward(const T* p) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    RETURN_IF_ERROR(make_room(0));
    ops_.embedding.sum_forward(buffers_.embedded, buffers_.tokens, buffers_.positions, buffers_.segments,
                               p + at.word, p + at.position, p + at.type, s.N, s.C);
    ops_.norms.layernorm_forward(buffers_.layers.front().input, buffers_.mean, buffers_.rstd,
                                 buffers_.embedded, nullptr, p + at.gamma, p + at.beta, s.N, s.C, s.epsilon);
    return {};
  }

  void embedding_backward(const T* p, float* g) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    T* d = buffers_.gradient;
    layernorm_backward(d, g + at.gamma, g + at.beta, d, buffers_.embedded, p + at.gamma, buffers_.mean,
                       buffers_.rstd, s.N);
    ops_.embedding.backward(g + at.word, buffers_.tokens, d, s.N, s.C, s.V, accumulate_);
    ops_.embedding.backward(g + at.position, buffers_.positions, d, s.N, s.C, s.P, accumulate_);
    ops_.embedding.backward(g + at.type, buffers_.segments, d, s.N, s.C, s.types, accumulate_);
    give_nothing(g, at.pooler, at.end);
  }

  // With layers that wait on the host, more happens in a layer than ops.
  template <typename LayerOps>
  Result<void> repeat(const char* name, int layer, std::array<const void*, 2> memory, const LayerOps& ops) {
    if (offloaded_) return ops();
    const bool adds = memory[1] != nullptr && accumulate_;  // of a backward
    const uint64_t masks =
        (visibility_.begins != nullptr ? 1U : 0U) | (visibility_.lengths != nullptr ? 2U : 0U);
    return backend_.repeat({name, layer, memory, masks | (adds ? 4U : 0U)}, ops);
  }

  T* output_of(int layer) {
    const auto next = static_cast<size_t>(layer) + 1;
    return next < buffers_.layers.size() ? buffers_.layers[next].input : buffers_.output;
  }

  void attention_forward(BertLayerActivations<T>& a, const T* p, const BertLayerOffsets& at) {
    const BertSizes& s = sizes_;
    ops_.products.linear_bias_forward(a.qkv, a.input, p + at.qkv, p + at.qkv_bias, s.N, s.C, 3 * s.C);
    ops_.attention.forward(a.attention, a.lse, a.qkv, attention_shape(), visibility_);
    ops_.products.linear_bias_forward(a.sum1, a.attention, p + at.out, p + at.out_bias, s.N, s.C, s.C);
    ops_.norms.layernorm_forward(a.normed1, a.mean1, a.rstd1, a.sum1, a.input, p + at.gamma1, p + at.beta1,
                                 s.N, s.C, s.epsilon);
  }

  // sum2 without the residual.
  void feed_forward(BertLayerActivations<T>& a, const T* p, const BertLayerOffsets& at) {
    const BertSizes& s = sizes_;
    ops_.products.linear_bias_forward(a.up, a.normed1, p + at.up, p + at.up_bias, s.N, s.C, s.F);
    ops_.pointwise.gelu_forward(a.activated, a.up, s.N * s.F);
    ops_.products.linear_bias_forward(a.sum2, a.activated, p + at.down, p + at.down_bias, s.N, s.F, s.C);
  }

  // For what the layer before writes: the layer's input.
  Result<void> make_room(int layer) {
    return offloaded_ && layer < sizes_.L ? offloaded_->before_forward(layer) : Result<void>();
  }

  Result<void> layer_forward(int layer, const T* p) {
    const BertSizes& s = sizes_;
    const BertLayerOffsets at(s);
    BertLayerActivations<T>& a = buffers_.layers[layer];
    attention_forward(a, p, at);
    feed_forward(a, p, at);
    RETURN_IF_ERROR(make_room(layer + 1));
    ops_.norms.layernorm_forward(output_of(layer), a.mean2, a.rstd2, a.sum2, a.normed1, p + at.gamma2,
                                 p + at.beta2, s.N, s.C, s.epsilon);
    if (offloaded_ && backward_follows_) RETURN_IF_ERROR(offloaded_->after_forward(layer));
    saved_.evict(a.begin, a.end - a.begin);
    return {};
  }

  // What forward did not keep.
  void recompute(BertLayerActivations<T>& a, const T* p, const BertLayerOffsets& at) {
    const BertSizes& s = sizes_;
    if (s.checkpointing == Checkpointing::kFull) {
      attention_forward(a, p, at);
      feed_forward(a, p, at);
      ops_.pointwise.add(a.sum2, a.sum2, a.normed1, s.N * s.C);
    } else if (s.checkpointing == Checkpointing::kSelective) {
      ops_.norms.layernorm_forward(a.normed1, a.mean1, a.rstd1, a.sum1, nullptr, p + at.gamma1, p + at.beta1,
                                   s.N, s.C, s.epsilon);
      ops_.pointwise.gelu_forward(a.activated, a.up, s.N * s.F);
    }
  }

  // `gradient` holds that of the layer's output and leaves with that of its input.
  Result<void> layer_backward(int layer, const T* p, float* g) {
    const BertSizes& s = sizes_;
    const BertLayerOffsets at(s);
    BertLayerActivations<T>& a = buffers_.layers[layer];
    if (layer > 0) {
      const BertLayerActivations<T>& next = buffers_.layers[static_cast<size_t>(layer) - 1];
      saved_.prefetch(next.begin, next.end - next.begin);
    }
    if (offloaded_) RETURN_IF_ERROR(offloaded_->before_backward(layer));
    recompute(a, p, at);
    T *d = buffers_.gradient, *narrow = buffers_.narrow, *wide = buffers_.wide;

    layernorm_backward(d, g + at.gamma2, g + at.beta2, d, a.sum2, p + at.gamma2, a.mean2, a.rstd2, s.N);
    ops_.products.bias_backward(g + at.down_bias, d, s.N, s.C, accumulate_);
    ops_.products.linear_backward_weight(g + at.down, d, a.activated, s.N, s.F, s.C, accumulate_);
    ops_.products.linear_backward_input(wide, d, p + at.down, s.N, s.F, s.C);
    ops_.pointwise.gelu_backward(wide, wide, a.up, s.N * s.F);
    ops_.products.bias_backward(g + at.up_bias, wide, s.N, s.F, accumulate_);
    ops_.products.linear_backward_weight(g + at.up, wide, a.normed1, s.N, s.C, s.F, accumulate_);
    ops_.products.linear_backward_input(d, wide, p + at.up, s.N, s.C, s.F, /*accumulate=*/true);

    layernorm_backward(d, g + at.gamma1, g + at.beta1, d, a.sum1, p + at.gamma1, a.mean1, a.rstd1, s.N);
    ops_.products.bias_backward(g + at.out_bias, d, s.N, s.C, accumulate_);
    ops_.products.linear_backward_weight(g + at.out, d, a.attention, s.N, s.C, s.C, accumulate_);
    ops_.products.linear_backward_input(narrow, d, p + at.out, s.N, s.C, s.C);
    ops_.attention.backward(wide, narrow, a.attention, a.qkv, a.lse, attention_shape(), visibility_);
    ops_.products.bias_backward(g + at.qkv_bias, wide, s.N, 3 * s.C, accumulate_);
    ops_.products.linear_backward_weight(g + at.qkv, wide, a.input, s.N, s.C, 3 * s.C, accumulate_);
    ops_.products.linear_backward_input(d, wide, p + at.qkv, s.N, s.C, 3 * s.C, /*accumulate=*/true);
    saved_.evict(a.begin, a.end - a.begin);
    return {};
  }

  void predictions_forward(const T* p) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    BertHeadActivations<T>& h = buffers_.head;
    backend_.zero(buffers_.losses, sizeof(double));
    if (padded_ == 0) return;
    ops_.embedding.forward(h.rows, buffers_.predicted, buffers_.output, padded_, s.C);
    ops_.products.linear_bias_forward(h.transformed, h.rows, p + at.transform, p + at.transform_bias, padded_,
                                      s.C, s.C);
    ops_.pointwise.gelu_forward(h.activated, h.transformed, padded_ * s.C);
    ops_.norms.layernorm_forward(h.normed, h.mean, h.rstd, h.activated, nullptr, p + at.transform_gamma,
                                 p + at.transform_beta, padded_, s.C, s.epsilon);
    for (int64_t row = 0; row < padded_; row += s.chunk) {
      chunk_logits(p, row);
      backend_.optimizer().accumulate(buffers_.losses, buffers_.losses + kChunkLoss, 1);
    }
  }

  // Logits, loss and dlogits of the chunk that starts at `row`.
  void chunk_logits(const T* p, int64_t row) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    const int64_t rows = std::min(s.chunk, padded_ - row);
    ops_.products.linear_bias_forward_fp32(buffers_.head.logits, buffers_.head.normed + row * s.C,
                                           p + at.word, p + at.decoder_bias, rows, s.C, s.V);
    ops_.classifier.cross_entropy(buffers_.losses + kChunkLoss, buffers_.head.dlogits, buffers_.head.logits,
                                  buffers_.targets + row, rows, s.V, loss_scale_);
  }

  // Starts the stream's gradient: zero in all rows but the predicted ones.
  void predictions_backward(const T* p, float* g) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    BertHeadActivations<T>& h = buffers_.head;
    if (padded_ == 0) {
      give_nothing(g, at.word, at.position);
      give_nothing(g, at.transform, at.relation);
      ops_.embedding.scatter_rows(buffers_.gradient, nullptr, nullptr, 0, s.N, s.C);
      return;
    }
    T* d = buffers_.dnormed;
    for (int64_t row = 0; row < padded_; row += s.chunk) {
      const int64_t rows = std::min(s.chunk, padded_ - row);
      if (s.chunk < padded_) chunk_logits(p, row);  // a single chunk is still there from forward
      ops_.products.linear_backward_input(d + row * s.C, h.dlogits, p + at.word, rows, s.C, s.V);
      ops_.products.linear_backward_weight(g + at.word, h.dlogits, h.normed + row * s.C, rows, s.C, s.V,
                                           /*accumulate=*/accumulate_ || row > 0);
      ops_.products.bias_backward(g + at.decoder_bias, h.dlogits, rows, s.V,
                                  /*accumulate=*/accumulate_ || row > 0);
    }
    layernorm_backward(d, g + at.transform_gamma, g + at.transform_beta, d, h.activated,
                       p + at.transform_gamma, h.mean, h.rstd, padded_);
    ops_.pointwise.gelu_backward(d, d, h.transformed, padded_ * s.C);
    ops_.products.bias_backward(g + at.transform_bias, d, padded_, s.C, accumulate_);
    ops_.products.linear_backward_weight(g + at.transform, d, h.rows, padded_, s.C, s.C, accumulate_);
    ops_.products.linear_backward_input(h.rows, d, p + at.transform, padded_, s.C, s.C);
    ops_.embedding.scatter_rows(buffers_.gradient, buffers_.predicted, h.rows, predicted_, s.N, s.C);
  }

  void relation_forward(const T* p) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    BertHeadActivations<T>& h = buffers_.head;
    ops_.embedding.forward(h.first, buffers_.first_rows, buffers_.output, s.B, s.C);
    ops_.products.linear_bias_forward(h.pooled, h.first, p + at.pooler, p + at.pooler_bias, s.B, s.C, s.C);
    ops_.pointwise.tanh_forward(h.pooled, h.pooled, s.B * s.C);
    ops_.products.linear_bias_forward_fp32(h.relation, h.pooled, p + at.relation, p + at.relation_bias, s.B,
                                           s.C, kRelations);
    ops_.classifier.cross_entropy(buffers_.losses + 1, h.drelation, h.relation, buffers_.next_sentence, s.B,
                                  kRelations, sequence_scale_);
  }

  // Adds to the stream's gradient in column 0.
  void relation_backward(const T* p, float* g) {
    const BertSizes& s = sizes_;
    const EmbeddingOffsets at(s);
    BertHeadActivations<T>& h = buffers_.head;
    T* d = buffers_.dpooled;
    ops_.products.bias_backward(g + at.relation_bias, h.drelation, s.B, kRelations, accumulate_);
    ops_.products.linear_backward_weight(g + at.relation, h.drelation, h.pooled, s.B, s.C, kRelations,
                                         accumulate_);
    ops_.products.linear_backward_input(d, h.drelation, p + at.relation, s.B, s.C, kRelations);
    ops_.pointwise.tanh_backward(d, d, h.pooled, s.B * s.C);
    ops_.products.bias_backward(g + at.pooler_bias, d, s.B, s.C, accumulate_);
    ops_.products.linear_backward_weight(g + at.pooler, d, h.first, s.B, s.C, s.C, accumulate_);
    ops_.products.linear_backward_input(h.first, d, p + at.pooler, s.B, s.C, s.C);
    for (int64_t b = 0; b < s.B; ++b) {
      T* row = buffers_.gradient + b * s.T * s.C;
      ops_.pointwise.add(row, row, h.first + b * s.C, s.C);
    }
  }

  kernels::Backend& backend_;
  const kernels::Ops<T>& ops_;
  BertSizes sizes_;
  std::vector<BlockLayout> blocks_, frozen_;
  std::vector<int> visits_;
  Memory saved_, scratch_;
  BertBuffers<T> buffers_;
  std::unique_ptr<OffloadedLayers> offloaded_;  // null: all layers stay; goes before the memory
  kernels::Visibility visibility_;              // of the batch
  int64_t predicted_ = 0;                       // tokens with a target
  int64_t padded_ = 0;                          // rows of the head: predicted_ and padding
  int64_t labels_ = 0;                          // sequences with a next-sentence label
  float loss_scale_ = 1.0f, sequence_scale_ = 0.0f;
  bool backward_follows_ = false;
  bool accumulate_ = false;  // of the backward at hand
};

bool all_within(std::span<const int32_t> values, int64_t least, int64_t end) {
  return std::all_of(values.begin(), values.end(), [=](int32_t v) { return v >= least && v < end; });
}

// `values`, or the default everywhere when there are none.
std::vector<int32_t> values_or(std::span<const int32_t> values, int64_t count, int32_t otherwise) {
  SHARDRUN_CHECK(values.empty() || static_cast<int64_t>(values.size()) == count);
  if (values.empty()) return std::vector<int32_t>(count, otherwise);
  return {values.begin(), values.end()};
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
  const auto begins = values_or(batch.document_begins, s.N, 0);
  const auto lengths = values_or(batch.lengths, s.B, static_cast<int32_t>(s.T));
  auto labels = values_or(batch.next_sentence, s.B, -1);
  labels.resize(s.relations);
  // Attention need not look up what is the same everywhere.
  const auto differ = [](const std::vector<int32_t>& values, int64_t usual) {
    return std::any_of(values.begin(), values.end(), [=](int32_t value) { return value != usual; });
  };
  visibility_ = {.causal = false,
                 .begins = differ(begins, 0) ? buffers_.begins : nullptr,
                 .lengths = differ(lengths, s.T) ? buffers_.lengths : nullptr};
  std::vector<int32_t> positions, predicted, targets;
  for (int64_t n = 0; n < s.N; ++n) {
    const int64_t place = n % s.T - begins[n];
    SHARDRUN_CHECK(place >= 0);
    positions.push_back(static_cast<int32_t>(s.first_position + place));
  }
  loss_scale_ = batch.loss_scale;
  backward_follows_ = batch.backward_follows;
  sequence_scale_ = batch.sequence_scale;
  for (int64_t n = 0; n < s.N; ++n) {
    if (batch.targets[n] < 0) continue;
    predicted.push_back(static_cast<int32_t>(n));
    targets.push_back(batch.targets[n]);
  }
  predicted_ = static_cast<int64_t>(predicted.size());
  SHARDRUN_CHECK(predicted_ <= s.M);
  // Padding repeats row 0 without a target, so all of its gradients are zero.
  padded_ = s.padded_rows(predicted_);
  predicted.resize(padded_, 0);
  targets.resize(padded_, -1);
  labels_ = std::count_if(labels.begin(), labels.end(), [](int32_t label) { return label >= 0; });
  upload(buffers_.tokens, batch.tokens);
  upload(buffers_.segments, values_or(batch.segments, s.N, 0));
  upload(buffers_.begins, begins);
  upload(buffers_.lengths, lengths);
  upload(buffers_.next_sentence, labels);
  upload(buffers_.positions, positions);
  upload(buffers_.predicted, predicted);
  upload(buffers_.targets, targets);
  backend_.zero(buffers_.losses, kLosses * int64_t{sizeof(double)});
}

template <typename T>
Result<std::unique_ptr<Bert>> make(const BertConfig& config, const ModelOptions& options) {
  ASSIGN_OR_RETURN(auto memory, allocate_activations(
                                    BertBuffers<T>(BertSizes(config, options), nullptr, nullptr), options));
  return std::unique_ptr<Bert>(std::make_unique<TypedBert<T>>(config, options, std::move(memory)));
}

}  // namespace

Result<std::unique_ptr<Bert>> Bert::create(const BertConfig& config, const ModelOptions& options) {
  RETURN_IF_ERROR(check(config));
  if (options.micro_batch < 1 || options.sequence_length < 1) {
    return base::Error(base::Code::kInvalid, "micro_batch and sequence_length must be positive");
  }
  if (options.sequence_length > config.max_positions - config.first_position()) {
    const std::string without =
        config.next_sentence ? "" : fmt::format(" without the first {}", config.first_position());
    return base::Error(
        base::Code::kInvalid,
        fmt::format("sequence_length {} is above this BERT's max_positions {}{}; shorten the one "
                    "or raise the other",
                    options.sequence_length, config.max_positions, without));
  }
  SHARDRUN_CHECK(!options.offload || options.device == options.backend->kind());
  return options.compute == kernels::DType::kFp32 ? make<float>(config, options)
                                                  : make<Bf16>(config, options);
}

}  // namespace shardrun::model

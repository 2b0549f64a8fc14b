// Forward and backward of the blocks, read top to bottom; every op is documented in kernels/ops.h.
#include "runtime/trainer/model/llama.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "runtime/plan/model/llama_buffers.h"
#include "runtime/plan/model/network.h"
#include "runtime/plan/model/rotary.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/model/activation_memory.h"
#include "runtime/trainer/model/block_linears.h"
#include "runtime/trainer/model/experts.h"
#include "runtime/trainer/model/linear_adapters.h"
#include "runtime/trainer/model/llama_offsets.h"
#include "runtime/trainer/model/shared_attention.h"
#include "runtime/trainer/model/tensor_group.h"

namespace shardrun::model {

using base::Memory;
using kernels::Bf16;
using plan::kChunkLoss;
using plan::kLosses;
using plan::LlamaBuffers;
using plan::LlamaLayerActivations;
using Sizes = plan::LlamaSizes;
static_assert(plan::Fp8Memory::kScalingBytes == sizeof(kernels::Fp8Scaling));

namespace {

template <typename T>
class TypedLlama : public Llama {
 public:
  // `fp8_ops`: null, or the backend's.
  TypedLlama(const LlamaConfig& config, const ModelOptions& options, ActivationMemory memory,
             const kernels::Fp8Ops* fp8_ops)
      : backend_(*options.backend),
        ops_(backend_.ops<T>()),
        tensor_(options.tensor),
        sizes_(config, options, tensor_.size()),
        stage_(options.stage),
        blocks_(plan::blocks_of_stage(config, plan::trained_blocks(config, tensor_.rank(), tensor_.size()),
                                      stage_)),
        frozen_(plan::frozen_blocks(config)),
        saved_(std::move(memory.saved)),
        scratch_(std::move(memory.scratch)),
        buffers_(sizes_, saved_.data(), scratch_.data()),
        offloaded_(std::move(memory.offloaded)),
        fp8_(backend_, reinterpret_cast<kernels::Fp8Scaling*>(buffers_.fp8.scalings),
             BlockLinears<T>::formats(sizes_.fp8 ? sizes_.L : 0)),
        linears_(ops_, fp8_ops, sizes_.fp8 ? &fp8_ : nullptr, buffers_.fp8),
        attention_(backend_, ops_, options.context, sizes_, buffers_.shared_keys),
        adapters_(ops_, config, sizes_.N, buffers_),
        experts_(ops_, config, sizes_.experts, buffers_.experts, options.experts) {
    const auto table =
        attention_.own_rows(plan::rope_table(sizes_.T, sizes_.D, config.rope_theta, config.rope));
    backend_.upload(buffers_.rope, table.data(), static_cast<int64_t>(table.size() * sizeof(float)));
    visits_of_model_ = static_cast<int>(blocks_.size()) + int{config.tied_embeddings};
    visits_ = stage_.visits(visits_of_model_);
    for (const int visit : visits_) visited_.push_back(number_of_block(visit));
    if (stage_.is_whole()) stage_.chunks = {{0, static_cast<int>(sizes_.L)}};
    // The head's parameters: [norm, matrix] in a block of their own, [matrix, norm] behind the embedding.
    head_matrix_ = config.tied_embeddings ? 0 : sizes_.C;
    head_norm_ = config.tied_embeddings ? sizes_.V * sizes_.C : 0;
  }

  const std::vector<BlockLayout>& blocks() const override { return blocks_; }
  const std::vector<BlockLayout>& frozen() const override { return frozen_; }
  std::span<const int> visits() const override { return visited_; }
  StageBorder border() override {
    const int64_t count = sizes_.R * sizes_.C;
    const auto bytes = [&](T* rows) { return std::as_writable_bytes(std::span(rows, count)); };
    return {bytes(activations(here_.first).input), bytes(buffers_.output), bytes(buffers_.dstream)};
  }
  Fp8State* fp8() override { return sizes_.fp8 ? &fp8_ : nullptr; }

  void set_batch(const Batch& batch) override {
    const auto tokens = batch.tokens, targets = batch.targets;
    SHARDRUN_CHECK(static_cast<int64_t>(tokens.size()) == sizes_.N && targets.size() == tokens.size());
    const auto vocab = static_cast<int32_t>(sizes_.V * sizes_.ranks);
    SHARDRUN_CHECK(std::all_of(tokens.begin(), tokens.end(), [=](int32_t t) { return t >= 0 && t < vocab; }));
    SHARDRUN_CHECK(
        std::all_of(targets.begin(), targets.end(), [=](int32_t t) { return t >= -1 && t < vocab; }));
    upload(buffers_.tokens, tokens);
    upload(buffers_.targets, targets);
    visibility_ = {};
    visibility_.window = sizes_.window;
    if (!batch.document_begins.empty()) {
      SHARDRUN_CHECK(static_cast<int64_t>(batch.document_begins.size()) == sizes_.B * sizes_.T);
      upload(buffers_.begins, batch.document_begins);
      visibility_.begins = buffers_.begins;
    }
    here_ = stage_.chunks.at(batch.chunk);
    held_ = batch.held;
    SHARDRUN_CHECK(held_.empty() || std::ssize(held_) == here_.count);
    loss_scale_ = batch.loss_scale;
    // Logits of several chunks do not stay until backward, which makes them again: once is enough.
    loss_in_backward_ = batch.backward_follows && sizes_.chunk < sizes_.N;
    backward_follows_ = batch.backward_follows;
    if (has_experts()) experts_.begin(batch, sizes_.T);
    backend_.zero(buffers_.losses, kLosses * int64_t{sizeof(double)});
    tokens_with_loss_ =
        std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
  }

  Result<void> forward(int visit_here, std::span<const std::byte> parameters,
                       std::span<const std::byte> frozen) override {
    const int visit = visits_.at(visit_here);
    const T* p = checked(visit, parameters, blocks_);
    if (adapted()) {
      adapters_.use(p);
      p = checked(visit, frozen, frozen_);
    }
    if (visit == 0) return embedding_forward(p);
    if (is_head(visit)) return head_forward(p);
    const int layer = layer_of(visit);
    if (is_experts(visit)) return experts_forward(layer, p);
    return repeat("a layer's forward", layer, {p, nullptr}, [&] { return layer_forward(layer, p); });
  }

  Loss loss() const override {
    double sum = 0.0;
    (void)backend_.download(&sum, buffers_.losses, sizeof sum);  // the backend keeps and tells its failures
    Loss loss{.sum = sum, .tokens = tokens_with_loss_};
    if (has_experts()) loss.sequence_sum = experts_.balance_sum(), loss.sequences = experts_.sequences();
    return loss;
  }
  const double* loss_sums() const override { return buffers_.losses; }

  Result<void> backward(int visit_here, std::span<const std::byte> parameters, std::span<float> gradient,
                        bool accumulate, std::span<const std::byte> frozen) override {
    const int visit = visits_.at(visit_here);
    SHARDRUN_CHECK(static_cast<int64_t>(gradient.size()) == held(block_of(visit)));
    accumulate_ = accumulate;
    linears_.accumulate(accumulate);
    // Nobody asks for the gradient of a frozen table.
    if (visit == 0) return adapted() ? Result<void>() : embedding_backward(gradient);
    const T* p = checked(visit, parameters, blocks_);
    float* g = gradient.data();
    if (adapted()) {
      adapters_.use(p, g, accumulate);
      p = checked(visit, frozen, frozen_);
      g = nullptr;
    }
    if (is_head(visit)) return head_backward(p, g);
    const int layer = layer_of(visit);
    if (is_experts(visit)) return experts_backward(layer, p, g);
    return repeat("a layer's backward", layer, {p, g}, [&] { return layer_backward(layer, p, g); });
  }

 private:
  void upload(int32_t* to, std::span<const int32_t> from) {
    backend_.upload(to, from.data(), static_cast<int64_t>(from.size_bytes()));
  }
  // Visits are counted over all stages, and so are layers.
  bool is_head(int visit) const { return visit + 1 == visits_of_model_; }
  bool adapted() const { return !frozen_.empty(); }
  // With experts each layer is two visits: of the dense block, then of its experts'.
  bool has_experts() const { return sizes_.experts.E > 0; }
  bool is_experts(int visit) const { return has_experts() && visit % 2 == 0; }
  int layer_of(int visit) const { return has_experts() ? (visit - 1) / 2 : visit - 1; }
  // A tied embedding is visited again by the head.
  int number_of_block(int visit) const { return visit < static_cast<int>(blocks_.size()) ? visit : 0; }
  const BlockLayout& block_of(int visit) const { return blocks_[number_of_block(visit)]; }
  // The elements of a block that this rank computes with.
  int64_t held(const BlockLayout& block) const {
    return block.stays ? block.elements / sizes_.experts.ranks : block.elements;
  }
  const T* checked(int visit, std::span<const std::byte> parameters,
                   const std::vector<BlockLayout>& blocks) const {
    SHARDRUN_CHECK(parameters.size() ==
                   static_cast<size_t>(held(blocks[number_of_block(visit)])) * sizeof(T));
    return reinterpret_cast<const T*>(parameters.data());
  }

  // The gradient of the parameter at `offset`; null of a frozen one.
  static float* part(float* gradient, int64_t offset) {
    return gradient == nullptr ? nullptr : gradient + offset;
  }

  // ---- between the rows that a rank owns and the products over all rows

  // `all` (N,C) with this rank's rows in their place; the others' arrive.
  Result<void> gather_rows(T* all) { return tensor_.gather_in_place(all, sizes_.R * sizes_.C); }
  T* own_rows(T* all) const { return all + tensor_.rank() * sizes_.R * sizes_.C; }

  // This rank's rows of a gradient or an activation, gathered unless it has them all.
  Result<const T*> all_rows(const T* rows) {
    if (tensor_.alone()) return rows;
    backend_.copy(own_rows(buffers_.gathered), rows, sizes_.R * sizes_.C * int64_t{sizeof(T)});
    RETURN_IF_ERROR(gather_rows(buffers_.gathered));
    return static_cast<const T*>(buffers_.gathered);
  }

  // rows (R,C) = this rank's rows of the sum over the group of `partial`.
  Result<void> sum_partial(T* rows) {
    const auto count = static_cast<size_t>(sizes_.R * sizes_.C);
    RETURN_IF_ERROR(tensor_.scatter_sum(std::span(buffers_.partial, sizes_.N * sizes_.C),
                                        std::span(buffers_.part, count)));
    ops_.pointwise.from_fp32(rows, buffers_.part, sizes_.R * sizes_.C);
    return {};
  }

  // y (R,C) = in (N,width) · wᵀ, what a projection adds to the residual stream.
  Result<void> project_back(int layer, Linear linear, T* y, const T* in, const T* w, int64_t width) {
    const Sizes& s = sizes_;
    if (tensor_.alone()) {
      linears_.forward(layer, linear, y, in, w, s.N, width, s.C);
      adapters_.forward(linear, y, in);
      return {};
    }
    linears_.forward(layer, linear, buffers_.partial, in, w, s.N, width, s.C);
    return sum_partial(y);
  }

  // The gradients of a product of all rows of the residual stream: dw (outputs,C), and of this rank's rows (R,C).
  Result<void> backward_linear(int layer, Linear linear, float* dw, T* rows, const T* dy, const T* x,
                               const T* w, int64_t outputs) {
    const Sizes& s = sizes_;
    if (tensor_.alone()) {
      linears_.backward(layer, linear, dw, rows, dy, x, w, s.N, s.C, outputs);
      adapters_.backward(linear, rows, dy, x);
      return {};
    }
    linears_.backward(layer, linear, dw, buffers_.partial, dy, x, w, s.N, s.C, outputs);
    return sum_partial(rows);
  }

  // ---- embedding

  Result<void> embedding_forward(const T* p) {
    const Sizes& s = sizes_;
    T* stream = activations(0).input;
    RETURN_IF_ERROR(make_room(0));
    if (tensor_.alone()) {
      ops_.embedding.forward(stream, buffers_.tokens, p, s.N, s.C);
      return {};
    }
    ops_.embedding.slice_forward(buffers_.partial, buffers_.tokens, p, s.N, s.C, s.V, first_token());
    return sum_partial(stream);
  }

  Result<void> embedding_backward(std::span<float> gradient) {
    const Sizes& s = sizes_;
    ASSIGN_OR_RETURN(auto d, all_rows(buffers_.dstream));
    if (tensor_.alone()) {
      ops_.embedding.backward(gradient.data(), buffers_.tokens, d, s.N, s.C, s.V, accumulate_);
    } else {
      ops_.embedding.slice_backward(gradient.data(), buffers_.tokens, d, s.N, s.C, s.V, first_token(),
                                    accumulate_);
    }
    const auto rest = gradient.subspan(s.V * s.C);  // the norm's, when tied
    if (!accumulate_) backend_.zero(rest.data(), static_cast<int64_t>(rest.size_bytes()));
    return {};
  }

  int64_t first_token() const { return tensor_.rank() * sizes_.V; }

  // ---- one layer

  // With other ranks, or with layers that wait on the host, more happens in a layer than ops.
  template <typename LayerOps>
  Result<void> repeat(const char* name, int layer, std::array<const void*, 2> memory, const LayerOps& ops) {
    if (!tensor_.alone() || !attention_.alone() || offloaded_) return ops();
    const bool adds = memory[1] != nullptr && accumulate_;  // of a backward
    const uint64_t flags = (visibility_.begins != nullptr ? 1U : 0U) | (adds ? 2U : 0U);
    const uint64_t scales = sizes_.fp8 ? fp8_.delayed_scales(layer) : 0;
    return backend_.repeat({name, layer, memory, flags | scales << 2}, ops);
  }

  T* output_of(int layer) { return layer + 1 < here_.end() ? activations(layer + 1).input : buffers_.output; }

  Result<void> norm(T* all, float* rrms, const T* rows, const T* weight) {
    ops_.norms.rmsnorm_forward(own_rows(all), rrms, rows, weight, sizes_.R, sizes_.C, sizes_.epsilon);
    return gather_rows(all);
  }

  // Of the micro-batch that was set.
  LlamaLayerActivations<T>& activations(int layer) {
    const int of_chunk = layer - here_.first;
    return buffers_.layers[held_.empty() ? of_chunk : held_[of_chunk]];
  }

  // Up to the norm of the feed-forward, which takes the residual stream in the same pass.
  Result<void> attention_forward(int layer, const T* p, const LayerOffsets& at) {
    const Sizes& s = sizes_;
    LlamaLayerActivations<T>& a = activations(layer);
    RETURN_IF_ERROR(norm(a.normed1, a.rrms1, a.input, p + at.norm1));
    if (s.bias) {
      ops_.products.linear_bias_forward(a.qkv, a.normed1, p + at.qkv, p + at.qkv_bias, s.N, s.C, s.QKV);
    } else {
      linears_.forward(layer, Linear::kQkv, a.qkv, a.normed1, p + at.qkv, s.N, s.C, s.QKV);
    }
    adapters_.forward(Linear::kQkv, a.qkv, a.normed1);
    if (s.head_norms) {
      ops_.norms.head_norms_forward(a.qkv, a.heads, a.head_rrms, p + at.head_norms, heads_shape(), s.epsilon);
    }
    ops_.attention.rope(a.qkv, buffers_.rope, s.B, s.W, s.H + s.K, s.D, s.QKV, /*inverse=*/false);
    RETURN_IF_ERROR(attention_.forward(a.attention, a.lse, a.qkv, visibility_));
    RETURN_IF_ERROR(project_back(layer, Linear::kOut, a.middle, a.attention, p + at.out, s.HD));
    ops_.norms.rmsnorm_residual_forward(own_rows(a.normed2), a.rrms2, a.middle, a.input, p + at.norm2, s.R,
                                        s.C, s.epsilon);
    return gather_rows(a.normed2);
  }

  void feed_forward(int layer, const T* p, const LayerOffsets& at) {
    const Sizes& s = sizes_;
    LlamaLayerActivations<T>& a = activations(layer);
    linears_.forward(layer, Linear::kGateUp, a.gate_up, a.normed2, p + at.gate_up, s.N, s.C, 2 * s.F);
    adapters_.forward(Linear::kGateUp, a.gate_up, a.normed2);
    ops_.pointwise.swiglu_forward(a.activated, a.gate_up, s.N, s.F);
  }

  Result<void> layer_forward(int layer, const T* p) {
    const LayerOffsets at(sizes_);
    const LlamaLayerActivations<T>& a = activations(layer);
    RETURN_IF_ERROR(attention_forward(layer, p, at));
    if (has_experts()) {
      return experts_.route(activations(layer).experts, a.normed2, p + at.router());
    }
    feed_forward(layer, p, at);
    RETURN_IF_ERROR(project_back(layer, Linear::kDown, buffers_.wide, a.activated, p + at.down, sizes_.F));
    RETURN_IF_ERROR(make_room(layer + 1));
    ops_.pointwise.add(output_of(layer), a.middle, buffers_.wide, sizes_.R * sizes_.C);
    if (offloaded_ && backward_follows_) RETURN_IF_ERROR(offloaded_->after_forward(layer));
    saved_.evict(a.begin, a.end - a.begin);
    return {};
  }

  Result<void> experts_forward(int layer, const T* p) {
    LlamaLayerActivations<T>& a = activations(layer);
    RETURN_IF_ERROR(experts_.forward(buffers_.wide, a.experts, a.normed2, p));
    ops_.pointwise.add(output_of(layer), a.middle, buffers_.wide, sizes_.R * sizes_.C);
    saved_.evict(a.begin, a.end - a.begin);
    return {};
  }

  // For what the layer before writes: the layer's input.
  Result<void> make_room(int layer) {
    return offloaded_ && layer < sizes_.L ? offloaded_->before_forward(layer) : Result<void>();
  }

  // What forward did not keep.
  Result<void> recompute(int layer, const T* p, const LayerOffsets& at) {
    const Sizes& s = sizes_;
    LlamaLayerActivations<T>& a = activations(layer);
    if (s.checkpointing == Checkpointing::kFull) {
      RETURN_IF_ERROR(attention_forward(layer, p, at));
      if (!has_experts()) feed_forward(layer, p, at);
      return {};
    }
    if (s.checkpointing == Checkpointing::kNone) return {};
    RETURN_IF_ERROR(norm(a.normed1, a.rrms1, a.input, p + at.norm1));
    if (has_experts()) return {};
    RETURN_IF_ERROR(norm(a.normed2, a.rrms2, a.middle, p + at.norm2));
    ops_.pointwise.swiglu_forward(a.activated, a.gate_up, s.N, s.F);
    return {};
  }

  void prefetch_before(int layer) {
    if (layer == here_.first) return;
    const LlamaLayerActivations<T>& next = activations(layer - 1);
    saved_.prefetch(next.begin, next.end - next.begin);
  }

  // Leaves in `narrow` the gradient of the feed-forward's input, or of the experts' through their products.
  Result<void> feed_forward_backward(int layer, const T* p, float* g, const LayerOffsets& at) {
    const Sizes& s = sizes_;
    const LlamaLayerActivations<T>& a = activations(layer);
    T *const narrow = buffers_.narrow, *const wide = buffers_.wide;
    ASSIGN_OR_RETURN(const auto d, all_rows(buffers_.dstream));
    linears_.backward(layer, Linear::kDown, part(g, at.down), narrow, d, a.activated, p + at.down, s.N, s.F,
                      s.C);
    adapters_.backward(Linear::kDown, narrow, d, a.activated);
    ops_.pointwise.swiglu_backward(wide, narrow, a.gate_up, s.N, s.F);
    return backward_linear(layer, Linear::kGateUp, part(g, at.gate_up), narrow, wide, a.normed2,
                           p + at.gate_up, 2 * s.F);
  }
  Result<void> experts_backward(int layer, const T* p, float* g) {
    LlamaLayerActivations<T>& a = activations(layer);
    const Checkpointing level = sizes_.checkpointing;
    prefetch_before(layer);
    return experts_.backward(buffers_.narrow, g, a.experts, buffers_.dstream, a.normed2, p, accumulate_,
                             {level == Checkpointing::kFull, level != Checkpointing::kNone});
  }

  // dstream holds the gradient of the layer's output and leaves with that of its input.
  Result<void> layer_backward(int layer, const T* p, float* g) {
    const Sizes& s = sizes_;
    const LayerOffsets at(s);
    const LlamaLayerActivations<T>& a = activations(layer);
    if (!has_experts()) prefetch_before(layer);
    if (offloaded_) RETURN_IF_ERROR(offloaded_->before_backward(layer));
    RETURN_IF_ERROR(recompute(layer, p, at));
    T* narrow = buffers_.narrow;  // N × max(C, F, H·D)
    T* wide = buffers_.wide;      // N × max(2F, QKV, C)
    if (has_experts()) {
      experts_.route_backward(narrow, g + at.router(), a.experts, a.normed2, p + at.router(), accumulate_);
    } else {
      RETURN_IF_ERROR(feed_forward_backward(layer, p, g, at));
    }
    RETURN_IF_ERROR(norm_backward(part(g, at.norm2), narrow, a.middle, p + at.norm2, a.rrms2));

    auto d = all_rows(buffers_.dstream);
    RETURN_IF_ERROR(d);
    linears_.backward(layer, Linear::kOut, part(g, at.out), narrow, *d, a.attention, p + at.out, s.N, s.HD,
                      s.C);
    adapters_.backward(Linear::kOut, narrow, *d, a.attention);
    RETURN_IF_ERROR(attention_.backward(wide, narrow, a.attention, a.qkv, a.lse, visibility_));
    ops_.attention.rope(wide, buffers_.rope, s.B, s.W, s.H + s.K, s.D, s.QKV, /*inverse=*/true);
    if (s.head_norms)
      RETURN_IF_ERROR(head_norms_backward(part(g, at.head_norms), wide, a, p + at.head_norms));
    if (s.bias && g != nullptr) ops_.products.bias_backward(g + at.qkv_bias, wide, s.N, s.QKV, accumulate_);
    RETURN_IF_ERROR(
        backward_linear(layer, Linear::kQkv, part(g, at.qkv), narrow, wide, a.normed1, p + at.qkv, s.QKV));
    RETURN_IF_ERROR(norm_backward(part(g, at.norm1), narrow, a.input, p + at.norm1, a.rrms1));
    saved_.evict(a.begin, a.end - a.begin);
    return {};
  }

  // dstream += the gradient through a norm of this rank's rows; its weight's gradient is every rank's, and nobody's where
  // `dweight` is null.
  Result<void> norm_backward(float* dweight, const T* dy, const T* x, const T* weight, const float* rrms) {
    float* const own = accumulate_ || dweight == nullptr ? buffers_.norm_gradient : dweight;
    ops_.norms.rmsnorm_backward(buffers_.dstream, own, dy, x, weight, rrms, sizes_.R, sizes_.C);
    RETURN_IF_ERROR(tensor_.sum(std::span(own, sizes_.C)));
    if (own != dweight && dweight != nullptr)
      backend_.ops<float>().pointwise.add(dweight, dweight, own, sizes_.C);
    return {};
  }

  // Of the query heads and key heads of this rank, whose norms are every rank's.
  Result<void> head_norms_backward(float* dweight, T* dqkv, const LlamaLayerActivations<T>& a,
                                   const T* weight) {
    float* const own = accumulate_ || dweight == nullptr ? buffers_.norm_gradient : dweight;
    ops_.norms.head_norms_backward(dqkv, own, a.heads, weight, a.head_rrms, heads_shape());
    RETURN_IF_ERROR(tensor_.sum(std::span(own, 2 * sizes_.D)));
    if (own != dweight && dweight != nullptr)
      backend_.ops<float>().pointwise.add(dweight, dweight, own, 2 * sizes_.D);
    return {};
  }

  // Of the tokens that this rank has, as norms see them.
  kernels::AttentionShape heads_shape() const { return {sizes_.B, sizes_.W, sizes_.H, sizes_.K, sizes_.D}; }

  // ---- head

  Result<void> head_forward(const T* p) {
    RETURN_IF_ERROR(norm(buffers_.head_normed, buffers_.head_rrms, buffers_.output, p + head_norm_));
    backend_.zero(buffers_.losses, kLosses * int64_t{sizeof(double)});
    if (has_experts()) buffers_.losses[1] = experts_.balance_sum();
    for (int64_t row = 0; row < sizes_.N && !loss_in_backward_; row += sizes_.chunk) {
      RETURN_IF_ERROR(chunk_logits(p, row));
      add_chunk_loss();
    }
    return {};
  }

  // The loss of the chunk that was computed last counts.
  void add_chunk_loss() { backend_.optimizer().accumulate(buffers_.losses, buffers_.losses + kChunkLoss, 1); }

  // Logits, loss and dlogits of the chunk that starts at `row`.
  Result<void> chunk_logits(const T* p, int64_t row) {
    const Sizes& s = sizes_;
    const int64_t rows = std::min(s.chunk, s.N - row);
    const int32_t* targets = buffers_.targets + row;
    ops_.products.linear_forward_fp32(buffers_.logits, buffers_.head_normed + row * s.C, p + head_matrix_,
                                      rows, s.C, s.V);
    double* const loss = buffers_.losses + kChunkLoss;
    if (tensor_.alone()) {
      ops_.classifier.cross_entropy(loss, buffers_.dlogits, buffers_.logits, targets, rows, s.V, loss_scale_);
      return {};
    }
    const int64_t stats = rows * kernels::kSliceStats;
    ops_.classifier.slice_stats(buffers_.stats + tensor_.rank() * stats, buffers_.logits, targets, rows, s.V,
                                first_token());
    RETURN_IF_ERROR(tensor_.gather_in_place(buffers_.stats, stats));
    ops_.classifier.cross_entropy_slice(loss, buffers_.dlogits, buffers_.logits, buffers_.stats, targets,
                                        rows, s.V, first_token(), tensor_.size(), loss_scale_);
    return {};
  }

  Result<void> head_backward(const T* p, float* g) {
    const Sizes& s = sizes_;
    for (int64_t row = 0; row < s.N; row += s.chunk) {
      const int64_t rows = std::min(s.chunk, s.N - row);
      if (s.chunk < s.N) {  // a single chunk is still there from forward
        RETURN_IF_ERROR(chunk_logits(p, row));
        if (loss_in_backward_) add_chunk_loss();
      }
      if (tensor_.alone()) {
        ops_.products.linear_backward_input(buffers_.narrow + row * s.C, buffers_.dlogits, p + head_matrix_,
                                            rows, s.C, s.V);
      } else {
        ops_.products.linear_backward_input_fp32(buffers_.partial + row * s.C, buffers_.dlogits,
                                                 p + head_matrix_, rows, s.C, s.V);
      }
      if (g == nullptr) continue;
      ops_.products.linear_backward_weight(g + head_matrix_, buffers_.dlogits,
                                           buffers_.head_normed + row * s.C, rows, s.C, s.V,
                                           /*accumulate=*/accumulate_ || row > 0);
    }
    if (!tensor_.alone()) RETURN_IF_ERROR(sum_partial(buffers_.narrow));
    backend_.zero(buffers_.dstream, s.R * s.C * int64_t{sizeof(T)});
    return norm_backward(part(g, head_norm_), buffers_.narrow, buffers_.output, p + head_norm_,
                         buffers_.head_rrms);
  }

  kernels::Backend& backend_;
  const kernels::Ops<T>& ops_;
  TensorGroup tensor_;
  Sizes sizes_;
  plan::StageOfModel stage_;
  std::vector<BlockLayout> blocks_, frozen_;
  int visits_of_model_ = 0;
  std::vector<int> visits_, visited_;  // of this stage, as they are counted over all; and their blocks
  plan::LayerRange here_;              // layers of the chunk that is computed
  std::span<const int> held_;          // Batch::held
  Memory saved_, scratch_;
  LlamaBuffers<T> buffers_;
  std::unique_ptr<OffloadedLayers> offloaded_;  // null: all layers stay; goes before the memory
  Fp8State fp8_;
  BlockLinears<T> linears_;
  SharedAttention<T> attention_;
  LinearAdapters<T> adapters_;
  Experts<T> experts_;
  kernels::Visibility visibility_;
  int64_t head_matrix_ = 0, head_norm_ = 0;
  float loss_scale_ = 1.0f;
  bool loss_in_backward_ = false, backward_follows_ = false;
  bool accumulate_ = false;  // of the backward at hand
  int64_t tokens_with_loss_ = 0;
};

template <typename T>
Result<std::unique_ptr<Llama>> make(const LlamaConfig& config, const ModelOptions& options) {
  const Sizes sizes(config, options, TensorGroup(options.tensor).size());
  ASSIGN_OR_RETURN(auto memory, allocate_activations(LlamaBuffers<T>(sizes, nullptr, nullptr), options));
  const kernels::Fp8Ops* fp8_ops = nullptr;
  if (options.fp8) {
    ASSIGN_OR_RETURN(const auto ops, options.backend->fp8_ops());
    fp8_ops = ops;
  }
  return std::unique_ptr<Llama>(std::make_unique<TypedLlama<T>>(config, options, std::move(memory), fp8_ops));
}

Result<void> check_group(const LlamaConfig& config, const ModelOptions& options) {
  const int ranks = options.tensor == nullptr ? 1 : options.tensor->size();
  const int64_t tokens = int64_t{options.micro_batch} * options.sequence_length / options.context_parallel;
  if (config.heads % ranks == 0 && config.kv_heads % ranks == 0 && config.ffn % ranks == 0 &&
      config.vocab % ranks == 0 && tokens % ranks == 0) {
    return {};
  }
  return base::Error(
      base::Code::kInvalid,
      fmt::format("tensor_parallel {} does not divide heads {}, kv_heads {}, ffn {}, vocab {} and "
                  "the {} tokens of a micro-batch; choose a degree that divides them all",
                  ranks, config.heads, config.kv_heads, config.ffn, config.vocab, tokens));
}

}  // namespace

Result<std::unique_ptr<Llama>> Llama::create(const LlamaConfig& config, const ModelOptions& options) {
  RETURN_IF_ERROR(check(config));
  if (options.micro_batch < 1 || options.sequence_length < 1) {
    return base::Error(base::Code::kInvalid, "micro_batch and sequence_length must be positive");
  }
  RETURN_IF_ERROR(check_group(config, options));
  const bool cut = TensorGroup(options.tensor).size() > 1,
             on_gpu = options.backend->kind() == base::DeviceKind::kGpu;
  const int sharers = options.context_parallel;
  SHARDRUN_CHECK(sharers == (options.context == nullptr ? 1 : options.context->size()));
  if (sharers > 1 && (on_gpu || config.experts.wanted() || options.sequence_length % (2 * sharers) != 0))
    return base::Error(
        base::Code::kUnsupported,
        "ranks share sequences of a multiple of 2·context_parallel tokens, without experts and GPUs");
  if (config.lora.wanted() && (cut || options.fp8 || on_gpu))
    return base::Error(base::Code::kUnsupported,
                       "adapters have no tensor parallelism, no fp8 and no GPU yet");
  const bool windowed = config.window > 0 && config.window < options.sequence_length;
  if (on_gpu && (config.head_norms || windowed))
    return base::Error(base::Code::kUnsupported, "a GPU has no head norms and no window yet");
  if (config.experts.wanted() && (cut || on_gpu || config.lora.wanted()))
    return base::Error(base::Code::kUnsupported,
                       "experts have no tensor parallelism, no adapters and no GPU yet");
  SHARDRUN_CHECK(config.expert_parallel == (options.experts == nullptr ? 1 : options.experts->size()));
  SHARDRUN_CHECK(!options.offload || options.device == options.backend->kind());
  if (options.fp8 && options.compute != kernels::DType::kBf16)
    return base::Error(base::Code::kInvalid, "fp8 stands beside bf16; set [precision] parameters = \"bf16\"");
  if (options.fp8 && config.qkv_bias)
    return base::Error(base::Code::kInvalid, "fp8 products have no bias, which qkv_bias asks for");
  return options.compute == kernels::DType::kFp32 ? make<float>(config, options)
                                                  : make<Bf16>(config, options);
}

}  // namespace shardrun::model

// One forward pass, read top to bottom; every op is documented in kernels/ops.h and kernels/decode.h.
#include "runtime/trainer/generate/decoder.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/model/rotary.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/decode.h"
#include "runtime/trainer/kernels/experts.h"

namespace shardrun::generate {
namespace {

using kernels::Bf16;
using plan::LlamaConfig;

void widen(std::span<const float> in, float* out) {
  std::copy(in.begin(), in.end(), out);
}
void widen(std::span<const Bf16> in, float* out) {
  kernels::bf16_to_fp32(in, std::span(out, in.size()));
}

// W: float or Bf16, the type of stored weights.
template <typename W>
class TypedDecoder final : public Decoder {
 public:
  TypedDecoder(const LlamaConfig& config, ModelWeights weights, int64_t capacity)
      : ops_(kernels::cpu_backend().ops<float>()),
        weights_(std::move(weights)),
        C_(config.hidden),
        D_(config.head_elements()),
        H_(config.heads),
        K_(config.kv_heads),
        F_(config.ffn),
        V_(config.vocab),
        E_(config.experts.count),
        k_(config.experts.wanted() ? config.experts.per_token : 0),
        normalizes_(config.experts.normalize),
        capacity_(capacity),
        window_(config.window),
        epsilon_(static_cast<float>(config.norm_epsilon)),
        rope_(plan::rope_table(capacity, D_, config.rope_theta, config.rope)) {
    const size_t blocks_of_layer = E_ > 0 ? 2 : 1, layers = static_cast<size_t>(config.layers);
    const size_t head = config.tied_embeddings ? 0 : layers * blocks_of_layer + 1;
    embedding_ = matrix(0, "embed_tokens.weight");
    for (size_t layer = 1; layer <= layers * blocks_of_layer; layer += blocks_of_layer) {
      layers_.push_back({.norm1 = vector(layer, "input_layernorm.weight"),
                         .bias = vectors(layer, ".bias"),
                         .head_norms = vectors(layer, "q_norm.weight", "k_norm.weight"),
                         .norm2 = vector(layer, "post_attention_layernorm.weight"),
                         .qkv = matrix(layer, "q_proj.weight"),
                         .out = matrix(layer, "o_proj.weight"),
                         .gate_up = E_ > 0 ? nullptr : matrix(layer, "gate_proj.weight"),
                         .down = E_ > 0 ? nullptr : matrix(layer, "down_proj.weight"),
                         .router = E_ > 0 ? matrix(layer, ".gate.weight") : nullptr,
                         .experts = E_ > 0 ? data(layer + 1) : nullptr,
                         .keys = std::vector<float>(K_ * capacity * D_),
                         .values = std::vector<float>(K_ * capacity * D_)});
    }
    final_norm_ = vector(head, "model.norm.weight");
    head_ = config.tied_embeddings ? embedding_ : matrix(head, "lm_head.weight");
  }

  std::span<const float> feed(std::span<const int32_t> tokens) override {
    const auto n = static_cast<int64_t>(tokens.size());
    SHARDRUN_CHECK(n > 0 && read_ + n <= capacity_);
    SHARDRUN_CHECK(std::all_of(tokens.begin(), tokens.end(), [&](int32_t t) { return t >= 0 && t < V_; }));
    make_room(n);
    for (int64_t i = 0; i < n; ++i)
      widen(std::span(embedding_ + tokens[i] * C_, C_), stream_.data() + i * C_);
    for (Layer& layer : layers_) {
      attention(layer, n);
      feed_forward(layer, n);
    }
    read_ += n;
    ops_.norms.rmsnorm_forward(normed_.data(), rrms_.data(), stream_.data() + (n - 1) * C_,
                               final_norm_.data(), 1, C_, epsilon_);
    kernels::multiply(logits_.data(), head_, normed_.data(), V_, C_);
    return logits_;
  }

  void go_back(int64_t tokens) override {
    SHARDRUN_CHECK(tokens >= 0 && tokens <= read_);
    read_ = tokens;
  }

 private:
  struct Layer {
    std::vector<float> norm1, bias, head_norms, norm2;  // those that the family lacks are empty
    const W *qkv, *out, *gate_up, *down;
    const W *router,
        *experts;  // in the place of the latter two: gate, up and down of one expert behind the other
    std::vector<float> keys, values;  // (K,capacity,D)
  };

  // ---- parameters

  const W* data(size_t block) const {
    if constexpr (std::is_same_v<W, float>) {
      return weights_.blocks[block].wide.data();
    } else {
      return weights_.blocks[block].narrow.data();
    }
  }
  const W* matrix(size_t block, std::string_view ending) const {
    for (const plan::ParameterInfo& parameter : weights_.layouts[block].parameters)
      if (parameter.name.ends_with(ending)) return data(block) + parameter.offset;
    SHARDRUN_CHECK(false, "a Llama without one of its parameters");
  }
  // The values of all parameters with one of these endings, one behind the other.
  template <typename... Endings>
  std::vector<float> vectors(size_t block, Endings... endings) const {
    std::vector<float> values;
    for (const plan::ParameterInfo& parameter : weights_.layouts[block].parameters) {
      if (!(parameter.name.ends_with(endings) || ...)) continue;
      values.resize(values.size() + parameter.elements());
      widen(std::span(data(block) + parameter.offset, parameter.elements()),
            values.data() + values.size() - parameter.elements());
    }
    return values;
  }
  std::vector<float> vector(size_t block, std::string_view ending) const { return vectors(block, ending); }

  // ---- memory

  void make_room(int64_t n) {
    if (n <= rows_) return;
    rows_ = n;
    const int64_t QKV = (H_ + 2 * K_) * D_;
    for (const auto& [buffer, width] : {std::pair(&stream_, C_),
                                        {&normed_, C_},
                                        {&part_, C_},
                                        {&rrms_, int64_t{1}},
                                        {&qkv_, QKV},
                                        {&attended_, H_ * D_},
                                        {&heads_, (H_ + K_) * D_},
                                        {&head_rrms_, H_ + K_},
                                        {&gate_up_, 2 * F_},
                                        {&activated_, F_},
                                        {&lse_, H_},
                                        {&probabilities_, E_},
                                        {&shares_, k_}})
      buffer->resize(n * width);
    chosen_.resize(n * k_);
    logits_.resize(V_);
    scores_.resize(H_ * capacity_);
  }

  // ---- one layer

  // y (n,O) = x (n,C) · wᵀ.
  void product(std::vector<float>& y, const std::vector<float>& x, const W* w, int64_t n, int64_t C,
               int64_t O) {
    if (n == 1) return kernels::multiply(y.data(), w, x.data(), O, C);
    if constexpr (std::is_same_v<W, float>) {
      ops_.products.linear_forward(y.data(), x.data(), w, n, C, O);
    } else {
      widened_.resize(std::max(widened_.size(), static_cast<size_t>(O * C)));
      widen(std::span(w, O * C), widened_.data());
      ops_.products.linear_forward(y.data(), x.data(), widened_.data(), n, C, O);
    }
  }

  void attention(Layer& layer, int64_t n) {
    const int64_t QKV = (H_ + 2 * K_) * D_;
    const kernels::AttentionShape shape{1, n, H_, K_, D_};
    ops_.norms.rmsnorm_forward(normed_.data(), rrms_.data(), stream_.data(), layer.norm1.data(), n, C_,
                               epsilon_);
    product(qkv_, normed_, layer.qkv, n, C_, QKV);
    for (int64_t i = 0; i < n && !layer.bias.empty(); ++i)
      ops_.pointwise.add(qkv_.data() + i * QKV, qkv_.data() + i * QKV, layer.bias.data(), QKV);
    if (!layer.head_norms.empty()) {
      ops_.norms.head_norms_forward(qkv_.data(), heads_.data(), head_rrms_.data(), layer.head_norms.data(),
                                    shape, epsilon_);
    }
    ops_.attention.rope(qkv_.data(), rope_.data() + read_ * D_, 1, n, H_ + K_, D_, QKV, /*inverse=*/false);
    keep(layer, n);
    if (read_ == 0 && n > 1) {
      const kernels::Visibility visibility{.causal = true, .window = window_ < n ? window_ : 0};
      ops_.attention.forward(attended_.data(), lse_.data(), qkv_.data(), shape, visibility);
    } else {
      const kernels::KeptHeads kept{layer.keys.data(), layer.values.data(), H_, K_, D_, capacity_};
      for (int64_t i = 0; i < n; ++i) {
        const int64_t end = read_ + i + 1, begin = window_ > 0 ? std::max<int64_t>(0, end - window_) : 0;
        kernels::attend(attended_.data() + i * H_ * D_, qkv_.data() + i * QKV, kept, begin, end,
                        scores_.data());
      }
    }
    product(part_, attended_, layer.out, n, H_ * D_, C_);
  }

  // Copies keys and values of n new tokens to where they stay.
  void keep(Layer& layer, int64_t n) {
    const int64_t QKV = (H_ + 2 * K_) * D_;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < K_; ++k) {
        const float* const key = qkv_.data() + i * QKV + (H_ + k) * D_;
        const int64_t to = (k * capacity_ + read_ + i) * D_;
        std::copy_n(key, D_, layer.keys.data() + to);
        std::copy_n(key + K_ * D_, D_, layer.values.data() + to);
      }
    }
  }

  void feed_forward(const Layer& layer, int64_t n) {
    ops_.norms.rmsnorm_residual_forward(normed_.data(), rrms_.data(), stream_.data(), part_.data(),
                                        layer.norm2.data(), n, C_, epsilon_);
    if (E_ > 0) {
      experts(layer, n);
    } else {
      swiglu(part_, normed_, layer.gate_up, layer.down, n);
    }
    ops_.pointwise.add(stream_.data(), stream_.data(), part_.data(), n * C_);
  }

  // y (n,C) = what the three matrices of a feed-forward, or of an expert, make of x (n,C).
  void swiglu(std::vector<float>& y, const std::vector<float>& x, const W* gate_up, const W* down,
              int64_t n) {
    product(gate_up_, x, gate_up, n, C_, 2 * F_);
    ops_.pointwise.swiglu_forward(activated_.data(), gate_up_.data(), n, F_);
    product(y, activated_, down, n, F_, C_);
  }

  // Each expert computes its tokens together; a token sums its experts from the most probable on.
  void experts(const Layer& layer, int64_t n) {
    product(probabilities_, normed_, layer.router, n, C_, E_);
    kernels::route(probabilities_.data(), chosen_.data(), shares_.data(), {n, E_, k_, normalizes_});
    std::vector<int32_t> places(n * k_);
    std::vector<float> results(n * k_ * C_), inputs, outputs;
    int32_t rows = 0;
    for (int64_t e = 0; e < E_; ++e) {
      inputs.clear();
      const int32_t first = rows;
      for (int64_t i = 0; i < n * k_; ++i) {
        if (chosen_[i] != e) continue;
        const float* const token = normed_.data() + i / k_ * C_;
        inputs.insert(inputs.end(), token, token + C_);
        places[i] = rows++;
      }
      if (rows == first) continue;
      const W* const gate_up = layer.experts + e * 3 * F_ * C_;
      outputs.resize(inputs.size());
      swiglu(outputs, inputs, gate_up, gate_up + 2 * F_ * C_, rows - first);
      std::copy(outputs.begin(), outputs.end(), results.begin() + first * C_);
    }
    kernels::combine_rows(part_.data(), places.data(), shares_.data(), results.data(), n, k_, C_);
  }

  const kernels::Ops<float>& ops_;
  ModelWeights weights_;
  int64_t C_, D_, H_, K_, F_, V_;
  int64_t E_, k_;  // experts, and those of a token; 0: none
  bool normalizes_;
  int64_t capacity_, window_;
  float epsilon_;
  std::vector<float> rope_;  // (capacity,D)
  const W *embedding_ = nullptr, *head_ = nullptr;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  int64_t read_ = 0;  // tokens whose keys and values are kept
  int64_t rows_ = 0;  // that the following have room for
  std::vector<float> stream_, normed_, part_, rrms_, qkv_, attended_, heads_, head_rrms_, gate_up_,
      activated_, lse_, probabilities_, shares_;
  std::vector<int32_t> chosen_;
  std::vector<float> scores_, logits_, widened_;
};

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::create(const LlamaConfig& config, ModelWeights weights,
                                                 int64_t capacity) {
  RETURN_IF_ERROR(check(config));
  if (weights.dtype == base::DType::kFp32)
    return std::unique_ptr<Decoder>(
        std::make_unique<TypedDecoder<float>>(config, std::move(weights), capacity));
  return std::unique_ptr<Decoder>(std::make_unique<TypedDecoder<Bf16>>(config, std::move(weights), capacity));
}

int64_t Decoder::bytes_per_token(const LlamaConfig& config) {
  return int64_t{2} * config.layers * config.kv_heads * config.head_elements() * int64_t{sizeof(float)};
}

}  // namespace shardrun::generate

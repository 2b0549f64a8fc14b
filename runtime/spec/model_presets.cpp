#include "runtime/spec/model_presets.h"

namespace shardrun::spec {
namespace {

ModelSpec sizes(const char* name, int layers, int hidden, int heads, int kv_heads, int ffn, int vocab) {
  ModelSpec model;
  model.preset = name;
  model.layers = layers;
  model.hidden = hidden;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.ffn = ffn;
  model.vocab = vocab;
  return model;
}

ModelSpec bert(const char* name, int layers, int hidden, int heads) {
  ModelSpec model = sizes(name, layers, hidden, heads, heads, 4 * hidden, 30522);
  model.norm_epsilon = 1e-12;
  return model;
}

ModelSpec roberta(const char* name, int layers, int hidden, int heads) {
  ModelSpec model = sizes(name, layers, hidden, heads, heads, 4 * hidden, 50265);
  model.norm_epsilon = 1e-5;
  model.next_sentence = false;
  return model;
}

// A Llama of today: the length that it is made for, its rotary base, and what its family has.
struct Traits {
  int max_positions = 0;
  double rope_theta = 10000.0, norm_epsilon = 1e-5;
  bool tied = false, qkv_bias = false, head_norms = false;
  int head_size = 0, window = 0;
  double llama3_factor = 0.0;  // of Llama 3.1's and 3.2's scaling; 0: none
  ExpertSpec experts{};
};

ModelSpec with(ModelSpec model, const Traits& traits) {
  model.max_positions = traits.max_positions;
  model.rope_theta = traits.rope_theta;
  model.norm_epsilon = traits.norm_epsilon;
  model.tied_embeddings = traits.tied;
  model.qkv_bias = traits.qkv_bias;
  model.head_norms = traits.head_norms;
  model.head_size = traits.head_size;
  model.window = traits.window;
  model.experts = traits.experts;
  if (traits.llama3_factor > 0.0) model.rope = {RopeScaling::kLlama3, traits.llama3_factor, 1.0, 4.0, 8192};
  return model;
}

Traits qwen2(int max_positions, bool tied) {
  return {.max_positions = max_positions,
          .rope_theta = 1e6,
          .norm_epsilon = 1e-6,
          .tied = tied,
          .qkv_bias = true};
}
Traits qwen3(bool tied) {
  return {.max_positions = 40960,
          .rope_theta = 1e6,
          .norm_epsilon = 1e-6,
          .tied = tied,
          .head_norms = true,
          .head_size = 128};
}
Traits qwen3_experts() {
  Traits traits = qwen3(/*tied=*/false);
  traits.experts = {.count = 128, .per_token = 8, .normalize = true, .balance = 0.001};
  return traits;
}
Traits llama3(double factor, bool tied) {
  return {.max_positions = factor > 0.0 ? 131072 : 8192,
          .rope_theta = 5e5,
          .tied = tied,
          .llama3_factor = factor};
}
Traits smollm2(double theta) {
  return {.max_positions = 8192, .rope_theta = theta, .tied = true};
}

const std::vector<ModelSpec>& presets() {
  static const std::vector<ModelSpec> kPresets = {
      sizes("llama-1m", 4, 128, 4, 2, 352, 256),
      sizes("llama-10m", 6, 320, 5, 5, 864, 256),
      sizes("llama-136m", 12, 768, 12, 12, 2048, 32000),
      with(sizes("llama-2-7b", 32, 4096, 32, 32, 11008, 32000), {.max_positions = 4096}),
      with(sizes("llama-2-13b", 40, 5120, 40, 40, 13824, 32000), {.max_positions = 4096}),
      with(sizes("llama-2-70b", 80, 8192, 64, 8, 28672, 32000), {.max_positions = 4096}),
      with(sizes("llama-3-8b", 32, 4096, 32, 8, 14336, 128256), llama3(0.0, false)),
      with(sizes("llama-3-70b", 80, 8192, 64, 8, 28672, 128256), llama3(0.0, false)),
      with(sizes("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256), llama3(8.0, false)),
      with(sizes("llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256), llama3(8.0, false)),
      with(sizes("llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256), llama3(32.0, true)),
      with(sizes("llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256), llama3(32.0, true)),
      with(sizes("mistral-7b-v0.1", 32, 4096, 32, 8, 14336, 32000), {.max_positions = 32768, .window = 4096}),
      with(sizes("mistral-7b-v0.3", 32, 4096, 32, 8, 14336, 32768),
           {.max_positions = 32768, .rope_theta = 1e6}),
      with(sizes("mixtral-2m", 4, 128, 4, 2, 176, 256), {.experts = {8, 2, true, 0.02}}),
      with(sizes("mixtral-8x7b-v0.1", 32, 4096, 32, 8, 14336, 32000),
           {.max_positions = 32768, .rope_theta = 1e6, .experts = {8, 2, true, 0.02}}),
      with(sizes("qwen-2.5-0.5b", 24, 896, 14, 2, 4864, 151936), qwen2(32768, true)),
      with(sizes("qwen-2.5-1.5b", 28, 1536, 12, 2, 8960, 151936), qwen2(131072, true)),
      with(sizes("qwen-2.5-7b", 28, 3584, 28, 4, 18944, 152064), qwen2(131072, false)),
      with(sizes("qwen-2.5-72b", 80, 8192, 64, 8, 29568, 152064), qwen2(131072, false)),
      with(sizes("qwen-3-0.6b", 28, 1024, 16, 8, 3072, 151936), qwen3(true)),
      with(sizes("qwen-3-1.7b", 28, 2048, 16, 8, 6144, 151936), qwen3(true)),
      with(sizes("qwen-3-8b", 36, 4096, 32, 8, 12288, 151936), qwen3(false)),
      with(sizes("qwen-3-32b", 64, 5120, 64, 8, 25600, 151936), qwen3(false)),
      with(sizes("qwen-3-30b-a3b", 48, 2048, 32, 4, 768, 151936), qwen3_experts()),
      with(sizes("smollm2-135m", 30, 576, 9, 3, 1536, 49152), smollm2(1e5)),
      with(sizes("smollm2-360m", 32, 960, 15, 5, 2560, 49152), smollm2(1e5)),
      with(sizes("smollm2-1.7b", 24, 2048, 32, 32, 8192, 49152), smollm2(1.3e5)),
      with(sizes("tinyllama-1.1b", 22, 2048, 32, 4, 5632, 32000), {.max_positions = 2048}),
      bert("bert-tiny", 2, 128, 2),
      bert("bert-base", 12, 768, 12),
      bert("bert-large", 24, 1024, 16),
      roberta("roberta-base", 12, 768, 12),
      roberta("roberta-large", 24, 1024, 16),
  };
  return kPresets;
}

}  // namespace

const ModelSpec* find_preset(std::string_view name) {
  for (const ModelSpec& model : presets()) {
    if (model.preset == name) return &model;
  }
  return nullptr;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelSpec& model : presets()) names.push_back(model.preset);
  return names;
}

}  // namespace shardrun::spec

#include "runtime/spec/model_presets.h"

#include <array>

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

const std::array<ModelSpec, 9>& presets() {
  static const std::array<ModelSpec, 9> kPresets = {
      sizes("llama-1m", 4, 128, 4, 2, 352, 256),
      sizes("llama-10m", 6, 320, 5, 5, 864, 256),
      sizes("llama-136m", 12, 768, 12, 12, 2048, 32000),
      sizes("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
      sizes("llama-2-13b", 40, 5120, 40, 40, 13824, 32000),
      sizes("llama-2-70b", 80, 8192, 64, 8, 28672, 32000),
      bert("bert-tiny", 2, 128, 2),
      bert("bert-base", 12, 768, 12),
      bert("bert-large", 24, 1024, 16),
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

// Architecture: the models that the built-in trainer computes, as those see them who read a spec or only count. An
// architecture is data here: a row says which keys it has and what it can do. What it holds is runtime/plan/model/<name>,
// what it computes runtime/trainer/model/<name>; docs/contributing.md names what a new one needs beside its row.
//
// Thread rule: constants and pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace shardrun::spec {

struct Architecture {
  std::string_view name;    // [program] trainer
  std::string_view called;  // in messages
  std::string_view preset;  // one of its small sizes, which a message proposes
  // Those of [model]'s keys that not every architecture has; empty ones are no keys.
  std::array<std::string_view, 18> keys;
  std::array<std::string_view, 6> model_types;  // of the config.json files whose weights it reads
  bool causal;                                  // a token sees no later one, and there is no padding
  bool looks_up;   // its first block is a table alone, whose gradient needs no parameters
  bool paired;     // trains on pairs of sentences with masked tokens, instead of on text
  bool sliceable;  // each matrix can be cut for the ranks of a tensor group
  bool fp8;        // the linear layers of its blocks can compute in fp8
  bool adapters;   // its weights can stay as they are, with adapters beside them ([lora])

  constexpr bool has(std::string_view key) const {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }
};

// The first is what a model is that nobody named.
inline constexpr std::array<Architecture, 2> kArchitectures{{
    {.name = "llama",
     .called = "a Llama",
     .preset = "llama-1m",
     .keys = {"kv_heads", "rope_theta", "norm_epsilon", "tied_embeddings", "head_size", "qkv_bias",
              "head_norms", "window", "rope_scaling", "rope_factor", "rope_low_factor", "rope_high_factor",
              "rope_original_length", "max_positions", "experts", "experts_per_token", "normalize_experts",
              "balance"},
     .model_types = {"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"},
     .causal = true,
     .looks_up = true,
     .paired = false,
     .sliceable = true,
     .fp8 = true,
     .adapters = true},
    {.name = "bert",
     .called = "a BERT",
     .preset = "bert-base",
     .keys = {"max_positions", "next_sentence"},
     .model_types = {"bert", "roberta"},
     .causal = false,
     .looks_up = false,
     .paired = true,
     .sliceable = false,
     .fp8 = false,
     .adapters = false},
}};

// Returns the architecture of that name, or nullptr.
constexpr const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& one : kArchitectures)
    if (one.name == name) return &one;
  return nullptr;
}
// Returns the architecture of that name, which is known to be one.
constexpr const Architecture& architecture_of(std::string_view name) {
  const Architecture* const found = find_architecture(name);
  return found != nullptr ? *found : kArchitectures.front();
}

}  // namespace shardrun::spec

// A Llama, Mistral without a window, Qwen 2 or Qwen 3 as llama.cpp has them in a GGUF: names, facts, and the order of rows.
//
// Thread rule: pure functions.
// Source: llama.cpp's convert_hf_to_gguf.py and gguf-py.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/weights/gguf.h"

namespace shardrun::weights {

struct GgufSource {
  std::string config;         // the checkpoint's configuration, as config.json has it
  int64_t max_positions = 0;  // where that does not say so
  TensorType type = TensorType::kBf16;
  std::string name;  // of the model
  // What lies beside the tokenizer; empty where there is none.
  std::string tokenizer_json, tokenizer_config, chat_template;
};

struct GgufModel {
  GgufFacts facts;
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  bool pairs_rows = false;          // whether rows of queries and keys lie as Meta's Llama has them
  std::vector<float> rope_factors;  // of Llama 3.1's scaling; a tensor of its own
};

// kInvalid for a model or a tokenizer that a GGUF of ours does not hold: only byte-level BPE of the pre-tokenizers that llama.cpp
// knows by name.
Result<GgufModel> describe_gguf(const GgufSource& source);

// Returns the name of a tensor there. kInvalid where there is none.
Result<std::string> gguf_name(std::string_view name);

// Puts the rows of a tensor in the order that llama.cpp wants. `name` is the checkpoint's.
void arrange_for_gguf(std::string_view name, const GgufModel& model, std::vector<float>& values);

}  // namespace shardrun::weights

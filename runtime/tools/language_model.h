// A language model of a run's checkpoint, or of a folder as transformers has them, in the memory of this process.
//
// Thread rule: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/llama.h"
#include "runtime/trainer/generate/weights.h"

namespace shardrun::tools {

using base::Result;

struct ModelPlace {        // one of the two is empty
  std::string checkpoint;  // one of a run, or a folder of them, whose newest undamaged is meant
  std::string folder;      // with config.json and safetensors files
  std::string base;        // of a checkpoint of adapters: the weights that they stand beside
  std::string dtype =
      "auto";  // of the weights: fp32, bf16, or as the files have them (of a checkpoint: fp32)
};

struct LanguageModel {
  plan::LlamaConfig config;
  generate::ModelWeights weights;
  std::vector<int32_t> ends;  // tokens that end an answer, as the folder's configuration says
};

// The bytes of memory that this process may use of its machine.
double memory_bytes();

// kInvalid when keys and values of so many tokens do not fit this machine's memory.
Result<void> check_capacity(const LanguageModel& model, int64_t tokens);

// kInvalid for what the trainer's Llama cannot compute and for what does not fit this machine's memory; kNotFound, kIo, kCorrupt.
Result<LanguageModel> load_language_model(const ModelPlace& place);

}  // namespace shardrun::tools

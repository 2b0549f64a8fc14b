// Exports a checkpoint as safetensors files that Hugging Face's transformers load. Adapters are merged into the weights that they
// stand beside, or exported alone, as PEFT loads them.
//
//   <output>/config.json                          LlamaForCausalLM or BertForPreTraining
//   <output>/model.safetensors                    all tensors, or, above max_file_bytes,
//   <output>/model-00001-of-00003.safetensors …   and model.safetensors.index.json, which says what is where
//   <output>/adapter_config.json, adapter_model.safetensors          in their place, of adapters alone
//   <output>/model.gguf                           in the place of all but the README, where a GGUF for llama.cpp is asked for
//   <output>/tokenizer.json, README.md …          where somebody says where the tokenizer is, and which run it was
//
// Memory: one block of the model in fp32 and small buffers, whatever the model's size.
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/checkpoint/store.h"
#include "runtime/trainer/weights/safetensors.h"

namespace shardrun::tools {

using base::Result;

// What the card says of the run.
struct ExportedRun {
  record::RunRecord record;
  spec::JobSpec job;
  std::string origin;  // the folder whose weights it began with; empty: random ones
};

struct ExportOptions {
  std::string output;                                     // a folder that does not exist yet, or is empty
  weights::TensorType type = weights::TensorType::kBf16;  // fp32 masters are rounded to nearest even
  // Bytes of tensors; a larger tensor has a file of its own.
  uint64_t max_file_bytes = 5'000'000'000;
  // A folder with the model's tokenizer, generation settings and, in its config.json, special tokens; empty: nobody knows one.
  std::string companions;
  std::string base;  // of a checkpoint of adapters: the weights that they stand beside
  bool adapter = false;
  bool gguf = false;
  std::optional<ExportedRun> run;
  std::function<bool()> stop_requested = [] { return false; };  // called between tensors
};

struct ExportSummary {
  int64_t step = 0;
  int64_t tensors = 0;
  uint64_t tensor_bytes = 0;
  int files = 0;                        // of tensors
  std::vector<std::string> companions;  // files beside them that were copied
};

// The folder appears complete and on the disk, or not at all. Every byte that is read is verified. kRefused when
// something exists at `output`; kInvalid when adapters
// are asked for that are not there, or their weights are not those; kCancelled when asked to stop; kCorrupt, kNotFound, kIo with the file.
Result<ExportSummary> export_checkpoint(const checkpoint::Store& store, const checkpoint::Manifest& manifest,
                                        const ExportOptions& options);

}  // namespace shardrun::tools

// AdaptedWeights: a model whose adapters a checkpoint holds, as one: W + s·B·A of the weights that they stand beside.
//
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/model/llama.h"
#include "runtime/trainer/checkpoint/store.h"
#include "runtime/trainer/weights/weight_files.h"

namespace shardrun::tools {

using base::Result;

// Returns the Llama that a config.json describes. kInvalid with `name`, the file's, and what the trainer lacks.
Result<plan::LlamaConfig> llama_of(std::string_view json, const std::string& name);

class AdaptedWeights {
 public:
  // `weights`: as WeightFiles::open takes it; empty is kInvalid with what to name. The store outlives this.
  static Result<AdaptedWeights> open(const checkpoint::Store& store, const checkpoint::Manifest& manifest,
                                     const std::string& weights);

  // The model's own blocks.
  const std::vector<plan::BlockLayout>& layouts() const { return layouts_; }
  // Reads a block, one after another from block 0 on. Errors: those of WeightFiles::read and Store::read_block; after the last,
  // kInvalid when the weights are not those that the adapters were trained beside.
  Result<void> read_block(int block, std::span<float> values);

 private:
  AdaptedWeights(const checkpoint::Store& store, checkpoint::Manifest manifest, plan::LlamaConfig config,
                 weights::WeightFiles files, std::string path);

  const checkpoint::Store* store_;
  checkpoint::Manifest manifest_;
  plan::LlamaConfig config_;
  std::vector<plan::BlockLayout> layouts_;
  weights::WeightFiles files_;
  std::string path_;
  uint32_t checksum_ = 0;  // of what was read
};

}  // namespace shardrun::tools

// Where a model lies that a verb is asked for, and what belongs to it: a folder as transformers has them, a run, or a checkpoint.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/runs/common.h"

namespace shardrun::launcher {

struct ModelPlace {
  std::string folder;      // with config.json, or a .safetensors file beside one; else
  std::string checkpoint;  // one of a run, or a folder of them
  std::string weights;     // the file or folder that the run's [model] init names; empty as `origin` is
  // The folder whose weights the run began with; empty: random ones, or nobody knows the run.
  std::string origin;
  std::string tokenizer;                // as `shardrun data --tokenizer` takes it; empty: nobody knows
  std::vector<std::string> trained_on;  // the run's data files; empty: nobody knows
  std::optional<record::RunDir> run;
};

// Errors as find_checkpoints(). `best` asks for the checkpoint that [evaluation] keep_best keeps; kNotFound where none is kept.
base::Result<ModelPlace> find_model(const std::string& name, const CommonOptions& common, bool best = false);

// Returns the tokenizer's file in a folder of a model; empty where there is none.
std::string tokenizer_in(const std::string& folder);

}  // namespace shardrun::launcher

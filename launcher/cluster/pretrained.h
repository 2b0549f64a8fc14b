// The [model] of a job that starts from somebody's checkpoint: what its config.json says is filled in, and a job that says
// something else is refused before anything trains on weights that mean another model.
//
// Thread rule: free functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"
#include "runtime/spec/pretrained_config.h"

namespace shardrun::launcher {

struct Pretrained {
  std::string path;  // of config.json
  spec::PretrainedConfig config;
  std::vector<std::string> overrides;  // "model.hidden=2048": the sizes that the job leaves to the checkpoint
};

// Looks for config.json in the folder that [model] init names, or beside the file. Nothing where the job starts from random
// weights or runs a command, and where there is no such file here. `text` and `overrides` are the job's, `file_name` names
// the text in messages. Errors: those of the text and of read_pretrained_config().
base::Result<std::optional<Pretrained>> find_pretrained(std::string_view text, const std::string& file_name,
                                                        std::span<const std::string> overrides);

// kInvalid, with the place in the job, for the first key in which the job and the checkpoint differ.
base::Result<void> check_pretrained(const spec::JobSpec& spec, const Pretrained& weights);

}  // namespace shardrun::launcher

// What stands beside the weights of an exported model, so that others use it as it lies there: tokenizer, generation settings,
// and a card that says what the model is.
//
// Thread rule: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::tools {

using base::Result;

// Copies the files of a tokenizer, of generation and of chat templates from the folder `from` into `to`. Returns their names.
// kNotFound where `from` has no tokenizer; kIo.
Result<std::vector<std::string>> copy_companions(const std::string& from, const std::string& to);

// What a card tells, beside record and job.
struct CardFacts {
  int64_t step = 0, parameters = 0;
  std::string dtype;   // "bf16"
  std::string origin;  // the folder whose weights training began with; empty: random ones
  std::vector<std::string> companions;
};

// Returns README.md of an exported model, as model hubs read it.
std::string model_card(const record::RunRecord& record, const spec::JobSpec& job, const CardFacts& facts);

}  // namespace shardrun::tools

// The data files of a job, as their first bytes and their sizes tell: what every rank would refuse at its start is refused before
// anything is queued.
//
// Thread rule: free functions that look at files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// The lists of data files of a job with their keys, "data.files" first.
std::vector<std::pair<std::string, const std::vector<std::string>*>> data_lists(const spec::JobSpec& spec);

// kInvalid, "file:line:column: what; mend", for a file that is not there, empty, no text and no token file, or a token file that is
// not whole; for a list that names a file twice, is not of one kind, or is shorter than one sequence or than a BERT's pairs take; and
// for files of several tokenizers, or of one that has more tokens than the model. Relative paths start at `working_directory`.
base::Result<void> check_data_files(const spec::JobSpec& spec, const std::string& working_directory);

// Warns of held-out data that is trained on, too, and of JSON lines that are read as text.
std::vector<std::string> lint_data_files(const spec::JobSpec& spec, const std::string& working_directory);

}  // namespace shardrun::launcher

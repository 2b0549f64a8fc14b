// Whether the data of a job that starts from somebody's weights was made by the tokenizer that lies beside them: the ids of another
// are other words to the model, and nothing later would say so.
//
// Thread rule: free functions; those that lint look at files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/record/token_file_format.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// What a data file is, as its first bytes tell.
struct DataFile {
  bool is_read = false;  // false: nothing is known of it, as of a header that is damaged
  std::optional<record::TokenFileHeader> tokens;  // of a token file; plain text has none
};

// `begin`: the bytes of a header, or all of a file that is smaller.
DataFile data_file_of(std::string_view begin);

// Returns warnings, each "file:line:column: what; mend", at most one about plain text and one about token files of another
// tokenizer. None where the job starts from random weights, runs a command, or no tokenizer lies beside its weights, and of files
// that cannot be read. Relative paths start at `working_directory`.
std::vector<std::string> lint_tokenizer(const spec::JobSpec& spec, const std::string& working_directory);

// Warns of a tokenizer that did not make what a run was trained on: files of tokens, or plain text, which is that of "byte". `name` is as
// `shardrun data --tokenizer` takes it, or a folder with a model's tokenizers. Says nothing of files that are gone.
std::vector<std::string> lint_tokenizer_of_run(const std::vector<std::string>& trained_on,
                                               const std::string& name);

}  // namespace shardrun::launcher

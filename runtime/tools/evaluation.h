// How well a model answers the questions of a file: exactly, or by which of several answers it finds the likeliest.
//
// The file has a JSON object a line, {"prompt", "answer"} or {"prompt", "choices": […], "label": index}. An answer is exact when
// what the model says, greedily, is the same text without white space at the ends; without a chat template a line break ends it, too,
// unless the answer has one. Of choices, the one with the highest log-likelihood behind the prompt counts, and beside it the one with
// the highest for each of its characters, as lm-evaluation-harness has acc and acc_norm. White space at the end of a prompt is
// read with the choice, as there.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/tools/language_model.h"
#include "runtime/trainer/data/document_encoder.h"

namespace shardrun::tools {

struct Judged {
  int64_t line = 0;
  std::optional<std::string> said;                     // to a question with an answer
  std::optional<std::vector<double>> log_likelihoods;  // of choices, in nats
  std::optional<int> chosen, chosen_by_length;         // of choices, counted from 0
  bool right = false;
};

struct Evaluation {
  std::string file;
  int64_t answers = 0, exact = 0;                       // questions with an answer
  int64_t choices = 0, right = 0, right_by_length = 0;  // questions with choices
  std::vector<Judged> questions;
};

struct EvaluationOptions {
  std::string file;
  std::string system;  // what is said before each prompt, in a conversation
  data::Encoding encoding;
  int64_t max_tokens = 256;
};

// Returns what came of each question, in the file's order. `stops` is asked between tokens; what was judged until it says so counts.
// kInvalid: "file:line: what; mend".
Result<Evaluation> evaluate(LanguageModel model, const data::Tokenizer& tokenizer,
                            const EvaluationOptions& options, const std::function<bool()>& stops);

std::string to_json(const Evaluation& evaluation);
// Returns a table for people.
std::string to_text(const Evaluation& evaluation);

}  // namespace shardrun::tools

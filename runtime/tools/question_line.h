// A line of a file of questions (evaluation.h): {"prompt", "answer"} or {"prompt", "choices": […], "label": index}.
//
// Thread rule: a value and pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/fields.h"
#include "runtime/base/result.h"

namespace shardrun::tools {

struct QuestionLine {
  std::string prompt;
  std::optional<std::string> answer;
  std::optional<std::vector<std::string>> choices;
  std::optional<int> label;  // of the right choice, counted from 0
};

// Found by base/json_fields.h beside the struct.
void fields(auto& visit, base::Is<QuestionLine> auto& line) {
  visit("prompt", line.prompt);
  visit.where_known("answer", line.answer);
  visit.where_known("choices", line.choices);
  visit.where_known("label", line.label);
}

// Of what is returned, exactly one of `answer` and `choices` is there, and with choices an index of them. kCorrupt for what is no
// JSON object with these members; kInvalid.
base::Result<QuestionLine> parse_question_line(std::string_view text);

}  // namespace shardrun::tools

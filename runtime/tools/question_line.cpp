#include "runtime/tools/question_line.h"

#include <utility>

#include "runtime/base/json_fields.h"

namespace shardrun::tools {

using base::Code;
using base::Error;

base::Result<QuestionLine> parse_question_line(std::string_view text) {
  ASSIGN_OR_RETURN(auto line, base::parse_fields<QuestionLine>(text, "this line"));
  if (line.answer.has_value() == line.choices.has_value())
    return Error(Code::kInvalid, "has not exactly one of \"answer\" and \"choices\"; write one");
  if (line.choices &&
      (!line.label || *line.label < 0 || std::cmp_greater_equal(*line.label, line.choices->size())))
    return Error(Code::kInvalid, "\"label\" is no index of \"choices\"; count from 0");
  return line;
}

}  // namespace shardrun::tools

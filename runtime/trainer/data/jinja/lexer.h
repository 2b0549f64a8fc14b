// The tokens of a chat template.
//
// Thread rule: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::data::jinja {

using base::Result;

struct Token {
  enum class Kind {
    kText,
    kPrintBegin,
    kPrintEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kNumber,
    kSign,
    kEnd
  };
  Kind kind = Kind::kEnd;
  int line = 0;
  std::string text{};  // of a string: what it says
  int64_t number = 0;
};

// Returns "line 3: what; mend".
base::Error template_error(int line, const std::string& what, const std::string& mend);

// Cuts white space beside tags, and ends with kEnd. Errors as parse_template().
Result<std::vector<Token>> tokenize_template(std::string_view source);

}  // namespace shardrun::data::jinja

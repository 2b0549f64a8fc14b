// A chat template as a tree: text, {{ prints }}, and the statements if, for, set, break, continue.
//
// The subset of Jinja is that of the templates that checkpoints bring: docs/formats.md lists it. White space is cut as
// transformers asks Jinja to (trim_blocks, lstrip_blocks, and the signs - and + in a tag). Parsing is bounded: a template has at
// most kLargestTemplate bytes, nests at most kDeepest expressions and statements, and chains at most kHighest operations.
//
// Source: Jinja 3.1's lexer and parser.
// Thread rule: pure functions and values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/jinja/value.h"

namespace shardrun::data::jinja {

using base::Result;

inline constexpr size_t kLargestTemplate = 256 << 10;
inline constexpr int kDeepest = 64, kHighest = 200;

struct Expression {
  enum class Kind {
    kLiteral,
    kName,       // names: its own
    kList,       // parts: elements
    kDict,       // parts: key, value, key, value …
    kAttribute,  // parts: of what; names: which
    kItem,       // parts: of what, which
    kSlice,      // parts: of what, begin, end, step; an absent one is a literal none
    kCall,       // parts: what, then arguments; names: "" for those by position, else their names
    kFilter,     // parts: of what, then arguments; names: the filter's, then as for a call
    kTest,       // likewise
    kNot,
    kNegate,
    kAnd,
    kOr,
    kChoose,   // parts: condition, value, other value, which may be missing
    kCompare,  // parts: all that is compared; names: the operators between them
    kBinary    // parts: left, right; names: + - * // % or ~
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  int height = 0;  // of the tree below
  Value literal{};
  std::vector<std::string> names{};
  std::vector<Expression> parts{};
};

struct Statement {
  enum class Kind {
    kText,   // text
    kPrint,  // parts: what
    kSet,    // names: a name, or a namespace and its attribute; parts: the value, or bodies: what prints it
    kIf,     // parts: conditions; bodies: one for each, and one for "else"
    kFor,  // names: one or two; parts: of what, and the condition of "if"; bodies: the loop's, and that of "else"
    kBreak,
    kContinue
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text{};
  std::vector<std::string> names{};
  std::vector<Expression> parts{};
  std::vector<std::vector<Statement>> bodies{};
};

struct Template {
  std::vector<Statement> statements;
};

// kInvalid: "line 3: what; mend" for what is no Jinja, and for a construct that is not served.
Result<Template> parse_template(std::string_view source);

}  // namespace shardrun::data::jinja

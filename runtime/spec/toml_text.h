// Looks at TOML text before toml++ parses it, and writes strings as TOML.
//
// Why: on some text that is no TOML, toml++ 3.3 does not report an error but fails an assertion or runs into
// undefined behaviour. Fuzzing found these cases, which are refused here:
//   - a character outside of ASCII where white space may stand: outside strings and comments, behind a backslash, or
//     first after a line-ending backslash of a multi-line string (that last one is TOML, and refused all the same)
//   - a bracket that closes one of the other kind: "[}"
//   - a table header whose first character cannot begin a key: "[!]"
// One thing that is TOML is refused too: a key of very many dots, a.a.a…, whose nested tables overflow the stack.
// Source: https://github.com/marzer/tomlplusplus/issues/190. Test: tests/unit/spec/toml_text_test.cpp
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::spec {

struct TextFlaw {
  size_t offset = 0;
  const char* what = "";  // "what is wrong; what to do"
};

// Returns the first thing that toml++ must not see. In text that has another mistake before it the answer may be
// wrong, which does no harm: the parser stops at that mistake.
std::optional<TextFlaw> find_flaw(std::string_view text);

struct TextPlace {
  size_t line = 1, column = 1;  // columns count code points, as toml++ does
};
TextPlace place_of(std::string_view text, size_t offset);

// Returns what a person most likely meant by a line that is no TOML, as "what is wrong; what to do"; empty where nothing is
// likely. Quotes that are missing, Python's and YAML's words.
std::string likely_mistake(std::string_view line);

// Writes `text` as a basic string of TOML, with its quotes.
std::string toml_string(std::string_view text);
// Writes them as an array.
std::string toml_array(const std::vector<std::string>& texts);

}  // namespace shardrun::spec

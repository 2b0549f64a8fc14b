// How a tool understands the verb of the launcher that starts it, and is understood: words such as --switch and --name=value, and
// behind "--" what is no option; errors as verbs tell them.
//
// Thread rule: pure functions, but fail().
#pragma once

#include <charconv>
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "runtime/base/result.h"

namespace shardrun::tools {

// Reads a value that is one number and nothing else. kInvalid names the option.
template <typename Number>
base::Result<void> read_number(std::string_view text, std::string_view name, Number& into) {
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), into);
  if (failure == std::errc() && end == text.data() + text.size()) return {};
  return base::Error(base::Code::kInvalid, fmt::format("--{}: \"{}\" is not a number that fits", name, text));
}

struct Switch {
  std::string_view word;
  bool& target;
  bool value = true;  // what the word makes of `target`
};

// Sets what switches set and hands each --name=value to `read`; returns the words behind "--". kInvalid names a word that is
// none of them, and `verb`, whose help lists them.
base::Result<std::span<char* const>> read_option_words(
    std::span<char* const> arguments, std::string_view verb, std::initializer_list<Switch> switches,
    const std::function<base::Result<void>(std::string_view name, std::string_view value)>& read);

// Tells an error as verbs do; returns the exit code that it ends the tool with.
int fail(const base::Error& error);

}  // namespace shardrun::tools

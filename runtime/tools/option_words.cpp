#include "runtime/tools/option_words.h"

#include <algorithm>
#include <cstdio>

#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::tools {

base::Result<std::span<char* const>> read_option_words(
    std::span<char* const> arguments, std::string_view verb, std::initializer_list<Switch> switches,
    const std::function<base::Result<void>(std::string_view name, std::string_view value)>& read) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    if (word == "--") return arguments.subspan(i + 1);
    const auto found = std::find_if(switches.begin(), switches.end(),
                                    [&](const Switch& known) { return known.word == word; });
    if (found != switches.end()) {
      found->target = found->value;
      continue;
    }
    const size_t equals = word.find('=');
    if (!word.starts_with("--") || equals == word.npos)
      return base::Error(base::Code::kInvalid,
                         fmt::format("\"{}\" is no option; see shardrun {} --help", word, verb));
    RETURN_IF_ERROR(read(word.substr(2, equals - 2), word.substr(equals + 1)));
  }
  return arguments.subspan(arguments.size());
}

int fail(const base::Error& error) {
  fmt::print(stderr, "shardrun: error: {}\n", base::visible(error.to_string()));
  return contract::exit_code_of(error.code());
}

}  // namespace shardrun::tools

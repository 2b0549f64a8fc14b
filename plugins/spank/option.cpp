#include "plugins/spank/option.h"

#include <algorithm>

namespace shardrun::spank {
namespace {

// "-N" and "--nodes" may have their value in the next word; "-N2", "--nodes=2" and "-" do not.
bool may_take_next(std::string_view argument) {
  if (argument.starts_with("--")) return argument.find('=') == std::string_view::npos;
  return argument.size() == 2 && argument.front() == '-';
}

}  // namespace

std::optional<std::string> find_option(std::span<const std::string> arguments) {
  const std::string name = std::string("--") + kOption, assigned = name + "=";
  std::optional<std::string> found;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") break;
    if (argument == name && i + 1 < arguments.size()) {
      found = arguments[++i];
    } else if (argument.starts_with(assigned)) {
      found = argument.substr(assigned.size());
    } else if (!argument.starts_with("-") && (i == 1 || !may_take_next(arguments[i - 1]))) {
      break;  // the program begins
    }
  }
  return found;
}

std::vector<std::string> split_at_zeros(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string absolute_spec(const std::string& value, const std::string& directory) {
  return value.empty() || value.front() == '/' ? value : directory + "/" + value;
}

}  // namespace shardrun::spank

#include "launcher/view/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/base/text.h"
#include "runtime/base/visible.h"

namespace shardrun::launcher {
namespace {

constexpr std::pair<std::string_view, char> kInAscii[] = {
    {"━", '#'}, {"─", '-'}, {"×", 'x'}, {"→", '>'}, {"…", '.'},  {"·", '.'}, {"−", '-'}, {"–", '-'},
    {"▁", '_'}, {"▂", '.'}, {"▃", ':'}, {"▄", '-'}, {"▅", '='},  {"▆", '+'}, {"▇", '*'}, {"█", '#'},
    {"≥", '>'}, {"≤", '<'}, {"“", '"'}, {"”", '"'}, {"‘", '\''}, {"’", '\''}};

bool is_utf8(const contract::EnvironmentLookup& environment) {
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    locale = environment(name).value_or("");
    if (!locale.empty()) break;
  }
  locale = base::lower_case(locale);
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

}  // namespace

Terminal look_at_terminal(int fd, const contract::EnvironmentLookup& environment) {
  Terminal terminal;
  if (::isatty(fd) != 1) return terminal;
  const std::string kind = environment("TERM").value_or("");
  terminal.moves = !kind.empty() && kind != "dumb";
  terminal.colour = terminal.moves && environment("NO_COLOR").value_or("").empty();
  terminal.utf8 = is_utf8(environment);
  terminal.columns = terminal_columns(fd);
  return terminal;
}

int terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string shown_on(const Terminal& terminal, std::string text) {
  const bool ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (terminal.utf8 || ascii) return text;
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view character = rest.substr(0, std::max<size_t>(base::character_length(rest), 1));
    const auto* found = std::find_if(std::begin(kInAscii), std::end(kInAscii),
                                     [&](const auto& one) { return one.first == character; });
    const bool plain = static_cast<unsigned char>(character[0]) < 0x80;
    out += plain ? character[0] : found != std::end(kInAscii) ? found->second : '?';
    rest.remove_prefix(character.size());
  }
  return out;
}

}  // namespace shardrun::launcher

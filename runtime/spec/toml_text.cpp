#include "runtime/spec/toml_text.h"

#include <algorithm>
#include <cctype>
#include <string>

#include <fmt/format.h>

#include "runtime/base/text.h"

namespace shardrun::spec {
namespace {

constexpr size_t kNone = std::string_view::npos;
constexpr const char* kStrayCharacter =
    "a character outside of ASCII stands outside strings and comments; put the text in quotes";
constexpr const char* kBadHeader =
    "no section name follows the bracket; write [section], with letters, digits, - and _";
constexpr const char* kDeepKey =
    "a key with more than 8 dots, deeper than any section; write [section] and key = value";
constexpr const char* kWrongBracket = "this bracket closes one of the other kind; write ] for [ and } for {";
constexpr int kMostDots = 8;

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool begins_key(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '"' || c == '\'';
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<TextFlaw> run() {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;  // a byte order mark, which toml++ skips
    while (at_ < text_.size() && !flaw_) step();
    return flaw_;
  }

 private:
  void step() {
    const char c = text_[at_];
    if (!is_ascii(c)) {
      flaw_ = TextFlaw{at_, kStrayCharacter};
    } else if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if ((c == '"' || c == '\'') && may_begin_string()) {
      begins_line_ = false;
      skip_string(c);
    } else if (c == '[' && begins_line_ && open_.empty()) {
      check_header();
    } else {
      count_dots(c);
      count_brackets(c);
      if (!is_space(c)) begins_line_ = false;
      if (c == '\n') begins_line_ = true;
      ++at_;
    }
  }

  void count_brackets(char c) {
    if (c == '[' || c == '{') open_ += c;
    if ((c != ']' && c != '}') || open_.empty()) return;
    if (open_.back() != (c == ']' ? '[' : '{')) flaw_ = TextFlaw{at_, kWrongBracket};
    open_.pop_back();
  }

  // Counts the dots of one key, which toml++ turns into one table inside the other for each dot, without a limit.
  void count_dots(char c) {
    if (std::string_view("=,{}[]\n").find(c) != kNone) dots_ = 0;
    if (c == '.' && ++dots_ > kMostDots) flaw_ = TextFlaw{at_, kDeepKey};
  }

  // Says whether a quote here begins a string. One inside a bare word begins none: toml++ reads the whole word
  // before it says so.
  bool may_begin_string() const {
    return at_ == 0 || is_space(text_[at_ - 1]) || std::string_view("=,.[{").find(text_[at_ - 1]) != kNone;
  }

  // Is called at the bracket of a table header: "[name]" or "[[name]]".
  void check_header() {
    begins_line_ = false;
    ++at_;
    const bool array = at_ < text_.size() && text_[at_] == '[';
    if (array) ++at_;
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    if (at_ >= text_.size() || text_[at_] == ']' || begins_key(text_[at_])) return;
    if (text_[at_] == '[' && !array) return;  // "[ [", for which toml++ has a message
    flaw_ = TextFlaw{at_, is_ascii(text_[at_]) ? kBadHeader : kStrayCharacter};
  }

  void skip_string(char quote) {
    const bool multi_line = count_quotes(quote) >= 3;
    at_ += multi_line ? 3 : 1;
    while (at_ < text_.size() && !flaw_) {
      if (quote == '"' && text_[at_] == '\\') {
        skip_escape(multi_line);
      } else if (text_[at_] == quote && (!multi_line || count_quotes(quote) >= 3)) {
        at_ += multi_line ? std::min<size_t>(count_quotes(quote), 5) : 1;  // up to two belong to the string
        return;
      } else if (text_[at_] == '\n' && !multi_line) {
        return;  // unterminated: the parser stops here
      } else {
        ++at_;
      }
    }
  }

  void skip_escape(bool multi_line) {
    ++at_;
    if (multi_line && at_ < text_.size() && is_space(text_[at_])) {
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (at_ < text_.size() && !is_ascii(text_[at_])) flaw_ = TextFlaw{at_, kStrayCharacter};
    } else if (at_ < text_.size()) {
      if (!is_ascii(text_[at_])) flaw_ = TextFlaw{at_, kStrayCharacter};
      ++at_;
    }
  }

  size_t count_quotes(char quote) const {
    const size_t end = text_.find_first_not_of(quote, at_);
    return (end == kNone ? text_.size() : end) - at_;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string open_;  // brackets of arrays and inline tables that are open
  int dots_ = 0;
  bool begins_line_ = true;  // whether the line had only white space so far
  std::optional<TextFlaw> flaw_;
};

}  // namespace

std::optional<TextFlaw> find_flaw(std::string_view text) {
  return Scanner(text).run();
}

TextPlace place_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t newline = before.rfind('\n');
  const std::string_view line = newline == kNone ? before : before.substr(newline + 1);
  TextPlace place;
  place.line += static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
  place.column += static_cast<size_t>(std::count_if(
      line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  return place;
}

std::string likely_mistake(std::string_view line) {
  constexpr size_t kLongest = 60;
  const auto is_key = [](std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
    });
  };
  const size_t equals = line.find('=');
  if (equals == kNone) {
    const size_t colon = line.find(':');
    const std::string_view name = base::trimmed(line.substr(0, colon));
    if (colon == kNone || !is_key(name)) return "";
    return fmt::format("TOML has = where YAML has a colon; write {} = …", name);
  }
  const std::string_view key = base::trimmed(line.substr(0, equals));
  const std::string_view value = base::trimmed(line.substr(equals + 1, line.find('#', equals) - equals - 1));
  if (!is_key(key) || value.size() > kLongest) return "";
  if (value.empty()) return fmt::format("{0} has no value; write {0} = …, or remove the line", key);
  for (const char* word : {"True", "TRUE", "False", "FALSE", "yes", "no"}) {
    if (value != word) continue;
    const bool truth = word[0] == 'T' || word[0] == 'y';
    return fmt::format("TOML writes truth as true and false; write {} = {}", key, truth);
  }
  for (const char* word : {"None", "null", "nil"}) {
    if (value == word) return fmt::format("TOML has no {}; remove the line", value);
  }
  const auto first = static_cast<unsigned char>(value.front());
  const bool bare = std::isalpha(first) != 0 || first == '_' || first == '/' || first == '~' ||
                    (first == '.' && value.size() > 1 && value[1] == '/');
  if (!bare || value.find_first_of("\"'") != kNone) return "";
  return fmt::format("{0} is a text without quotes; write {1} = \"{0}\"", value, key);
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string toml_array(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + toml_string(text);
  return "[" + out + "]";
}

}  // namespace shardrun::spec

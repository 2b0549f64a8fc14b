#include "runtime/base/visible.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace shardrun::base {
namespace {

bool is_plain(char c) {
  return (c >= 0x20 && c < 0x7f) || c == '\t';
}

std::string escaped(std::string_view text, bool keep_newlines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto plain = std::find_if_not(text.begin(), text.end(), is_plain) - text.begin();
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    const std::string_view character = first_character(text);
    if (character_length(text) > 0 && (!is_control(character) || (keep_newlines && character == "\n"))) {
      out.append(character);
    } else {
      for (const char c : character)
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace

size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if (first == 0xe0 && second < 0xa0) return 0;  // overlong
  if (first == 0xed && second > 0x9f) return 0;  // surrogates
  if (first == 0xf0 && second < 0x90) return 0;  // overlong
  if (first == 0xf4 && second > 0x8f) return 0;  // above U+10FFFF
  return length;
}

std::string_view first_character(std::string_view text) {
  return text.substr(0, std::max<size_t>(text.empty() ? 0 : character_length(text), 1));
}

uint32_t code_of(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  uint32_t code = character.size() > 1 ? lead & (0x7FU >> character.size()) : lead;
  for (const char c : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3FU);
  return code;
}

bool is_control(std::string_view character) {
  if (character.size() == 1) return static_cast<unsigned char>(character[0]) < 0x20 || character[0] == 0x7f;
  if (character.size() == 2) return (character >= "\u0080" && character <= "\u009f") || character == "\u061c";
  return (character >= "\u200e" && character <= "\u200f") ||
         (character >= "\u2028" && character <= "\u202e") || (character >= "\u2066" && character <= "\u2069");
}

std::string visible(std::string_view text) {
  return escaped(text, /*keep_newlines=*/false);
}

std::string visible_lines(std::string_view text) {
  return escaped(text, /*keep_newlines=*/true);
}

}  // namespace shardrun::base

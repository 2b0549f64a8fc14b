// Small things that many places do with texts.
//
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace shardrun::base {

inline constexpr std::string_view kWhite = " \t\n\r\f\v";

// Takes what is before `end` off `text`, with the end itself, and returns it; all of it where there is none.
inline std::string_view take_until(std::string_view& text, char end) {
  const std::string_view first = text.substr(0, text.find(end));
  text.remove_prefix(std::min(first.size() + 1, text.size()));
  return first;
}

// Takes the first line off `text` and returns it without its newline.
inline std::string_view take_line(std::string_view& text) {
  return take_until(text, '\n');
}

// Returns the text without white space at its ends.
inline std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kWhite), text.size());
  return text.substr(begin, text.find_last_not_of(kWhite) + 1 - begin);
}

// Makes the capital letters of ASCII small.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

// 1, "rank" → "1 rank"; 2 → "2 ranks".
inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace shardrun::base

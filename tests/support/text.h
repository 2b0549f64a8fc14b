// What a text has.
//
// Thread rule: pure functions.
#pragma once

#include <string_view>

namespace shardrun::tests {

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace shardrun::tests

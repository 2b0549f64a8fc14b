// JSON text: the one parser and the one printer. A source with its own instance takes two seconds longer to
// compile.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shardrun::base {

// Returns what `text` says; for text that is not JSON, a value that is_discarded().
nlohmann::json parse_json(std::string_view text);

// Prints with `indent` spaces a level, or on one line if it is negative. Never throws: bytes that are not UTF-8
// become U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace shardrun::base

// JSON text: the one parser and the one printer. They cost two seconds of compile time in every source that has its own.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shardrun::base {

// What `text` says; of text that is no JSON a value that is_discarded().
nlohmann::json parse_json(std::string_view text);

// With `indent` spaces a level, or on one line. Never throws: bytes that are no UTF-8 become U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace shardrun::base

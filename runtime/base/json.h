// JSON text: the one parser and the one printer. A source with its own instance takes two seconds longer to
// compile.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shardrun::base {

// Returns whether arrays and objects lie more than 256 deep in one another. They do so in no file that anybody means; what is
// printed or walked through afterwards would need a stack as deep, and a value a hundred times the memory of its text.
bool nests_too_deep(std::string_view text);

// Returns what `text` says; for text that is not JSON, or nests too deep, a value that is_discarded().
nlohmann::json parse_json(std::string_view text);

// Returns a member of an object; null where `object` is none or has none of that name.
const nlohmann::json& member(const nlohmann::json& object, const char* name);
// Returns what a string says; "" for every other value.
std::string text_of(const nlohmann::json& value);

// Prints with `indent` spaces a level, or on one line if it is negative. Never throws: bytes that are not UTF-8
// become U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);

}  // namespace shardrun::base

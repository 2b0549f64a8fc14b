#include "runtime/base/json.h"

#include <nlohmann/json.hpp>

namespace shardrun::base {

using nlohmann::json;

bool nests_too_deep(std::string_view text) {
  constexpr int kDeepest = 256;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

json parse_json(std::string_view text) {
  if (nests_too_deep(text)) return json(json::value_t::discarded);
  return json::parse(text, /*callback=*/nullptr, /*allow_exceptions=*/false);
}

const json& member(const json& object, const char* name) {
  static const json kNull;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() ? *found : kNull;
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

}  // namespace shardrun::base

#include "runtime/base/json.h"

#include <nlohmann/json.hpp>

namespace shardrun::base {

using nlohmann::json;
using nlohmann::ordered_json;

json parse_json(std::string_view text) {
  return json::parse(text, /*callback=*/nullptr, /*allow_exceptions=*/false);
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

std::string json_text(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

}  // namespace shardrun::base

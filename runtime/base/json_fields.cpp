#include "runtime/base/json_fields.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/base/visible.h"

namespace shardrun::base {

using nlohmann::json;

namespace {

// Writes the controls that JSON lets stand in a string (DEL, those of two bytes, turns of direction) as \uNNNN: the same
// document, and a terminal that shows it obeys none of them.
std::string without_controls(const std::string& text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; })) return text;
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view character = first_character(rest);
    rest.remove_prefix(character.size());
    out += is_control(character) ? fmt::format("\\u{:04x}", code_of(character)) : std::string(character);
  }
  return out;
}

}  // namespace

std::string json_text_of(std::string_view text) {
  return without_controls(json_text(json(text)));
}

std::string json_text_of(double value, Digits digits) {
  if (digits.kind == Digits::Kind::kShortest || !std::isfinite(value)) return json_text(json(value));
  return digits.kind == Digits::Kind::kSignificant ? fmt::format("{:.{}g}", value, digits.count)
                                                   : fmt::format("{:.{}f}", value, digits.count);
}

void JsonWriter::add(std::string_view key, std::string text) {
  items_.emplace_back(key, std::move(text));
}

std::string JsonWriter::finish() {
  if (style_.sorted) std::sort(items_.begin(), items_.end());
  return brackets('{', '}');
}

std::string JsonWriter::brackets(char open, char close) const {
  if (items_.empty()) return {open, close};
  const auto line = [&](int depth) {
    return style_.indent < 0 ? std::string() : "\n" + std::string(depth * style_.indent, ' ');
  };
  std::string text(1, open);
  const char* comma = style_.indent < 0 && style_.spaced ? ", " : ",";
  for (const auto& [key, value] : items_) {
    text += (text.size() > 1 ? comma : "") + line(depth_);
    if (open == '{') text += json_text_of(key) + (style_.spaced ? ": " : ":");
    text += value;
  }
  return text + line(depth_ - 1) + close;
}

void JsonReader::fail(Code code, const std::string& what) {
  if (!error_) error_ = Error(code, where_ + what);
}

void JsonReader::fail_type(std::string_view key, const json& value, const char* wanted) {
  fail(Code::kCorrupt, fmt::format(": \"{}\" is {}, not {}", key,
                                   value.is_discarded() ? "missing" : value.type_name(), wanted));
}

const json& JsonReader::find(std::string_view key) const {
  static const json kMissing(json::value_t::discarded);
  const auto found = object_.find(key);
  return found == object_.end() ? kMissing : *found;
}

const json* JsonReader::member(std::string_view key) const {
  if (error_) return nullptr;
  const json& value = find(key);
  return value.is_discarded() || value.is_null() ? nullptr : &value;
}

bool JsonReader::is_null(const json& value) {
  return value.is_null();
}

void JsonReader::take(std::string_view key, const json& from, std::string& out) {
  if (!from.is_string()) return fail_type(key, from, "a string");
  out = from.get_ref<const std::string&>();
}

void JsonReader::take(std::string_view key, const json& from, double& out) {
  if (!from.is_number()) return fail_type(key, from, "a number");
  out = from.get<double>();
}

void JsonReader::take(std::string_view key, const json& from, bool& out) {
  if (!from.is_boolean()) return fail_type(key, from, "true or false");
  out = from.get<bool>();
}

void JsonReader::take(std::string_view key, const json& from, int64_t& out, int64_t low, int64_t high) {
  const bool fits =
      from.is_number_unsigned() ? std::in_range<int64_t>(from.get<uint64_t>()) : from.is_number_integer();
  if (!fits || from.get<int64_t>() < low || from.get<int64_t>() > high)
    return fail_type(key, from, "an integer in range");
  out = from.get<int64_t>();
}

void JsonReader::take(std::string_view key, const json& from, uint64_t& out, uint64_t low, uint64_t high) {
  if (!from.is_number_unsigned() || from.get<uint64_t>() < low || from.get<uint64_t>() > high)
    return fail_type(key, from, "an integer in range");
  out = from.get<uint64_t>();
}

void JsonReader::visit_object(std::string_view key, const json& object,
                              const std::function<void(JsonReader&)>& visit) {
  if (!object.is_object()) return fail_type(key, object, "an object");
  JsonReader inner(object, where_ + " " + std::string(key), error_);
  visit(inner);
}

void JsonReader::each_item(std::string_view key, const json& list,
                           const std::function<void(const json&)>& read_item) {
  if (!list.is_array()) return fail_type(key, list, "a list");
  for (size_t i = 0; i < list.size() && !error_; ++i) read_item(list[i]);
}

void JsonReader::each_member(std::string_view key, const json& object,
                             const std::function<void(const std::string&, const json&)>& read_item) {
  if (!object.is_object()) return fail_type(key, object, "an object");
  for (auto at = object.begin(); at != object.end() && !error_; ++at) read_item(at.key(), at.value());
}

void JsonReader::version(int newest) {
  int found = 0;
  (*this)("format_version", found);
  if (found > newest)
    fail(Code::kUnsupported,
         fmt::format(" has format {}, this version reads {}; use a newer shardrun", found, newest));
}

Result<void> read_json(std::string_view text, std::string_view document,
                       const std::function<void(JsonReader&)>& read) {
  const json object = parse_json(text);
  const std::string name(document);
  if (object.is_discarded()) return Error(Code::kCorrupt, name + " is not JSON");
  if (!object.is_object()) return Error(Code::kCorrupt, name + " is not a JSON object");
  std::optional<Error> error;
  JsonReader reader(object, name, error);
  read(reader);
  if (error) return std::move(*error);
  return {};
}

}  // namespace shardrun::base

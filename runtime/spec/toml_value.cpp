#include "runtime/spec/toml_value.h"

#include <algorithm>

#include <fmt/format.h>

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "runtime/base/text.h"
#include "runtime/base/visible.h"
#include "runtime/spec/toml_text.h"

namespace shardrun::spec {
namespace {

using base::Code;
using base::Error;

std::string origin_of(const toml::source_region& source, std::string_view file_name) {
  return fmt::format("{}:{}:{}", printable_path(file_name), source.begin.line, source.begin.column);
}

TomlValue convert(const toml::node& node, std::string_view file_name) {
  TomlValue value;
  value.origin = origin_of(node.source(), file_name);
  if (const auto* table = node.as_table()) {
    for (const auto& [key, member] : *table) {
      value.members.emplace_back(std::string(key.str()), convert(member, file_name));
    }
  } else if (const auto* array = node.as_array()) {
    value.kind = TomlValue::Kind::kArray;
    for (const auto& item : *array) value.items.push_back(convert(item, file_name));
  } else if (const auto* text = node.as_string()) {
    value.kind = TomlValue::Kind::kString;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = TomlValue::Kind::kInteger;
    value.integer = integer->get();
  } else if (const auto* floating = node.as_floating_point()) {
    value.kind = TomlValue::Kind::kFloat;
    value.floating = floating->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = TomlValue::Kind::kBoolean;
    value.boolean = boolean->get();
  } else {
    value.kind = TomlValue::Kind::kOther;
  }
  return value;
}

// Returns a line of the text by its number, from 1 on.
std::string_view line_of(std::string_view text, size_t number) {
  for (; number > 1; --number) base::take_line(text);
  return base::take_line(text);
}

void set_origin(TomlValue& value, const std::string& origin) {
  value.origin = origin;
  for (auto& item : value.items) set_origin(item, origin);
  for (auto& member : value.members) set_origin(member.value, origin);
}

// Names an override as it was given, but hides values of [environment], which may be secrets.
std::string override_origin(std::string_view path, std::string_view value) {
  const bool may_be_secret = path == "environment" || path.starts_with("environment.");
  return fmt::format("--set {}={}", printable(path), may_be_secret ? "…" : printable(value));
}

}  // namespace

std::string printable_path(std::string_view path) {
  return printable(path, path.size() * 4);
}

const TomlValue* TomlValue::find(std::string_view key) const {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.key == key; });
  return found == members.end() ? nullptr : &found->value;
}

TomlValue* TomlValue::find(std::string_view key) {
  return const_cast<TomlValue*>(static_cast<const TomlValue*>(this)->find(key));
}

const char* kind_name(TomlValue::Kind kind) {
  switch (kind) {
    case TomlValue::Kind::kTable:
      return "a table";
    case TomlValue::Kind::kArray:
      return "an array";
    case TomlValue::Kind::kString:
      return "a string";
    case TomlValue::Kind::kInteger:
      return "an integer";
    case TomlValue::Kind::kFloat:
      return "a float";
    case TomlValue::Kind::kBoolean:
      return "a boolean";
    case TomlValue::Kind::kOther:
      return "a date or time";
  }
  return "a value";
}

std::string printable(std::string_view text, size_t longest) {
  std::string shown;
  while (!text.empty()) {
    const std::string_view character = base::first_character(text);
    if (shown.size() + character.size() > longest) return shown + "…";
    if (base::character_length(text) == 0 || base::is_control(character)) {
      for (const char c : character) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      shown += character;
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

Result<TomlValue> parse_toml(std::string_view text, std::string_view file_name) {
  if (const auto flaw = find_flaw(text)) {
    const TextPlace place = place_of(text, flaw->offset);
    return Error(Code::kInvalid, fmt::format("{}:{}:{}: {}", printable_path(file_name), place.line,
                                             place.column, flaw->what));
  }
  // toml++ accepts a leading byte order mark and everything else of TOML 1.0; it caps nesting at 256.
  const toml::parse_result parsed = toml::parse(text, std::string_view(file_name));
  if (!parsed) {
    const toml::parse_error& failure = parsed.error();
    if (const std::string meant = likely_mistake(line_of(text, failure.source().begin.line)); !meant.empty())
      return Error(Code::kInvalid,
                   fmt::format("{}: {}", origin_of(failure.source(), file_name), printable(meant, 300)));
    return Error(Code::kInvalid,
                 fmt::format("{}: {}; correct the TOML at this place", origin_of(failure.source(), file_name),
                             printable(failure.description(), 300)));
  }
  return convert(parsed.table(), file_name);
}

Result<void> apply_override(TomlValue& document, std::string_view assignment) {
  constexpr auto kDeepestPath = 8;
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return Error(Code::kInvalid,
                 fmt::format("--set {}: no assignment; write section.key=value", printable(assignment)));
  }
  const std::string_view path = assignment.substr(0, equals);
  const std::string_view text = assignment.substr(equals + 1);
  const std::string shown = override_origin(path, text);
  if (std::count(path.begin(), path.end(), '.') > kDeepestPath) {
    return Error(Code::kInvalid, shown + ": deeper than any section; write section.key=value");
  }
  TomlValue value;
  const std::string assigned = "value = " + std::string(text);
  const toml::parse_result parsed =
      toml::parse(find_flaw(assigned) ? std::string() : assigned, std::string_view("--set"));
  if (parsed && parsed.table().size() == 1 && parsed.table().contains("value")) {
    value = convert(*parsed.table().get("value"), "--set");
  } else {
    value.kind = TomlValue::Kind::kString;
    value.text = text;
  }
  set_origin(value, shown);
  TomlValue* table = &document;
  size_t begin = 0;
  while (true) {
    const size_t dot = path.find('.', begin);
    const std::string key(path.substr(begin, dot == std::string_view::npos ? dot : dot - begin));
    if (key.empty()) return Error(Code::kInvalid, shown + ": empty key; write section.key=value");
    TomlValue* member = table->find(key);
    if (member == nullptr) {
      table->members.emplace_back(key, TomlValue{});
      member = &table->members.back().value;
      member->origin = shown;
    }
    if (dot == std::string_view::npos) {
      *member = std::move(value);
      return {};
    }
    if (member->kind != TomlValue::Kind::kTable) {
      return Error(Code::kInvalid,
                   fmt::format("{}: {} is not a section; write section.key=value", shown, printable(key)));
    }
    table = member;
    begin = dot + 1;
  }
}

}  // namespace shardrun::spec

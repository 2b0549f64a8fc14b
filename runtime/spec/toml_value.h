// TomlValue: a parsed TOML document as plain values, each with the place it came from.
//
// This is the only door to toml++, which stays inside toml_value.cpp; what reads job specs works on this tree.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::spec {

using base::Result;

struct TomlMember;

struct TomlValue {
  enum class Kind { kTable, kArray, kString, kInteger, kFloat, kBoolean, kOther };
  Kind kind = Kind::kTable;
  std::string origin;  // "job.toml:3:8", or "--set batch.micro_batch" for an override
  std::string text;
  int64_t integer = 0;
  double floating = 0.0;
  bool boolean = false;
  std::vector<TomlValue> items;
  std::vector<TomlMember> members;  // members of a table, in toml++'s order

  const TomlValue* find(std::string_view key) const;
  TomlValue* find(std::string_view key);
};

// This is not a std::pair, because clang 14 cannot make one of a type that is not complete yet.
struct TomlMember {
  TomlMember(std::string name, TomlValue content) : key(std::move(name)), value(std::move(content)) {}
  std::string key;
  TomlValue value;
};

const char* kind_name(TomlValue::Kind kind);

// Parses text into a table. Errors: kInvalid, "file:line:column: what toml++ says; mend".
Result<TomlValue> parse_toml(std::string_view text, std::string_view file_name);

// Applies one "section.key=value" to the document; the value is read as TOML, or as a bare string where that fails.
// Errors: kInvalid, "--set …: what; mend".
Result<void> apply_override(TomlValue& document, std::string_view assignment);

// Makes a user's text fit for one line of a message: writes what is no UTF-8, and characters that would steer a
// terminal, as \xNN, and cuts the text off behind `longest` bytes.
std::string printable(std::string_view text, size_t longest = 80);
// Does the same but keeps the whole text, for a place that a person may want to click on.
std::string printable_path(std::string_view path);

}  // namespace shardrun::spec

// JSON of structs that have fields() (runtime/base/fields.h): one writer and one reader for all documents.
//
//   std::string text = base::json_of(exit);
//   Result<Exit> back = base::parse_fields<Exit>(text, "the rank's exit file");
//
// Errors of a reader are one line with the document and the key, and where the key stands deeper, the keys above it:
//   plan.json: "name" is number, not a string
//   plan.json batch: "micro_batch" is missing, not an integer in range
//
// Thread rule: pure functions; a visitor is owned by the call that made it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/base/fields.h"
#include "runtime/base/result.h"

namespace shardrun::base {

struct JsonStyle {
  int indent = 2;      // spaces a level; -1: all on one line
  bool sorted = true;  // keys in the order of their bytes; else as fields() names them
  bool spaced = true;  // a blank behind colons, and on one line behind commas
};
inline constexpr JsonStyle kJsonLine{-1, false, false};   // of .jsonl files
inline constexpr JsonStyle kJsonReport{-1, false, true};  // of what --json prints on one line

// Return the JSON of one value. Bytes that are not UTF-8 become U+FFFD, numbers that are not finite become null.
std::string json_text_of(std::string_view text);
std::string json_text_of(double value, Digits digits);

class JsonWriter {
 public:
  JsonWriter(JsonStyle style, int depth) : style_(style), depth_(depth) {}

  template <typename T>
  void operator()(std::string_view key, const T& value, Digits digits = {}) {
    add(key, text_of(value, digits));
  }
  void later(std::string_view key, const auto& value) { (*this)(key, value); }
  template <typename T>
  void where_known(std::string_view key, const std::optional<T>& value, Digits digits = {}) {
    if (value) add(key, text_of(*value, digits));
  }
  void choice(std::string_view key, auto value, const auto& table) {
    for (const auto& one : table) {
      if (one.value == value) return add(key, json_text_of(one.name));
    }
    SHARDRUN_CHECK(false, "a value without a word");
  }
  void derived(std::string_view key, const auto& value) { (*this)(key, value); }
  void version(int newest) { add("format_version", std::to_string(newest)); }
  void object(std::string_view key, const auto& members) {
    JsonWriter inner(style_, depth_ + 1);
    members(inner);
    add(key, inner.finish());
  }
  template <typename T>
  void part(std::string_view, const std::optional<T>& value) {
    if (value) fields(*this, *value);
  }

  // Returns the text of any value as one of this object's members.
  template <typename T>
  std::string text_of(const T& value, Digits digits) const {
    if constexpr (std::same_as<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (std::integral<T>) {
      return std::to_string(value);
    } else if constexpr (std::floating_point<T>) {
      return json_text_of(double{value}, digits);
    } else if constexpr (std::convertible_to<const T&, std::string_view>) {
      return json_text_of(std::string_view(value));
    } else {
      return text_of_many(value, digits);
    }
  }
  // Returns the object with all that was visited.
  std::string finish();

 private:
  template <typename T>
  std::string text_of_many(const std::optional<T>& value, Digits digits) const {
    return value ? text_of(*value, digits) : "null";
  }
  template <typename T>
  std::string text_of_many(const std::vector<T>& list, Digits digits) const {
    JsonWriter inner(style_, depth_ + 1);
    for (const T& item : list) inner.items_.emplace_back("", inner.text_of(item, digits));
    return inner.brackets('[', ']');
  }
  template <typename T>
  std::string text_of_many(const std::map<std::string, T>& members, Digits digits) const {
    JsonWriter inner(style_, depth_ + 1);
    for (const auto& [key, value] : members) inner(key, value, digits);
    return inner.finish();
  }
  template <typename T>
  std::string text_of_many(const T& value, Digits) const {
    JsonWriter inner(style_, depth_ + 1);
    fields(inner, value);
    return inner.finish();
  }
  void add(std::string_view key, std::string text);
  std::string brackets(char open, char close) const;

  JsonStyle style_;
  int depth_;                                               // of this object's members, in levels
  std::vector<std::pair<std::string, std::string>> items_;  // key and text
};

// Returns the text of a struct with fields, or of a list of such, with a newline at its end.
template <typename T>
std::string json_of(const T& value, JsonStyle style = {}) {
  return JsonWriter(style, 0).text_of(value, {}) + "\n";
}

template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

// Reads the members of one object. After the first error every further call does nothing.
class JsonReader {
 public:
  // `object` is one; `where`: the document, then keys. `object` and `error` outlive the reader.
  JsonReader(const nlohmann::json& object, std::string where, std::optional<Error>& error)
      : object_(object), where_(std::move(where)), error_(error) {}

  template <typename T>
  void operator()(std::string_view key, T& value, Digits = {}) {
    if constexpr (kIsOptional<T>) {
      later(key, value);
    } else if (!error_) {
      read(key, find(key), value);
    }
  }
  template <typename T>
  void later(std::string_view key, T& value) {
    if (const nlohmann::json* found = member(key)) read(key, *found, value);
  }
  template <typename T>
  void where_known(std::string_view key, std::optional<T>& value, Digits = {}) {
    (*this)(key, value);
  }
  void choice(std::string_view key, auto& value, const auto& table) {
    std::string word;
    (*this)(key, word);
    for (const auto& one : table) {
      if (word == one.name) return void(value = one.value);
    }
    fail(Code::kCorrupt, ": unknown " + std::string(key) + " \"" + word + "\"");
  }
  void derived(std::string_view, const auto&) {}
  void version(int newest);
  void object(std::string_view key, const auto& members) {
    if (const nlohmann::json* found = member(key)) visit_object(key, *found, members);
  }
  template <typename T>
  void part(std::string_view key, std::optional<T>& value) {
    if (member(key) != nullptr) fields(*this, value.emplace());
  }

 private:
  template <typename T>
  void read(std::string_view key, const nlohmann::json& from, T& out) {
    if constexpr (std::same_as<T, bool> || std::same_as<T, double> || std::same_as<T, std::string>) {
      take(key, from, out);
    } else if constexpr (std::integral<T>) {
      std::conditional_t<std::is_unsigned_v<T>, uint64_t, int64_t> wide = 0;
      take(key, from, wide, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
      out = static_cast<T>(wide);
    } else {
      read_many(key, from, out);
    }
  }
  template <typename T>
  void read_many(std::string_view key, const nlohmann::json& from, std::optional<T>& out) {
    out.reset();
    if (!is_null(from)) read(key, from, out.emplace());
  }
  template <typename T>
  void read_many(std::string_view key, const nlohmann::json& from, std::vector<T>& out) {
    out.clear();
    each_item(key, from, [&](const nlohmann::json& item) { read(key, item, out.emplace_back()); });
  }
  template <typename T>
  void read_many(std::string_view key, const nlohmann::json& from, std::map<std::string, T>& out) {
    out.clear();
    each_member(key, from,
                [&](const std::string& name, const nlohmann::json& item) { read(name, item, out[name]); });
  }
  template <typename T>
  void read_many(std::string_view key, const nlohmann::json& from, T& out) {
    visit_object(key, from, [&](JsonReader& inner) { fields(inner, out); });
  }

  // Returns nullptr where it is missing or null, and after an error.
  const nlohmann::json* member(std::string_view key) const;
  // Returns a discarded value where it is missing.
  const nlohmann::json& find(std::string_view key) const;
  static bool is_null(const nlohmann::json& value);
  void take(std::string_view key, const nlohmann::json& from, std::string& out);
  void take(std::string_view key, const nlohmann::json& from, double& out);
  void take(std::string_view key, const nlohmann::json& from, bool& out);
  void take(std::string_view key, const nlohmann::json& from, int64_t& out, int64_t low, int64_t high);
  void take(std::string_view key, const nlohmann::json& from, uint64_t& out, uint64_t low, uint64_t high);
  void visit_object(std::string_view key, const nlohmann::json& object,
                    const std::function<void(JsonReader&)>& visit);
  void each_item(std::string_view key, const nlohmann::json& list,
                 const std::function<void(const nlohmann::json&)>& read_item);
  void each_member(std::string_view key, const nlohmann::json& object,
                   const std::function<void(const std::string&, const nlohmann::json&)>& read_item);
  void fail_type(std::string_view key, const nlohmann::json& value, const char* wanted);
  void fail(Code code, const std::string& what);

  const nlohmann::json& object_;
  std::string where_;
  std::optional<Error>& error_;
};

// Gives `read` a reader of the object in `text`. kCorrupt with what is wrong, kUnsupported for a higher version.
Result<void> read_json(std::string_view text, std::string_view document,
                       const std::function<void(JsonReader&)>& read);

template <typename T>
Result<T> parse_fields(std::string_view text, std::string_view document) {
  T value{};
  RETURN_IF_ERROR(read_json(text, document, [&](JsonReader& reader) { fields(reader, value); }));
  return value;
}

}  // namespace shardrun::base

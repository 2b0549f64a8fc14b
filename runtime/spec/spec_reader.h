// SectionReader: takes typed, checked keys out of one TOML section and refuses what it does not know.
//
// The first error is the document's; what else is wrong with single keys is kept beside it, so that a reader of a section is a
// plain list of keys and a person learns of all mistakes at once. Messages are "origin: what; mend". Every origin is kept
// under "section.key" for later checks.
//
// Thread rule: thread-compatible.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/fields.h"
#include "runtime/base/result.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {

using base::Word;

// Bounds that several keys share.
inline constexpr int64_t kLargestCount = int64_t{1} << 40, kDay = 24 * 3600;  // the latter in seconds

// What all sections of one document share.
struct SpecReading {
  std::optional<base::Error> error;            // the first error
  std::vector<base::Error> further;            // of other keys; none follows from another
  std::map<std::string, std::string> origins;  // "data.files[0]" → "job.toml:7:3"
  const char* document = "a job spec";         // what the whole document is called in messages

  // Keeps the error if it is the first: another may have led to it.
  void fail(const std::string& origin, const std::string& what, const std::string& mend);
  // Keeps the error of one key, which is wrong whatever else is.
  void fail_key(const std::string& origin, const std::string& what, const std::string& mend);
};

// Returns where `key` stands; for a key that was not given, its section's place, else the document's (the key "").
std::string origin_of(const std::map<std::string, std::string>& origins, const std::string& key);

class SectionReader {
 public:
  // `document` may lack the section; then every key is absent.
  SectionReader(const TomlValue& document, std::string_view section, SpecReading& reading);
  // Reads a table at hand, e.g. one of an array of tables, which messages call `label`.
  struct Table {
    const TomlValue& value;
  };
  SectionReader(Table table, std::string_view label, SpecReading& reading);

  bool present() const { return table_ != nullptr; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::string origin() const { return table_ != nullptr ? table_->origin : document_origin_; }
  std::string origin(std::string_view key) const;

  void integer(std::string_view key, int64_t low, int64_t high, int64_t& out);
  void integer(std::string_view key, int64_t low, int64_t high, int& out);
  void integer(std::string_view key, int64_t low, int64_t high, uint64_t& out);
  void integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t>& out);
  void number(std::string_view key, double low, double high, double& out);
  void boolean(std::string_view key, bool& out);
  void boolean(std::string_view key, std::optional<bool>& out);
  // Takes any string without control characters that is not empty and has at most `longest` bytes.
  void text(std::string_view key, std::string& out, size_t longest = 4096);
  // Does as text() does, with only letters, digits and the characters in `allowed`.
  void word(std::string_view key, std::string_view allowed, std::string& out);
  void texts(std::string_view key, std::vector<std::string>& out);
  // Takes an integer of seconds, or "SS", "MM:SS", "HH:MM:SS", "D-HH:MM:SS".
  void duration(std::string_view key, int64_t low_seconds, int64_t high_seconds, std::chrono::seconds& out);
  void duration(std::string_view key, int64_t low_seconds, int64_t high_seconds,
                std::optional<std::chrono::seconds>& out);
  template <typename Enum, size_t N>
  void choice(std::string_view key, const Word<Enum> (&choices)[N], Enum& out) {
    std::string names;
    for (const auto& choice : choices)
      names += (names.empty() ? "\"" : ", \"") + std::string(choice.name) + "\"";
    const TomlValue* value = take(key, TomlValue::Kind::kString, "one of " + names);
    if (value == nullptr) return;
    for (const auto& choice : choices) {
      if (value->text == choice.name) {
        out = choice.value;
        return;
      }
    }
    fail(*value, "\"" + printable(value->text) + "\" is not a " + qualified(key), "write one of " + names);
  }
  // Returns all members of the section, for sections whose keys are free ([environment]).
  const std::vector<TomlMember>& members() const;

  // Marks a key as known without reading it, e.g. a section's name at the top level.
  void know(std::string_view key) { known_.emplace_back(key); }

  // Is called last: refuses keys that nothing asked for, naming the nearest that exists.
  void finish();

 private:
  const TomlValue* find(std::string_view key) const {
    return table_ == nullptr ? nullptr : table_->find(key);
  }
  const TomlValue* take(std::string_view key, TomlValue::Kind kind, const std::string& wanted);
  void fail(const TomlValue& value, const std::string& what, const std::string& mend);
  std::string qualified(std::string_view key) const;
  bool clean(const TomlValue& value, std::string_view key, size_t longest);
  std::optional<int64_t> seconds_of(std::string_view key, int64_t low, int64_t high);

  const TomlValue* table_ = nullptr;
  std::string section_;
  std::string document_origin_;
  SpecReading& reading_;
  std::vector<std::string> known_;
};

// Returns the name in `names` that a person most likely meant by `wrong`; empty if none is near.
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& names);

// Turns "SS", "MM:SS", "HH:MM:SS" or "D-HH:MM:SS" into seconds; nullopt if the text is none of them or too large.
std::optional<int64_t> parse_duration_seconds(std::string_view text);

}  // namespace shardrun::spec

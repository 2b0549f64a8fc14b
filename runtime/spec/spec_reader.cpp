#include "runtime/spec/spec_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/visible.h"

namespace shardrun::spec {

using base::Code;
using base::Error;

namespace {

// Looks for C0, DEL, and C1 as UTF-8 writes it.
bool has_control_character(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f) return true;
    if (byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) return true;
  }
  return false;
}

}  // namespace

void SpecReading::fail(const std::string& origin, const std::string& what, const std::string& mend) {
  if (!error) error = Error(Code::kInvalid, fmt::format("{}: {}; {}", origin, what, mend));
}

void SpecReading::fail_key(const std::string& origin, const std::string& what, const std::string& mend) {
  constexpr size_t kMost = 20;  // that anybody reads
  if (!error) return fail(origin, what, mend);
  if (further.size() < kMost)
    further.emplace_back(Code::kInvalid, fmt::format("{}: {}; {}", origin, what, mend));
}

std::string origin_of(const std::map<std::string, std::string>& origins, const std::string& key) {
  for (std::string_view place = key;;) {
    if (const auto found = origins.find(std::string(place)); found != origins.end()) return found->second;
    if (place.empty()) return "job spec";
    const size_t end = place.find_last_of(".[");
    place = place.substr(0, end == std::string_view::npos ? 0 : end);
  }
}

SectionReader::SectionReader(const TomlValue& document, std::string_view section, SpecReading& reading)
    : section_(section), document_origin_(document.origin), reading_(reading) {
  const TomlValue* found = section.empty() ? &document : document.find(section);
  if (found == nullptr) return;
  if (found->kind != TomlValue::Kind::kTable) {
    fail(*found, fmt::format("{} is {}", section, kind_name(found->kind)),
         fmt::format("write a section [{}]", section));
    return;
  }
  table_ = found;
}

SectionReader::SectionReader(Table table, std::string_view label, SpecReading& reading)
    : table_(&table.value), section_(label), document_origin_(table.value.origin), reading_(reading) {}

std::string SectionReader::qualified(std::string_view key) const {
  return section_.empty() ? std::string(key) : section_ + "." + std::string(key);
}

std::string SectionReader::origin(std::string_view key) const {
  const TomlValue* value = find(key);
  return value != nullptr ? value->origin : origin();
}

void SectionReader::fail(const TomlValue& value, const std::string& what, const std::string& mend) {
  reading_.fail_key(value.origin, what, mend);
}

const TomlValue* SectionReader::take(std::string_view key, TomlValue::Kind kind, const std::string& wanted) {
  known_.emplace_back(key);
  const TomlValue* value = find(key);
  if (value == nullptr) return nullptr;
  reading_.origins[qualified(key)] = value->origin;
  if (value->kind != kind) {
    fail(*value, fmt::format("{} is {}", qualified(key), kind_name(value->kind)), "write " + wanted);
    return nullptr;
  }
  return value;
}

void SectionReader::integer(std::string_view key, int64_t low, int64_t high, int64_t& out) {
  const TomlValue* value =
      take(key, TomlValue::Kind::kInteger, fmt::format("an integer from {} to {}", low, high));
  if (value == nullptr) return;
  if (value->integer < low || value->integer > high) {
    fail(*value, fmt::format("{} = {} is out of range", qualified(key), value->integer),
         fmt::format("write an integer from {} to {}", low, high));
    return;
  }
  out = value->integer;
}

void SectionReader::integer(std::string_view key, int64_t low, int64_t high, int& out) {
  int64_t wide = out;
  integer(key, low, high, wide);
  out = static_cast<int>(wide);
}

void SectionReader::integer(std::string_view key, int64_t low, int64_t high, uint64_t& out) {
  auto wide = static_cast<int64_t>(out);
  integer(key, low, high, wide);
  out = static_cast<uint64_t>(wide);
}

void SectionReader::integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t>& out) {
  int64_t wide = low - 1;
  integer(key, low, high, wide);
  if (wide >= low) out = wide;
}

void SectionReader::number(std::string_view key, double low, double high, double& out) {
  const TomlValue* whole = find(key);
  const bool is_integer = whole != nullptr && whole->kind == TomlValue::Kind::kInteger;
  const TomlValue* value = take(key, is_integer ? TomlValue::Kind::kInteger : TomlValue::Kind::kFloat,
                                fmt::format("a number from {} to {}", low, high));
  if (value == nullptr) return;
  const double number = is_integer ? static_cast<double>(value->integer) : value->floating;
  if (!(number >= low && number <= high)) {  // so that NaN is refused too
    fail(*value, fmt::format("{} = {} is out of range", qualified(key), number),
         fmt::format("write a number from {} to {}", low, high));
    return;
  }
  out = number;
}

void SectionReader::boolean(std::string_view key, bool& out) {
  const TomlValue* value = take(key, TomlValue::Kind::kBoolean, "true or false");
  if (value != nullptr) out = value->boolean;
}

void SectionReader::boolean(std::string_view key, std::optional<bool>& out) {
  bool value = false;
  if (!has(key)) return;
  boolean(key, value);
  out = value;
}

bool SectionReader::clean(const TomlValue& value, std::string_view key, size_t longest) {
  if (value.text.empty()) {
    fail(value, qualified(key) + " is empty", "write a value or remove the key");
    return false;
  }
  if (value.text.size() > longest) {
    fail(value, fmt::format("{} has {} bytes", qualified(key), value.text.size()),
         fmt::format("write at most {}", longest));
    return false;
  }
  const bool control = has_control_character(value.text);
  if (control) {
    fail(value, fmt::format("{} has a control character: \"{}\"", qualified(key), printable(value.text)),
         "remove newlines, tabs and other control characters");
  }
  return !control;
}

void SectionReader::text(std::string_view key, std::string& out, size_t longest) {
  const TomlValue* value = take(key, TomlValue::Kind::kString, "a string in quotes");
  if (value != nullptr && clean(*value, key, longest)) out = value->text;
}

void SectionReader::word(std::string_view key, std::string_view allowed, std::string& out) {
  const TomlValue* value = take(key, TomlValue::Kind::kString, "a string in quotes");
  if (value == nullptr || !clean(*value, key, 1024)) return;
  for (size_t i = 0; i < value->text.size(); ++i) {
    const char c = value->text[i];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (plain || allowed.find(c) != std::string_view::npos) continue;
    const std::string_view wrong = base::first_character(std::string_view(value->text).substr(i));
    fail(*value,
         fmt::format("{} = \"{}\" has the character '{}'", qualified(key), printable(value->text),
                     printable(wrong)),
         fmt::format("use letters, digits and {}", allowed));
    return;
  }
  if (value->text.front() == '-') {
    fail(*value, fmt::format("{} = \"{}\" begins with '-'", qualified(key), printable(value->text)),
         "begin with a letter or a digit");
    return;
  }
  out = value->text;
}

void SectionReader::texts(std::string_view key, std::vector<std::string>& out) {
  const TomlValue* value = take(key, TomlValue::Kind::kArray, "an array of strings");
  if (value == nullptr) return;
  std::vector<std::string> items;
  for (size_t i = 0; i < value->items.size(); ++i) {
    const TomlValue& item = value->items[i];
    const std::string name = fmt::format("{}[{}]", key, i);
    if (item.kind != TomlValue::Kind::kString) {
      fail(item, fmt::format("{} is {}", qualified(name), kind_name(item.kind)), "write a string in quotes");
      return;
    }
    // An empty argument of a command is legal; a control character is not.
    if (!item.text.empty() && !clean(item, name, 128 * 1024)) return;
    reading_.origins[qualified(name)] = item.origin;
    items.push_back(item.text);
  }
  out = std::move(items);
}

std::optional<int64_t> SectionReader::seconds_of(std::string_view key, int64_t low, int64_t high) {
  const TomlValue* raw = find(key);
  const bool is_integer = raw != nullptr && raw->kind == TomlValue::Kind::kInteger;
  const TomlValue* value = take(key, is_integer ? TomlValue::Kind::kInteger : TomlValue::Kind::kString,
                                "seconds, or \"HH:MM:SS\"");
  if (value == nullptr) return std::nullopt;
  const auto seconds = is_integer ? std::optional(value->integer) : parse_duration_seconds(value->text);
  if (!seconds) {
    fail(*value, fmt::format("{} = \"{}\" is not a duration", qualified(key), printable(value->text)),
         "write seconds, \"MM:SS\", \"HH:MM:SS\" or \"D-HH:MM:SS\"");
    return std::nullopt;
  }
  if (*seconds < low || *seconds > high) {
    fail(*value, fmt::format("{} is {} s", qualified(key), *seconds),
         fmt::format("write {} s to {} s", low, high));
    return std::nullopt;
  }
  return seconds;
}

void SectionReader::duration(std::string_view key, int64_t low, int64_t high, std::chrono::seconds& out) {
  if (const auto seconds = seconds_of(key, low, high)) out = std::chrono::seconds(*seconds);
}

void SectionReader::duration(std::string_view key, int64_t low, int64_t high,
                             std::optional<std::chrono::seconds>& out) {
  if (const auto seconds = seconds_of(key, low, high)) out = std::chrono::seconds(*seconds);
}

const std::vector<TomlMember>& SectionReader::members() const {
  static const std::vector<TomlMember> kNone;
  return table_ == nullptr ? kNone : table_->members;
}

void SectionReader::finish() {
  for (const auto& member : members()) {
    const std::string& key = member.key;
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string near = nearest_name(key, known_);
    const std::string place = section_.empty() ? std::string(reading_.document) : "[" + section_ + "]";
    fail(member.value, fmt::format("{} has no key \"{}\"", place, printable(key)),
         near.empty() ? fmt::format("remove it; the keys are {}", fmt::join(known_, ", "))
                      : fmt::format("did you mean \"{}\"?", near));
  }
}

std::string nearest_name(std::string_view wrong, const std::vector<std::string>& names) {
  if (wrong.size() > 64) return "";
  std::string best;
  size_t best_distance = wrong.size() / 3 + 2;
  for (const std::string& name : names) {
    std::vector<size_t> row(name.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= wrong.size(); ++i) {  // computes the Levenshtein distance, one row at a time
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= name.size(); ++j) {
        const size_t replaced = diagonal + (wrong[i - 1] == name[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = name;
    }
  }
  return best;
}

std::optional<int64_t> parse_duration_seconds(std::string_view text) {
  constexpr int64_t kLargest = 366 * kDay;
  int64_t days = 0;
  bool has_days = false;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto [end, failure] = std::from_chars(text.data(), text.data() + dash, days);
    if (failure != std::errc() || end != text.data() + dash || days < 0 || days > 366) return std::nullopt;
    has_days = true;
    text.remove_prefix(dash + 1);
  }
  std::vector<int64_t> parts;
  while (parts.size() < 4) {
    const size_t colon = text.find(':');
    const std::string_view part = text.substr(0, colon);
    int64_t number = -1;
    const auto [end, failure] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (failure != std::errc() || end != part.data() + part.size() || number < 0 || number > kLargest) {
      return std::nullopt;
    }
    if (!parts.empty() && number > 59) return std::nullopt;
    parts.push_back(number);
    if (colon == std::string_view::npos) break;
    text.remove_prefix(colon + 1);
  }
  if (parts.size() > 3 || (has_days && (parts.size() != 3 || parts[0] > 23))) return std::nullopt;
  int64_t seconds = 0;
  for (const int64_t part : parts) seconds = seconds * 60 + part;
  seconds += days * kDay;
  return seconds > kLargest ? std::nullopt : std::optional(seconds);
}

}  // namespace shardrun::spec

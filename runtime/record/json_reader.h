// Typed reads from a JSON object without exceptions, shared by the files of this folder that parse JSON.
//
// Internal to the shared ground: the only place that includes nlohmann/json.hpp in a header, and no other
// header includes this one.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace shardrun::record {

// Reads members of one object; remembers the first that is missing or of the wrong type.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object_.is_object()) error_ = fmt::format("{} is not a JSON object", what_);
  }

  void read(const char* key, std::string& out) {
    if (const auto* value = find(key, "a string", [](const auto& v) { return v.is_string(); })) {
      out = value->template get_ref<const std::string&>();
    }
  }
  void read(const char* key, double& out) {
    if (const auto* value = find(key, "a number", [](const auto& v) { return v.is_number(); })) {
      out = value->template get<double>();
    }
  }
  void read(const char* key, bool& out) {
    if (const auto* value = find(key, "true or false", [](const auto& v) { return v.is_boolean(); })) {
      out = value->template get<bool>();
    }
  }
  template <typename Integer>
  requires std::is_integral_v<Integer>
  void read(const char* key, Integer& out) {
    const auto fits = [](const auto& v) {
      if (v.is_number_unsigned())
        return v.template get<uint64_t>() <= uint64_t{std::numeric_limits<Integer>::max()};
      if (!v.is_number_integer()) return false;
      const auto number = v.template get<int64_t>();
      return number >= int64_t{std::numeric_limits<Integer>::min()} &&
             number <= int64_t{std::numeric_limits<Integer>::max()};
    };
    if (const auto* value = find(key, "an integer in range", fits)) out = value->template get<Integer>();
  }
  // Absent and null leave nullopt; anything else must have the right type.
  template <typename T>
  void read_optional(const char* key, std::optional<T>& out) {
    if (error_.empty() && object_.contains(key) && !object_[key].is_null()) {
      T value{};
      read(key, value);
      out = std::move(value);
    }
  }
  // The member as JSON, or nullptr if absent; never an error.
  const nlohmann::json* member(const char* key) const {
    return object_.is_object() && object_.contains(key) ? &object_[key] : nullptr;
  }
  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }

  base::Result<void> finish() const {
    if (error_.empty()) return {};
    return base::Error(base::Code::kCorrupt, error_);
  }

 private:
  template <typename Accept>
  const nlohmann::json* find(const char* key, const char* wanted, Accept accept) {
    if (!error_.empty()) return nullptr;
    const nlohmann::json* value = member(key);
    if (value != nullptr && accept(*value)) return value;
    error_ = fmt::format("{}: \"{}\" is {}, not {}", what_, key,
                         value == nullptr ? "missing" : value->type_name(), wanted);
    return nullptr;
  }

  const nlohmann::json& object_;
  std::string what_;
  std::string error_;
};

// Text → object. kCorrupt if it is no JSON or nested beyond `parse`'s patience.
inline base::Result<nlohmann::json> parse_json(std::string_view text, const std::string& what) {
  nlohmann::json parsed = base::parse_json(text);
  if (parsed.is_discarded()) return base::Error(base::Code::kCorrupt, what + " is not JSON");
  return parsed;
}

// Dumps without ever throwing: bytes that are no UTF-8 become U+FFFD.
inline std::string dump_json(const nlohmann::json& value) {
  return base::json_text(value, 2) + "\n";
}

}  // namespace shardrun::record

// Yaml: a document to be written, in the order in which it was built. It is only written, never read.
//
// It uses block style, two blanks a level. A string that a reader could take for anything else (a number, a yes, a
// null, a key) is written in double quotes with JSON's escapes, which are also YAML's
// (docs/decisions/0018-yaml-is-written-by-hand.md).
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::launcher {

class Yaml {
 public:
  static Yaml map() { return Yaml(Kind::kMap, ""); }
  static Yaml list() { return Yaml(Kind::kList, ""); }
  static Yaml list(const std::vector<std::string>& items);
  // Writes a text of several lines as it is, in a literal block; quoted where it has what a block cannot hold.
  static Yaml block(const std::string& text);
  Yaml(std::string text) : Yaml(Kind::kScalar, quoted(text)) {}          // NOLINT: values convert
  Yaml(const char* text) : Yaml(std::string(text)) {}                    // NOLINT
  Yaml(int64_t number) : Yaml(Kind::kScalar, std::to_string(number)) {}  // NOLINT
  Yaml(int number) : Yaml(static_cast<int64_t>(number)) {}               // NOLINT
  Yaml(double number);                                                   // NOLINT
  Yaml(bool truth) : Yaml(Kind::kScalar, truth ? "true" : "false") {}    // NOLINT

  // set appends a key to a map, which must not have it yet; add appends an item to a list.
  Yaml& set(std::string key, Yaml value);
  Yaml& add(Yaml item);
  bool empty() const { return items_.empty(); }

  // The text ends with a newline. An empty map is {}, an empty list [].
  std::string to_text() const;

  // Returns a string as a YAML scalar: as it is where that is safe, else in double quotes.
  static std::string quoted(std::string_view text);

 private:
  enum class Kind { kMap, kList, kScalar, kBlock };
  Yaml(Kind kind, std::string scalar) : kind_(kind), scalar_(std::move(scalar)) {}
  void write(std::string& out, size_t indent, bool continues_line) const;

  Kind kind_;
  std::string scalar_;             // as written
  std::vector<std::string> keys_;  // keys of a map, as written
  std::vector<Yaml> items_;
};

}  // namespace shardrun::launcher

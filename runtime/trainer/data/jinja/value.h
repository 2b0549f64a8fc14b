// Values of a chat template while it runs: Python's, as far as templates use them.
//
// A text knows of each of its bytes whether the template wrote it or somebody who talks. What somebody says can then never
// pass for a mark of the template, whatever letters it has.
//
// Thread rule: values; lists and dicts are shared and never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shardrun::data::jinja {

class Text {
 public:
  Text() = default;
  // What the template itself says, and what comes from outside.
  static Text own(std::string_view bytes) { return Text(bytes, kOwn); }
  static Text foreign(std::string_view bytes) { return Text(bytes, kForeign); }
  // Returns `bytes`, which were made of this text, with one author: foreign where any byte of this was.
  Text made(std::string_view bytes) const { return Text(bytes, is_own() ? kOwn : kForeign); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool is_own(size_t at) const { return authors_[at] == kOwn; }
  bool is_own() const { return authors_.find(kForeign) == std::string::npos; }
  Text part(size_t begin, size_t count) const {
    Text text;
    text.bytes_ = bytes_.substr(begin, count);
    text.authors_ = authors_.substr(begin, count);
    return text;
  }
  void append(const Text& text) {
    bytes_ += text.bytes_;
    authors_ += text.authors_;
  }

 private:
  static constexpr char kOwn = 'o', kForeign = 'f';
  Text(std::string_view bytes, char author) : bytes_(bytes), authors_(bytes.size(), author) {}

  std::string bytes_, authors_;  // one letter for each byte
};

struct Undefined {
  std::string name;  // of what there is none, for messages
};
struct None {};
struct Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in the order of insertion

// A list or dict, and how deep it nests.
template <typename Kind>
struct Held {
  Kind held;
  int height = 0;
};

struct Value {
  std::variant<Undefined, None, bool, int64_t, Text, std::shared_ptr<const Held<List>>,
               std::shared_ptr<const Held<Dict>>>
      of;

  template <typename Kind>
  const Kind* as() const {
    return std::get_if<Kind>(&of);
  }
  const List* list() const {
    const auto* shared = as<std::shared_ptr<const Held<List>>>();
    return shared == nullptr ? nullptr : &(*shared)->held;
  }
  const Dict* dict() const {
    const auto* shared = as<std::shared_ptr<const Held<Dict>>>();
    return shared == nullptr ? nullptr : &(*shared)->held;
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
};

Value value_of(List list);
Value value_of(Dict dict);
// Returns 0 for what holds nothing.
int height_of(const Value& value);
// Returns a dict's member; nullptr where there is none.
const Value* find(const Dict& dict, std::string_view key);

// What Python's bool() says.
bool is_true(const Value& value);
// Returns the number that a value counts as, which of a truth value is 0 or 1.
std::optional<int64_t> number_of(const Value& value);
// Returns "a list", for messages.
const char* kind_of(const Value& value);

}  // namespace shardrun::data::jinja

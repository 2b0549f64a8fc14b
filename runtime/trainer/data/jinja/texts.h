// What a chat template can do with texts. Characters are those of UTF-8; a byte that begins none counts as one.
//
// Thread rule: pure functions, but for the budget that they take from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/trainer/data/jinja/operations.h"

namespace shardrun::data::jinja {

// Returns the bytes of the character that begins there.
size_t character_at(const Text& text, size_t at);
int64_t count_characters(const Text& text);
// Returns where `part` begins in the text at or behind `from`, npos where it does not. The time is linear in the text, whatever
// both are: std::string's own search would take that of their product.
size_t find_in(const Text& text, const Text& part, size_t from);
// Returns characters begin to end, which are in the text.
Text characters_of(const Text& text, int64_t begin, int64_t end);
// Takes what Python calls white space from the ends.
Text trimmed(const Text& text, bool front, bool back);
// `how` is upper, lower, capitalize or title. Letters beyond ASCII are refused.
Result<Value> change_case(int line, const Text& text, const std::string& how);
// strip, lstrip, rstrip, split, startswith, endswith, replace, upper, lower, capitalize, title.
Result<Value> call_text_method(const Text& text, const Use& use);
// Returns what json.dumps(value, ensure_ascii=False) does.
Result<Text> json_of(int line, const Value& value, Budget& budget);

}  // namespace shardrun::data::jinja

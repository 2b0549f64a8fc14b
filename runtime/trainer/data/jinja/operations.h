// What a chat template can do with values: operators, filters, tests and methods, as Python and Jinja define them.
//
// Thread rule: pure functions, but for the budget that they take from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/trainer/data/jinja/syntax.h"

namespace shardrun::data::jinja {

// What a run may still do.
struct Budget {
  int64_t steps = 0, bytes = 0;
  Result<void> take(int line, int64_t more_steps, size_t more_bytes);
};

// A call of a filter, a test or a method: names[0] is whose, then those of the arguments, "" for those by position.
struct Use {
  int line = 0;
  const std::string& name;
  std::span<const std::string> names;  // of the arguments alone
  std::vector<Value> arguments;
  Budget& budget;

  // Returns the argument at a place or of a name; nullptr where it was left out.
  const Value* argument(size_t place, std::string_view called) const;
};

Result<Value> apply_filter(const Value& value, const Use& use);
Result<bool> apply_test(const Value& value, const Use& use);
Result<Value> call_method(const Value& value, const Use& use);

Result<Value> apply_binary(int line, const std::string& sign, const Value& left, const Value& right,
                           Budget& budget);
Result<bool> apply_comparison(int line, const std::string& sign, const Value& left, const Value& right,
                              Budget& budget);
Result<Value> item_of(int line, const Value& value, const Value& which, Budget& budget);
Result<Value> slice_of(int line, const Value& value, const Value& begin, const Value& end, const Value& step,
                       Budget& budget);
// Returns what a loop goes over: elements, characters, or keys; nothing for what is undefined.
Result<List> elements_of(int line, const Value& value, Budget& budget);
// Returns what a print writes.
Result<Text> text_of(int line, const Value& value);

}  // namespace shardrun::data::jinja

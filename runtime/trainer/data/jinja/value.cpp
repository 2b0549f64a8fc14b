#include "runtime/trainer/data/jinja/value.h"

#include <algorithm>

namespace shardrun::data::jinja {

std::optional<int64_t> number_of(const Value& value) {
  if (const auto* truth = value.as<bool>()) return *truth ? 1 : 0;
  if (const auto* number = value.as<int64_t>()) return *number;
  return std::nullopt;
}

Value value_of(List list) {
  int height = 0;
  for (const Value& element : list) height = std::max(height, height_of(element));
  return {std::make_shared<const Held<List>>(Held<List>{std::move(list), height + 1})};
}

Value value_of(Dict dict) {
  int height = 0;
  for (const auto& [key, member] : dict) height = std::max(height, height_of(member));
  return {std::make_shared<const Held<Dict>>(Held<Dict>{std::move(dict), height + 1})};
}

int height_of(const Value& value) {
  if (const auto* list = value.as<std::shared_ptr<const Held<List>>>()) return (*list)->height;
  if (const auto* dict = value.as<std::shared_ptr<const Held<Dict>>>()) return (*dict)->height;
  return 0;
}

const Value* find(const Dict& dict, std::string_view key) {
  const auto found =
      std::find_if(dict.begin(), dict.end(), [&](const auto& member) { return member.first == key; });
  return found == dict.end() ? nullptr : &found->second;
}

bool is_true(const Value& value) {
  if (const auto number = number_of(value)) return *number != 0;
  if (const auto* text = value.as<Text>()) return text->size() > 0;
  if (const auto* list = value.list()) return !list->empty();
  if (const auto* dict = value.dict()) return !dict->empty();
  return false;
}

const char* kind_of(const Value& value) {
  constexpr const char* kKinds[] = {"nothing", "none",   "a truth value", "a number",
                                    "a text",  "a list", "a dict"};
  return kKinds[value.of.index()];
}

}  // namespace shardrun::data::jinja

#include "runtime/trainer/data/jinja/operations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/visible.h"
#include "runtime/trainer/data/jinja/lexer.h"
#include "runtime/trainer/data/jinja/texts.h"

namespace shardrun::data::jinja {
namespace {

base::Error mistyped(int line, std::string_view what, const Value& value) {
  const auto* undefined = value.as<Undefined>();
  return template_error(line,
                        undefined != nullptr ? fmt::format("{} meets {}, which is not defined", what,
                                                           base::visible(undefined->name))
                                             : fmt::format("{} meets {}", what, kind_of(value)),
                        "mend the template, or the conversation that it does not expect");
}

base::Error unknown(const Use& use, std::string_view kind) {
  return template_error(use.line, fmt::format("the {} \"{}\" is not served", kind, base::visible(use.name)),
                        "use a template without it, or one of --template's by name");
}

// Returns a place in a sequence as Python counts, where -1 is the last; nullopt outside of it.
std::optional<size_t> place_in(int64_t length, int64_t index) {
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return static_cast<size_t>(index);
}

// Returns an attribute as selectattr, map and their like look it up.
Value attribute_of(const Value& element, const std::string& name) {
  const Dict* dict = element.dict();
  const Value* member = dict == nullptr ? nullptr : find(*dict, name);
  return member == nullptr ? Value{Undefined{name}} : *member;
}

Result<std::string> attribute_name(const Use& use, const Value* argument) {
  const auto* name = argument == nullptr ? nullptr : argument->as<Text>();
  if (name != nullptr && name->bytes().find('.') == std::string::npos) return name->bytes();
  return template_error(use.line, fmt::format("\"{}\" names no attribute", use.name),
                        "write its name in quotes");
}

// select, reject, selectattr and rejectattr.
Result<Value> apply_selection(const Value& value, const Use& use) {
  const bool by_attribute = use.name.ends_with("attr"), wants = use.name.starts_with("select");
  ASSIGN_OR_RETURN(const List elements, elements_of(use.line, value, use.budget));
  std::string attribute;
  if (by_attribute) {
    ASSIGN_OR_RETURN(attribute, attribute_name(use, use.argument(0, "")));
  }
  const size_t first = by_attribute ? 1 : 0;
  const auto* test = use.arguments.size() > first ? use.arguments[first].as<Text>() : nullptr;
  if (use.arguments.size() > first && test == nullptr)
    return mistyped(use.line, "a test's name", use.arguments[first]);
  List kept;
  for (const Value& element : elements) {
    RETURN_IF_ERROR(use.budget.take(use.line, 1, 0));
    const Value tried = by_attribute ? attribute_of(element, attribute) : element;
    bool passed = is_true(tried);
    if (test != nullptr) {
      const std::vector<Value> rest(use.arguments.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                                    use.arguments.end());
      const std::vector<std::string> names(rest.size());
      ASSIGN_OR_RETURN(passed, apply_test(tried, {use.line, test->bytes(), names, rest, use.budget}));
    }
    if (passed == wants) kept.push_back(element);
  }
  return value_of(std::move(kept));
}

Result<Value> apply_map(const Value& value, const Use& use) {
  ASSIGN_OR_RETURN(const List elements, elements_of(use.line, value, use.budget));
  ASSIGN_OR_RETURN(const auto name, attribute_name(use, use.argument(9, "attribute")));
  List mapped;
  for (const Value& element : elements) mapped.push_back(attribute_of(element, name));
  return value_of(std::move(mapped));
}

Result<Value> apply_join(const Value& value, const Use& use) {
  ASSIGN_OR_RETURN(const List elements, elements_of(use.line, value, use.budget));
  Text between, joined;
  if (const Value* given = use.argument(0, "d")) {
    ASSIGN_OR_RETURN(between, text_of(use.line, *given));
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    ASSIGN_OR_RETURN(const Text one, text_of(use.line, elements[i]));
    RETURN_IF_ERROR(use.budget.take(use.line, 1, one.size() + between.size()));
    if (i > 0) joined.append(between);
    joined.append(one);
  }
  return Value{std::move(joined)};
}

// Filters of texts; a value that is none becomes what would be printed.
Result<Value> apply_text_filter(const Value& value, const Use& use) {
  ASSIGN_OR_RETURN(const Text text, text_of(use.line, value));
  RETURN_IF_ERROR(use.budget.take(use.line, 1, text.size()));
  if (use.name == "string") return Value{text};
  if (use.name == "trim" && use.arguments.empty()) return Value{trimmed(text, true, true)};
  if (use.name == "replace") return call_method(Value{text}, use);
  if (use.name == "upper" || use.name == "lower" || use.name == "capitalize")
    return change_case(use.line, text, use.name);
  return unknown(use, "filter");
}

Result<Value> apply_list_filter(const Value& value, const Use& use) {
  ASSIGN_OR_RETURN(List elements, elements_of(use.line, value, use.budget));
  if (use.name == "list") return value_of(std::move(elements));
  if (elements.empty()) return Value{Undefined{"the " + use.name + " of an empty list"}};
  return use.name == "first" ? elements.front() : elements.back();
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<Value> items_of(const Value& value, const Use& use) {
  const Dict* dict = value.dict();
  if (dict == nullptr) return mistyped(use.line, use.name, value);
  List all;
  for (const auto& [key, member] : *dict) {
    RETURN_IF_ERROR(use.budget.take(use.line, 1, key.size()));
    // A key that the template did not write may have any letters.
    const Value name{Text::foreign(key)};
    all.push_back(use.name == "keys" ? name : use.name == "values" ? member : value_of(List{name, member}));
  }
  return value_of(std::move(all));
}

std::optional<int> order_of(const Value& left, const Value& right) {
  if (const auto* number = left.as<int64_t>()) {
    const auto* other = right.as<int64_t>();
    if (other == nullptr) return std::nullopt;
    return *number < *other ? -1 : *number > *other ? 1 : 0;
  }
  const auto *text = left.as<Text>(), *other = right.as<Text>();
  if (text == nullptr || other == nullptr) return std::nullopt;
  return text->bytes().compare(other->bytes());  // UTF-8 has the order of its characters
}

// What Python's == says. A list may hold another one many times, and that a third: each pair that is looked at counts.
Result<bool> are_equal(int line, const Value& left, const Value& right, Budget& budget) {
  RETURN_IF_ERROR(budget.take(line, 1, 0));
  if (const auto number = number_of(left)) return number == number_of(right);
  if (left.of.index() != right.of.index()) return false;
  if (const auto* text = left.as<Text>()) {
    const std::string &bytes = text->bytes(), &others = right.as<Text>()->bytes();
    if (bytes.size() != others.size()) return false;
    RETURN_IF_ERROR(budget.take(line, 0, bytes.size()));
    return bytes == others;
  }
  if (const List* list = left.list()) {
    const List& rest = *right.list();
    bool equal = list->size() == rest.size();
    for (size_t i = 0; equal && i < list->size(); ++i) {
      ASSIGN_OR_RETURN(equal, are_equal(line, (*list)[i], rest[i], budget));
    }
    return equal;
  }
  const Dict* dict = left.dict();
  if (dict == nullptr) return true;  // none, or undefined
  bool equal = dict->size() == right.dict()->size();
  for (size_t i = 0; equal && i < dict->size(); ++i) {
    const auto& [key, member] = (*dict)[i];
    const Value* other = find(*right.dict(), key);
    if (other == nullptr) return false;
    ASSIGN_OR_RETURN(equal, are_equal(line, member, *other, budget));
  }
  return equal;
}

Result<bool> contains(int line, const Value& container, const Value& element, Budget& budget) {
  if (const auto* text = container.as<Text>()) {
    const auto* part = element.as<Text>();
    if (part == nullptr) return mistyped(line, "\"in\" of a text", element);
    RETURN_IF_ERROR(budget.take(line, 0, text->size()));
    return find_in(*text, *part, 0) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    const auto* key = element.as<Text>();
    return key != nullptr && find(*dict, key->bytes()) != nullptr;
  }
  if (container.is_undefined()) return false;
  const List* list = container.list();
  if (list == nullptr) return mistyped(line, "\"in\"", container);
  for (const Value& one : *list) {
    ASSIGN_OR_RETURN(const bool equal, are_equal(line, one, element, budget));
    if (equal) return true;
  }
  return false;
}

Result<int64_t> apply_to_numbers(int line, char sign, int64_t left, int64_t right) {
  int64_t result = 0;
  bool fails = false;
  if (sign == '+') {
    fails = __builtin_add_overflow(left, right, &result);
  } else if (sign == '-') {
    fails = __builtin_sub_overflow(left, right, &result);
  } else if (sign == '*') {
    fails = __builtin_mul_overflow(left, right, &result);
  } else if (right == 0 || right == -1) {
    fails = right == 0 || __builtin_sub_overflow(int64_t{0}, left, &result);
    if (sign == '%') result = 0;
  } else {
    // Python rounds down.
    const int64_t remainder = left % right, floor = remainder != 0 && (remainder < 0) != (right < 0) ? 1 : 0;
    result = sign == '%' ? remainder + floor * right : left / right - floor;
  }
  if (!fails) return result;
  return template_error(line, fmt::format("{} {} {} is no number", left, sign, right), "mend the template");
}

}  // namespace

Result<void> Budget::take(int line, int64_t more_steps, size_t more_bytes) {
  steps -= more_steps;
  bytes -= static_cast<int64_t>(more_bytes);
  if (steps >= 0 && bytes >= 0) return {};
  return template_error(line, "the template does more than a conversation needs",
                        "shorten the conversation, or mend the template");
}

const Value* Use::argument(size_t place, std::string_view called) const {
  size_t positional = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (names[i].empty() ? positional++ == place : names[i] == called) return &arguments[i];
  }
  return nullptr;
}

Result<Value> apply_filter(const Value& value, const Use& use) {
  const std::string& name = use.name;
  RETURN_IF_ERROR(use.budget.take(use.line, 1, 0));
  if (name == "length" || name == "count") {
    if (const auto* text = value.as<Text>()) return Value{count_characters(*text)};
    if (const List* list = value.list()) return Value{static_cast<int64_t>(list->size())};
    if (const Dict* dict = value.dict()) return Value{static_cast<int64_t>(dict->size())};
    if (value.is_undefined()) return Value{int64_t{0}};
    return mistyped(use.line, name, value);
  }
  if (name == "default" || name == "d") {
    const Value* other = use.argument(0, "default_value");
    const Value* falsely = use.argument(1, "boolean");
    const bool replaces =
        value.is_undefined() || (falsely != nullptr && is_true(*falsely) && !is_true(value));
    if (!replaces) return value;
    return other == nullptr ? Value{Text()} : *other;
  }
  if (name == "tojson") {
    if (!use.arguments.empty()) return unknown(use, "indenting filter");
    ASSIGN_OR_RETURN(Text text, json_of(use.line, value, use.budget));
    return Value{std::move(text)};
  }
  if (is_one_of(name, {"first", "last", "list"})) return apply_list_filter(value, use);
  if (is_one_of(name, {"select", "reject", "selectattr", "rejectattr"})) return apply_selection(value, use);
  if (name == "map") return apply_map(value, use);
  if (name == "join") return apply_join(value, use);
  if (name == "items") return items_of(value, use);
  return apply_text_filter(value, use);
}

Result<bool> apply_test(const Value& value, const Use& use) {
  const std::string& name = use.name;
  const auto* truth = value.as<bool>();
  const auto* number = value.as<int64_t>();
  const bool is_text = value.as<Text>() != nullptr, is_dict = value.dict() != nullptr,
             is_list = value.list() != nullptr;
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.as<None>() != nullptr;
  if (name == "string") return is_text;
  if (name == "mapping") return is_dict;
  if (name == "iterable" || name == "sequence") return is_text || is_dict || is_list || value.is_undefined();
  if (name == "boolean") return truth != nullptr;
  if (name == "true") return truth != nullptr && *truth;
  if (name == "false") return truth != nullptr && !*truth;
  if (name == "integer") return number != nullptr;
  if (name == "number") return number != nullptr || truth != nullptr;
  const Value* argument = use.argument(0, "");
  if (is_one_of(name, {"odd", "even"}) && number != nullptr) return (*number % 2 != 0) == (name == "odd");
  if (argument == nullptr) return unknown(use, "test");
  if (is_one_of(name, {"equalto", "eq", "ne"})) {
    ASSIGN_OR_RETURN(const bool equal, are_equal(use.line, value, *argument, use.budget));
    return equal == (name != "ne");
  }
  if (name == "in") return contains(use.line, *argument, value, use.budget);
  const auto* divisor = argument->as<int64_t>();
  if (name == "divisibleby" && number != nullptr && divisor != nullptr && *divisor != 0)
    return *divisor == -1 || *number % *divisor == 0;
  return unknown(use, "test");
}

Result<Value> call_method(const Value& value, const Use& use) {
  RETURN_IF_ERROR(use.budget.take(use.line, 1, 0));
  if (const auto* text = value.as<Text>()) return call_text_method(*text, use);
  const Dict* dict = value.dict();
  if (dict != nullptr && is_one_of(use.name, {"items", "keys", "values"})) return items_of(value, use);
  if (dict != nullptr && use.name == "get") {
    const Value *key = use.argument(0, ""), *other = use.argument(1, "");
    const auto* name = key == nullptr ? nullptr : key->as<Text>();
    const Value* member = name == nullptr ? nullptr : find(*dict, name->bytes());
    return member != nullptr ? *member : other != nullptr ? *other : Value{None()};
  }
  if (value.is_undefined()) return mistyped(use.line, fmt::format(".{}()", base::visible(use.name)), value);
  return unknown(use, fmt::format("method of {}", kind_of(value)));
}

Result<Value> apply_binary(int line, const std::string& sign, const Value& left, const Value& right,
                           Budget& budget) {
  if (sign == "~") {
    ASSIGN_OR_RETURN(Text joined, text_of(line, left));
    ASSIGN_OR_RETURN(const Text more, text_of(line, right));
    RETURN_IF_ERROR(budget.take(line, 1, joined.size() + more.size()));
    joined.append(more);
    return Value{std::move(joined)};
  }
  const auto *number = left.as<int64_t>(), *other = right.as<int64_t>();
  if (number != nullptr && other != nullptr) {
    ASSIGN_OR_RETURN(const int64_t result, apply_to_numbers(line, sign.front(), *number, *other));
    return Value{result};
  }
  const auto *text = left.as<Text>(), *more = right.as<Text>();
  if (sign == "+" && text != nullptr && more != nullptr) {
    RETURN_IF_ERROR(budget.take(line, 1, text->size() + more->size()));
    Text joined = *text;
    joined.append(*more);
    return Value{std::move(joined)};
  }
  const List *list = left.list(), *rest = right.list();
  if (sign == "+" && list != nullptr && rest != nullptr) {
    RETURN_IF_ERROR(budget.take(line, static_cast<int64_t>(list->size() + rest->size()), 0));
    List joined = *list;
    joined.insert(joined.end(), rest->begin(), rest->end());
    return value_of(std::move(joined));
  }
  const bool left_fits = number != nullptr || (sign == "+" && (text != nullptr || list != nullptr));
  const Value& misfit = left_fits ? right : left;
  return mistyped(line, fmt::format("\"{}\" of {}", sign, left_fits ? kind_of(left) : "anything"), misfit);
}

Result<bool> apply_comparison(int line, const std::string& sign, const Value& left, const Value& right,
                              Budget& budget) {
  if (sign == "==" || sign == "!=") {
    ASSIGN_OR_RETURN(const bool equal, are_equal(line, left, right, budget));
    return equal == (sign == "==");
  }
  if (sign == "in" || sign == "not in") {
    ASSIGN_OR_RETURN(const bool has, contains(line, right, left, budget));
    return has == (sign == "in");
  }
  const auto order = order_of(left, right);
  if (!order) return mistyped(line, fmt::format("\"{}\" of {}", sign, kind_of(left)), right);
  if (sign.front() == '<') return *order < 0 || (sign.size() == 2 && *order == 0);
  return *order > 0 || (sign.size() == 2 && *order == 0);
}

Result<Value> item_of(int line, const Value& value, const Value& which, Budget& budget) {
  const auto* name = which.as<Text>();
  const auto* index = which.as<int64_t>();
  if (value.is_undefined() || value.as<None>() != nullptr)
    return mistyped(line, name != nullptr ? fmt::format("\"{}\"", base::visible(name->bytes())) : "an index",
                    value);
  if (const Dict* dict = value.dict()) {
    const Value* member = name == nullptr ? nullptr : find(*dict, name->bytes());
    if (member != nullptr) return *member;
    return Value{Undefined{name == nullptr ? "a member" : name->bytes()}};
  }
  if (index == nullptr) return Value{Undefined{name == nullptr ? "an element" : name->bytes()}};
  if (const List* list = value.list()) {
    const auto at = place_in(static_cast<int64_t>(list->size()), *index);
    return at ? (*list)[*at] : Value{Undefined{"an element"}};
  }
  const auto* text = value.as<Text>();
  if (text == nullptr) return Value{Undefined{"an element"}};
  RETURN_IF_ERROR(budget.take(line, 1, text->size()));
  const auto at = place_in(count_characters(*text), *index);
  if (!at) return Value{Undefined{"a character"}};
  return Value{characters_of(*text, static_cast<int64_t>(*at), static_cast<int64_t>(*at) + 1)};
}

Result<Value> slice_of(int line, const Value& value, const Value& begin, const Value& end, const Value& step,
                       Budget& budget) {
  const auto* text = value.as<Text>();
  const List* list = value.list();
  if (text == nullptr && list == nullptr) return mistyped(line, "a slice", value);
  for (const Value* bound : {&begin, &end, &step})
    if (bound->as<None>() == nullptr && bound->as<int64_t>() == nullptr)
      return mistyped(line, "a slice's bound", *bound);
  const int64_t length = text != nullptr ? count_characters(*text) : static_cast<int64_t>(list->size());
  const int64_t stride = step.as<int64_t>() == nullptr ? 1 : *step.as<int64_t>();
  if (stride != 1 && (stride != -1 || list == nullptr))
    return template_error(line, fmt::format("a slice's step of {} is not served", stride),
                          "write 1, or -1 for a list");
  const bool back = stride < 0;
  const auto bound = [&](const Value& given, int64_t absent) {
    const auto* number = given.as<int64_t>();
    if (number == nullptr) return absent;
    const int64_t place = *number < 0 ? *number + length : *number;
    return std::clamp(place, int64_t{back ? -1 : 0}, back ? length - 1 : length);
  };
  const int64_t first = bound(begin, back ? length - 1 : 0), last = bound(end, back ? -1 : length);
  if (text != nullptr) {
    RETURN_IF_ERROR(budget.take(line, 1, text->size()));
    return Value{characters_of(*text, first, std::max(first, last))};
  }
  RETURN_IF_ERROR(budget.take(line, length, 0));
  List taken;
  for (int64_t at = first; back ? at > last : at < last; at += stride)
    taken.push_back((*list)[static_cast<size_t>(at)]);
  return value_of(std::move(taken));
}

Result<List> elements_of(int line, const Value& value, Budget& budget) {
  if (value.is_undefined()) return List();
  if (const List* list = value.list()) {
    RETURN_IF_ERROR(budget.take(line, static_cast<int64_t>(list->size()), 0));
    return *list;
  }
  List all;
  if (const Dict* dict = value.dict()) {
    RETURN_IF_ERROR(budget.take(line, static_cast<int64_t>(dict->size()), 0));
    for (const auto& [key, member] : *dict) all.push_back({Text::foreign(key)});
    return all;
  }
  const auto* text = value.as<Text>();
  if (text == nullptr) return mistyped(line, "a loop", value);
  RETURN_IF_ERROR(budget.take(line, static_cast<int64_t>(text->size()), text->size()));
  for (size_t at = 0; at < text->size();) {
    const size_t count = character_at(*text, at);
    all.push_back({text->part(at, count)});
    at += count;
  }
  return all;
}

Result<Text> text_of(int line, const Value& value) {
  if (const auto* text = value.as<Text>()) return *text;
  if (value.is_undefined()) return Text();
  if (value.as<None>() != nullptr) return Text::own("None");
  if (const auto* truth = value.as<bool>()) return Text::own(*truth ? "True" : "False");
  if (const auto* number = value.as<int64_t>()) return Text::own(std::to_string(*number));
  return mistyped(line, "a print", value);
}

}  // namespace shardrun::data::jinja

#include "runtime/trainer/data/jinja/texts.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/base/visible.h"
#include "runtime/trainer/data/jinja/lexer.h"

namespace shardrun::data::jinja {
namespace {

// Returns the character that begins there.
uint32_t point_at(const Text& text, size_t at) {
  return base::code_of(base::first_character(std::string_view(text.bytes()).substr(at)));
}

// Python's str.isspace().
bool is_white(uint32_t point) {
  return (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x20) || point == 0x85 ||
         point == 0xA0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 ||
         point == 0x2029 || point == 0x202F || point == 0x205F || point == 0x3000;
}

// Returns where the character before `at` begins.
size_t character_before(const Text& text, size_t at) {
  for (size_t back = std::min<size_t>(4, at); back > 1; --back)
    if (character_at(text, at - back) == back) return at - back;
  return at - 1;
}

bool is_any_of(const Text& text, size_t at, const Text& characters) {
  const std::string one = text.bytes().substr(at, character_at(text, at));
  for (size_t i = 0; i < characters.size(); i += character_at(characters, i))
    if (characters.bytes().compare(i, character_at(characters, i), one) == 0) return true;
  return false;
}

Text stripped(const Text& text, const Text& characters, bool front, bool back) {
  size_t begin = 0, end = text.size();
  while (front && begin < end && is_any_of(text, begin, characters)) begin += character_at(text, begin);
  while (back && end > begin && is_any_of(text, character_before(text, end), characters))
    end = character_before(text, end);
  return text.part(begin, end - begin);
}

base::Error refused(const Use& use) {
  return template_error(
      use.line, fmt::format("the method .{}() with these arguments is not served", base::visible(use.name)),
      "use a template without it, or one of --template's by name");
}

Result<Value> split(const Text& text, const Text* between, const Use& use) {
  if (use.arguments.size() > 1 || (between != nullptr && between->size() == 0)) return refused(use);
  List parts;
  size_t at = 0;
  while (between != nullptr) {
    const size_t end = find_in(text, *between, at);
    RETURN_IF_ERROR(use.budget.take(use.line, 1, 0));
    parts.push_back({text.part(at, end == std::string::npos ? end : end - at)});
    if (end == std::string::npos) break;
    at = end + between->size();
  }
  while (between == nullptr) {
    while (at < text.size() && is_white(point_at(text, at))) at += character_at(text, at);
    if (at == text.size()) break;
    size_t end = at;
    while (end < text.size() && !is_white(point_at(text, end))) end += character_at(text, end);
    RETURN_IF_ERROR(use.budget.take(use.line, 1, 0));
    parts.push_back({text.part(at, end - at)});
    at = end;
  }
  return value_of(std::move(parts));
}

Result<Value> replace(const Text& text, const Text& from, const Text& to, const Use& use) {
  if (from.size() == 0 || use.arguments.size() > 2) return refused(use);
  Text changed;
  size_t at = 0;
  while (true) {
    const size_t found = find_in(text, from, at);
    changed.append(text.part(at, found == std::string::npos ? found : found - at));
    if (found == std::string::npos) return Value{std::move(changed)};
    RETURN_IF_ERROR(use.budget.take(use.line, 1, to.size()));
    changed.append(to);
    at = found + from.size();
  }
}

bool is_letter(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    constexpr std::string_view kPlain = "\"\\\n\r\t\b\f", kNamed = "\"\\nrtbf";
    if (const size_t named = kPlain.find(letter); named != std::string_view::npos) {
      out += '\\';
      out += kNamed[named];
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(letter));
    } else {
      out += letter;
    }
  }
  return out + '"';
}

}  // namespace

size_t character_at(const Text& text, size_t at) {
  return base::first_character(std::string_view(text.bytes()).substr(at)).size();
}

size_t find_in(const Text& text, const Text& part, size_t from) {
  const std::string &bytes = text.bytes(), &wanted = part.bytes();
  const void* found = ::memmem(bytes.data() + from, bytes.size() - from, wanted.data(), wanted.size());
  return found == nullptr ? std::string::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - bytes.data());
}

int64_t count_characters(const Text& text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += character_at(text, at)) ++count;
  return count;
}

Text characters_of(const Text& text, int64_t begin, int64_t end) {
  size_t at = 0;
  int64_t number = 0;
  for (; number < begin; ++number) at += character_at(text, at);
  const size_t first = at;
  for (; number < end; ++number) at += character_at(text, at);
  return text.part(first, at - first);
}

Text trimmed(const Text& text, bool front, bool back) {
  size_t begin = 0, end = text.size();
  while (front && begin < end && is_white(point_at(text, begin))) begin += character_at(text, begin);
  while (back && end > begin && is_white(point_at(text, character_before(text, end))))
    end = character_before(text, end);
  return text.part(begin, end - begin);
}

Result<Value> change_case(int line, const Text& text, const std::string& how) {
  std::string changed = text.bytes();
  for (size_t at = 0; at < changed.size(); ++at) {
    char& letter = changed[at];
    if (static_cast<unsigned char>(letter) >= 0x80)
      return template_error(line, fmt::format("\"{}\" meets a letter beyond ASCII, which is not served", how),
                            "use a template without it");
    const bool begins = at == 0 || (how == "title" && !is_letter(changed[at - 1]));
    const bool up = how == "upper" || (how != "lower" && begins);
    if (up && letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
    if (!up && letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return Value{text.made(changed)};
}

Result<Value> call_text_method(const Text& text, const Use& use) {
  const std::string& name = use.name;
  RETURN_IF_ERROR(use.budget.take(use.line, 1, text.size()));
  const Text* given[2] = {};
  for (size_t i = 0; i < use.arguments.size(); ++i) {
    const auto* argument = use.arguments[i].as<Text>();
    if (argument == nullptr || i > 1 || !use.names[i].empty()) return refused(use);
    given[i] = argument;
  }
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const bool front = name != "rstrip", back = name != "lstrip";
    return Value{given[0] == nullptr ? trimmed(text, front, back) : stripped(text, *given[0], front, back)};
  }
  if (name == "split") return split(text, given[0], use);
  if (name == "replace" && given[1] != nullptr) return replace(text, *given[0], *given[1], use);
  if ((name == "startswith" || name == "endswith") && given[0] != nullptr && given[1] == nullptr) {
    const std::string &whole = text.bytes(), &part = given[0]->bytes();
    return Value{name == "startswith" ? whole.starts_with(part) : whole.ends_with(part)};
  }
  const bool cases = name == "upper" || name == "lower" || name == "capitalize" || name == "title";
  return cases && given[0] == nullptr ? change_case(use.line, text, name) : Result<Value>(refused(use));
}

Result<Text> json_of(int line, const Value& value, Budget& budget) {
  RETURN_IF_ERROR(budget.take(line, 1, 0));
  if (const auto* text = value.as<Text>()) {
    RETURN_IF_ERROR(budget.take(line, 1, 2 * text->size()));
    return text->made(json_string(text->bytes()));
  }
  if (value.as<None>() != nullptr) return Text::own("null");
  if (const auto* truth = value.as<bool>()) return Text::own(*truth ? "true" : "false");
  Text all;
  if (const List* list = value.list()) {
    for (const Value& element : *list) {
      ASSIGN_OR_RETURN(const Text one, json_of(line, element, budget));
      RETURN_IF_ERROR(budget.take(line, 1, one.size()));
      all.append(Text::own(all.size() == 0 ? "[" : ", "));
      all.append(one);
    }
    all.append(Text::own(list->empty() ? "[]" : "]"));
    return all;
  }
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, member] : *dict) {
      ASSIGN_OR_RETURN(const Text one, json_of(line, member, budget));
      RETURN_IF_ERROR(budget.take(line, 1, one.size() + 2 * key.size()));
      all.append(Text::own(all.size() == 0 ? "{" : ", "));
      all.append(Text::foreign(json_string(key)));
      all.append(Text::own(": "));
      all.append(one);
    }
    all.append(Text::own(dict->empty() ? "{}" : "}"));
    return all;
  }
  if (value.as<int64_t>() != nullptr) return text_of(line, value);
  return template_error(line, "\"tojson\" meets nothing", "mend the template");
}

}  // namespace shardrun::data::jinja

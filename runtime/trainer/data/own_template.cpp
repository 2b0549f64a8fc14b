#include "runtime/trainer/data/own_template.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "runtime/trainer/data/jinja/render.h"
#include "runtime/trainer/data/jinja/texts.h"

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;
using jinja::Text;
using jinja::Value;
using nlohmann::json;

constexpr uint64_t kLargestConfig = 16 << 20;

// Returns a member that is a text, or a token as an object with its content; "" where there is neither.
std::string text_at(const json& object, const char* key) {
  const json& found = base::member(object, key);
  return base::text_of(found.is_object() ? base::member(found, "content") : found);
}

// Of several templates it is the one called "default".
std::string template_in(const json& config) {
  const std::string only = text_at(config, "chat_template");
  if (!only.empty() || !config.is_object() || !config.contains("chat_template")) return only;
  const json& several = config["chat_template"];
  for (const json& one : several.is_array() ? several : json::array())
    if (text_at(one, "name") == "default") return text_at(one, "template");
  return "";
}

json config_in(const std::filesystem::path& folder, const char* name) {
  const auto text = base::read_file((folder / name).string(), kLargestConfig);
  return text ? base::parse_json(*text) : json();
}

// A role stands in marks, such as <|user|>, so it may have no letters of theirs.
Result<void> check_role(const Message& message) {
  if (!message.role.empty() && message.role.find_first_of("\n<|>[]") == std::string::npos) return {};
  return Error(Code::kInvalid,
               "a role of a message is empty, or holds a line break or one of <, >, |, [ and ]");
}

size_t common_beginning(std::string_view left, std::string_view right) {
  return static_cast<size_t>(std::mismatch(left.begin(), left.end(), right.begin(), right.end()).first -
                             left.begin());
}

}  // namespace

Result<OwnTemplate> OwnTemplate::parse(std::string_view source, Special special) {
  OwnTemplate own;
  ASSIGN_OR_RETURN(own.template_, jinja::parse_template(source));
  own.special_ = std::move(special);
  return own;
}

Result<OwnTemplate> OwnTemplate::beside(const std::string& tokenizer_path) {
  const std::filesystem::path folder = std::filesystem::path(tokenizer_path).parent_path();
  const json config = config_in(folder, "tokenizer_config.json"),
             map = config_in(folder, "special_tokens_map.json");
  std::string place = (folder / "chat_template.jinja").string(), source;
  if (auto text = base::read_file(place, jinja::kLargestTemplate)) {
    source = std::move(*text);
  } else {
    place = (folder / "tokenizer_config.json").string();
    source = template_in(config);
  }
  if (source.empty())
    return Error(
        Code::kNotFound,
        fmt::format(
            "{}: has no chat_template, and there is no chat_template.jinja beside it; write --template {}",
            place, kChatTemplates));
  Special special;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    std::string text = text_at(config, name);
    if (text.empty()) text = text_at(map, name);
    if (!text.empty()) special.emplace_back(name, std::move(text));
  }
  auto own = parse(source, std::move(special));
  if (!own) return std::move(own).error().context(place);
  return own;
}

Result<Text> OwnTemplate::text_of(std::span<const Message> messages, bool prompts_assistant) const {
  jinja::List list;
  for (const Message& message : messages) {
    RETURN_IF_ERROR(check_role(message));
    list.push_back(jinja::value_of(
        jinja::Dict{{"role", {Text::own(message.role)}}, {"content", {Text::foreign(message.content)}}}));
  }
  jinja::Dict variables{{"messages", jinja::value_of(std::move(list))},
                        {"add_generation_prompt", {prompts_assistant}},
                        {"tools", {jinja::None()}},
                        {"documents", {jinja::None()}}};
  for (const auto& [name, text] : special_) variables.emplace_back(name, Value{Text::own(text)});
  auto text = jinja::render(template_, variables);
  if (!text) return std::move(text).error().context("the chat template");
  return text;
}

Result<OwnTemplate::Rendered> OwnTemplate::render(std::span<const Message> messages,
                                                  bool prompts_assistant) const {
  ASSIGN_OR_RETURN(const Text text, text_of(messages, prompts_assistant));
  Rendered rendered{text.bytes(), {}, {}};
  for (size_t at = 0; at < text.size(); ++at) {
    if (!text.is_own(at)) continue;
    const size_t begin = at;
    while (at < text.size() && text.is_own(at)) ++at;
    rendered.own.push_back({begin, at});
  }
  return rendered;
}

Result<OwnTemplate::Rendered> OwnTemplate::render_to_learn(std::span<const Message> messages) const {
  ASSIGN_OR_RETURN(Rendered whole, render(messages, false));
  const std::string_view text = whole.text;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    ASSIGN_OR_RETURN(const Text asked, text_of(messages.first(i), true));
    ASSIGN_OR_RETURN(const Text answered, text_of(messages.first(i + 1), false));
    // Some templates write an end behind the last message alone.
    const size_t begin = asked.size(), end = common_beginning(answered.bytes(), text);
    const std::string said = jinja::trimmed(Text::foreign(messages[i].content), true, true).bytes();
    if (!text.starts_with(asked.bytes()) || end < begin ||
        text.substr(begin, end - begin).find(said) == text.npos)
      return Error(
          Code::kInvalid,
          fmt::format(
              "the chat template writes answer {} otherwise than behind its own prompt, so it cannot be "
              "learned as it is asked for; use --template {} by name",
              i + 1, kChatTemplates));
    whole.answers.push_back({begin, end});
  }
  return whole;
}

}  // namespace shardrun::data

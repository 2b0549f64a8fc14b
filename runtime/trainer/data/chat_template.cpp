#include "runtime/trainer/data/chat_template.h"

#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/text.h"

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;

Result<std::vector<Passage>> llama2(std::span<const Message> messages) {
  std::string system;
  if (!messages.empty() && messages.front().role == "system") {
    system = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n", messages.front().content);
    messages = messages.subspan(1);
  }
  std::vector<Passage> passages;
  for (; !messages.empty(); messages = messages.subspan(2)) {
    if (messages.size() < 2 || messages[0].role != "user" || messages[1].role != "assistant") {
      return Error(Code::kInvalid,
                   "template llama2 wants an optional system message, then user and assistant in turn, the "
                   "assistant last");
    }
    Passage passage;
    passage.text =
        fmt::format("[INST] {} [/INST]", base::trimmed(std::exchange(system, "") + messages[0].content));
    const size_t begin = passage.text.size();
    passage.text += fmt::format(" {} ", base::trimmed(messages[1].content));
    passage.learned = {{begin, passage.text.size()}};
    passage.begins = passage.ends = true;
    passages.push_back(std::move(passage));
  }
  if (passages.empty()) return Error(Code::kInvalid, "the conversation has no question");
  return passages;
}

// One passage that grows message by message.
class Writer {
 public:
  void text(std::string_view text) { passage_.text += text; }
  void mark(std::string_view text) {
    passage_.marks.push_back({passage_.text.size(), passage_.text.size() + text.size()});
    passage_.text += text;
  }
  // What is written from here on is learned, until the next pass.
  void learn() { learned_ = passage_.text.size(); }
  void pass() {
    if (learned_) passage_.learned.push_back({*std::exchange(learned_, std::nullopt), passage_.text.size()});
  }
  std::vector<Passage> finish(bool begins, bool ends) && {
    pass();
    passage_.begins = begins;
    passage_.ends = ends;
    return {std::move(passage_)};
  }

 private:
  Passage passage_;
  std::optional<size_t> learned_;
};

std::vector<Passage> llama3(std::span<const Message> messages) {
  Writer writer;
  for (const Message& message : messages) {
    writer.mark("<|start_header_id|>");
    writer.text(message.role);
    writer.mark("<|end_header_id|>");
    writer.text("\n\n");
    if (message.role == "assistant") writer.learn();
    writer.text(base::trimmed(message.content));
    writer.mark("<|eot_id|>");
    writer.pass();
  }
  return std::move(writer).finish(true, false);
}

std::vector<Passage> chatml(std::span<const Message> messages) {
  Writer writer;
  for (const Message& message : messages) {
    writer.mark("<|im_start|>");
    writer.text(message.role + "\n");
    if (message.role == "assistant") writer.learn();
    writer.text(message.content);
    writer.mark("<|im_end|>");
    writer.pass();
    writer.text("\n");
  }
  return std::move(writer).finish(false, false);
}

std::vector<Passage> zephyr(std::span<const Message> messages) {
  Writer writer;
  for (const Message& message : messages) {
    writer.mark(fmt::format("<|{}|>", message.role));
    writer.text("\n");
    if (message.role == "assistant") writer.learn();
    writer.text(message.content);
    writer.mark("</s>");
    writer.pass();
    writer.text("\n");
  }
  return std::move(writer).finish(false, false);
}

std::vector<Passage> as_it_stands(std::span<const Message> messages) {
  Writer writer;
  for (const Message& message : messages) {
    if (message.role == "assistant") writer.learn();
    writer.text(message.content);
    writer.pass();
  }
  return std::move(writer).finish(true, true);
}

constexpr std::array<std::pair<std::string_view, ChatTemplate>, 5> kNames{{{"llama2", ChatTemplate::kLlama2},
                                                                           {"llama3", ChatTemplate::kLlama3},
                                                                           {"chatml", ChatTemplate::kChatMl},
                                                                           {"zephyr", ChatTemplate::kZephyr},
                                                                           {"none", ChatTemplate::kNone}}};

}  // namespace

const char* const kChatTemplates = "llama2, llama3, chatml, zephyr, own or none";

Result<ChatTemplate> parse_chat_template(std::string_view name) {
  for (const auto& [known, chat_template] : kNames)
    if (name == known) return chat_template;
  return Error(Code::kInvalid, fmt::format("there is no chat template \"{}\"; use {}", name, kChatTemplates));
}

Result<std::vector<Passage>> apply_chat_template(ChatTemplate chat_template,
                                                 std::span<const Message> messages) {
  for (const Message& message : messages)
    if (message.role.empty() || message.role.find_first_of("\n<|") != std::string::npos)
      return Error(Code::kInvalid, "a role of a message is empty, or holds a line break, \"<\" or \"|\"");
  switch (chat_template) {
    case ChatTemplate::kLlama2:
      return llama2(messages);
    case ChatTemplate::kLlama3:
      return llama3(messages);
    case ChatTemplate::kChatMl:
      return chatml(messages);
    case ChatTemplate::kZephyr:
      return zephyr(messages);
    case ChatTemplate::kNone:
      break;
  }
  return as_it_stands(messages);
}

}  // namespace shardrun::data

#include "runtime/trainer/data/chat_template.h"

#include <fmt/format.h>

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? std::string_view()
                            : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

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
    passage.text = fmt::format("[INST] {} [/INST]", trimmed(std::exchange(system, "") + messages[0].content));
    const size_t begin = passage.text.size();
    passage.text += fmt::format(" {} ", trimmed(messages[1].content));
    passage.learned = {{begin, passage.text.size()}};
    passage.framed = true;
    passages.push_back(std::move(passage));
  }
  if (passages.empty()) return Error(Code::kInvalid, "the conversation has no question");
  return passages;
}

Result<std::vector<Passage>> chatml(std::span<const Message> messages) {
  Passage passage;
  for (const Message& message : messages) {
    if (message.role.empty() || message.role.find_first_of("\n<") != std::string::npos)
      return Error(Code::kInvalid, "a role of a message is empty or holds a line break or \"<\"");
    passage.text += fmt::format("<|im_start|>{}\n", message.role);
    const size_t begin = passage.text.size();
    passage.text += message.content + "<|im_end|>";
    if (message.role == "assistant") passage.learned.push_back({begin, passage.text.size()});
    passage.text += '\n';
  }
  return std::vector<Passage>{std::move(passage)};
}

}  // namespace

Result<ChatTemplate> parse_chat_template(std::string_view name) {
  if (name == "llama2") return ChatTemplate::kLlama2;
  if (name == "chatml") return ChatTemplate::kChatMl;
  return Error(Code::kInvalid, fmt::format("there is no chat template \"{}\"; use llama2 or chatml", name));
}

Result<std::vector<Passage>> apply_chat_template(ChatTemplate chat_template,
                                                 std::span<const Message> messages) {
  return chat_template == ChatTemplate::kLlama2 ? llama2(messages) : chatml(messages);
}

}  // namespace shardrun::data

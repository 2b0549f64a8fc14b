// Chat templates: how a conversation becomes text, and which part of it the model learns.
//
//   llama2   each question stands alone with its answer between begin and end tokens:
//              [INST] question [/INST] answer
//            a system message goes before the first question: <<SYS>>\n…\n<</SYS>>\n\n
//   chatml   <|im_start|>role\ncontent<|im_end|>\n for each message, as text; no begin or end token
//
// Only what the assistant says carries loss: in llama2 together with the end token, in chatml with <|im_end|>.
// Source: Llama 2's reference `chat_completion`; OpenAI's chat markup as Qwen and others use it.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::data {

using base::Result;

struct Message {
  std::string role, content;
};

enum class ChatTemplate { kLlama2, kChatMl };
// kInvalid names the templates that exist.
Result<ChatTemplate> parse_chat_template(std::string_view name);

// A piece of a conversation that is tokenized as a whole.
struct Passage {
  struct Range {
    size_t begin, end;
  };
  std::string text;
  std::vector<Range> learned;  // byte ranges of text, ascending
  bool framed = false;         // stands between begin and end token; the end token is learned
};

// kInvalid when the roles do not follow one another as the template requires.
Result<std::vector<Passage>> apply_chat_template(ChatTemplate chat_template,
                                                 std::span<const Message> messages);

}  // namespace shardrun::data

// Chat templates: how a conversation becomes text, and which part of it the model learns.
//
//   llama2   each question stands alone with its answer between begin and end tokens:
//              [INST] question [/INST] answer
//            a system message goes before the first question: <<SYS>>\n…\n<</SYS>>\n\n
//   llama3   after one begin token, for each message:
//              <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>
//   chatml   <|im_start|>role\ncontent<|im_end|>\n for each message; no begin or end token
//   zephyr   <|role|>\ncontent</s>\n for each message; no begin or end token
//   own      what the checkpoint brings: runtime/trainer/data/own_template.h
//   none     what the messages say, one after another between begin and end token
//
// Only what the assistant says carries loss, together with what ends it: the end token, <|eot_id|>, <|im_end|> or </s>.
// Sources: Llama 2's reference `chat_completion`; Llama 3's `ChatFormat`; OpenAI's chat markup as Qwen and SmolLM2 use it;
// the alignment handbook's template for Zephyr.
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

enum class ChatTemplate { kLlama2, kLlama3, kChatMl, kZephyr, kNone };
// Their names, as one list for people.
extern const char* const kChatTemplates;
// kInvalid names the templates that exist.
Result<ChatTemplate> parse_chat_template(std::string_view name);

// A piece of a conversation that is tokenized as a whole.
struct Passage {
  struct Range {
    size_t begin, end;
  };
  std::string text;
  std::vector<Range> learned;  // byte ranges of text, ascending
  // Byte ranges, ascending, of the template's own marks, such as <|im_end|>: where the tokenizer has a token for one, it is
  // that token; the same letters in a message never are.
  std::vector<Range> marks;
  bool begins = false, ends = false;  // stands behind the begin token; before the end token, which is learned
};

// kInvalid when the roles do not follow one another as the template requires.
Result<std::vector<Passage>> apply_chat_template(ChatTemplate chat_template,
                                                 std::span<const Message> messages);

}  // namespace shardrun::data

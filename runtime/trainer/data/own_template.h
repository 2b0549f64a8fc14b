// The chat template that a checkpoint brings: Jinja in chat_template.jinja, or as "chat_template" in tokenizer_config.json.
//
// The text is that of transformers' apply_chat_template() without tools and documents; special tokens stand where the template names
// them, and nowhere else. Learned is what the template writes for the assistant behind its own prompt, up to its last mark there.
//
// Thread rule: const functions may be called by any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/chat_template.h"
#include "runtime/trainer/data/jinja/syntax.h"

namespace shardrun::data {

class OwnTemplate {
 public:
  // Variables of special tokens, e.g. {"bos_token", "<s>"}.
  using Special = std::vector<std::pair<std::string, std::string>>;
  // kInvalid: "line 3: what; mend".
  static Result<OwnTemplate> parse(std::string_view source, Special special);
  // Reads what lies in the folder of a tokenizer's file. kNotFound where that is no template, kInvalid as above, with the file.
  static Result<OwnTemplate> beside(const std::string& tokenizer_path);

  struct Rendered {
    std::string text;
    std::vector<Passage::Range> own;      // ascending: what the template wrote itself, roles among it
    std::vector<Passage::Range> answers;  // ascending: what the assistant says, with what ends it
  };
  // `prompts_assistant` asks for what stands before an answer. Leaves `answers` empty. kInvalid: the line, and why.
  Result<Rendered> render(std::span<const Message> messages, bool prompts_assistant) const;
  // Finds the answers, too. kInvalid where a template writes a conversation otherwise once an answer is there, so that
  // nobody could ask for it as it is learned.
  Result<Rendered> render_to_learn(std::span<const Message> messages) const;

 private:
  Result<jinja::Text> text_of(std::span<const Message> messages, bool prompts_assistant) const;

  jinja::Template template_;
  Special special_;
};

}  // namespace shardrun::data

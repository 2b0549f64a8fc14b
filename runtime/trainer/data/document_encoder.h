// Turns a document into the ids of a token file: puts special tokens around it, and marks what carries no loss.
//
// Thread rule: pure function of its arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/documents.h"
#include "runtime/trainer/data/own_template.h"
#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::data {

struct Encoding {
  std::optional<ChatTemplate> chat_template;
  bool special_tokens =
      true;  // begin and end tokens around documents; the marks of a template stay without them
  // Whether the names of a tokenizer's control tokens in a text are these tokens: for texts that somebody has formatted already.
  // The one that begins first counts, of several the longest.
  bool marks_in_text = false;
  std::optional<OwnTemplate> own_template{};  // the checkpoint's, in the place of chat_template

  // Whether there is a template, for conversations.
  bool talks() const { return chat_template || own_template; }
};

// Sets the template of that name; "own" is the one that lies beside the tokenizer's file. kInvalid, kNotFound.
Result<void> choose_template(std::string_view name, const std::string& tokenizer_path, Encoding& encoding);

// Replaces what `ids` held with the document's tokens; a token that carries no loss is given as its complement,
// ~id. Text stands between the tokenizer's begin and end tokens (wordpiece: alone) and carries loss throughout. In
// a conversation only what the assistant says does. `ids` is empty for a document without a token of its own.
// kInvalid when marks are asked for, or a checkpoint's own template, of a tokenizer
// that has none, or when a conversation has no template or a tokenizer that is not made for it; the caller knows the place.
Result<void> encode_document(const Tokenizer& tokenizer, const Document& document, const Encoding& encoding,
                             std::vector<int32_t>& ids);

// Returns what somebody asks a model, as a document: a conversation that begins with what `system` says, unless that is empty,
// where there is a template, else text.
Document prompt_document(const std::string& prompt, const std::string& system, const Encoding& encoding);

// Its tokens.
struct Question {
  std::vector<int32_t> ids;   // up to where the answer begins
  std::vector<int32_t> ends;  // tokens that end an answer
};
// Returns the tokens of a text, or of a conversation that the assistant goes on with, as encode_document() has them. Errors
// as there.
Result<Question> encode_question(const Tokenizer& tokenizer, Document document, const Encoding& encoding);

}  // namespace shardrun::data

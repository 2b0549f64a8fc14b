#include "runtime/trainer/data/document_encoder.h"

#include <algorithm>

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;

bool is_learned(const Passage& passage, const Token& token) {
  return std::any_of(passage.learned.begin(), passage.learned.end(), [&](const Passage::Range& range) {
    return range.begin < token.end && token.end <= range.end;
  });
}

}  // namespace

Result<void> encode_document(const Tokenizer& tokenizer, const Document& document,
                             std::optional<ChatTemplate> chat_template, std::vector<int32_t>& ids) {
  const TokenizerFacts& facts = tokenizer.facts();
  const bool places_specials = facts.special.mask < 0;
  std::vector<Passage> passages;
  ids.clear();
  if (document.messages.empty()) {
    passages.push_back({document.text, {{0, document.text.size()}}, places_specials});
  } else {
    if (!places_specials)
      return Error(Code::kInvalid, "a BERT vocabulary is not made for conversations; use \"text\"");
    if (!chat_template) return Error(Code::kInvalid, "a conversation needs --template llama2 or chatml");
    ASSIGN_OR_RETURN(auto applied, apply_chat_template(*chat_template, document.messages));
    passages = std::move(applied);
  }
  std::vector<Token> tokens;
  for (const Passage& passage : passages) {
    tokens.clear();
    RETURN_IF_ERROR(tokenizer.encode(passage.text, tokens));
    if (tokens.empty()) continue;
    const bool plain = document.messages.empty();
    if (passage.framed && facts.special.begin >= 0)
      ids.push_back(plain ? facts.special.begin : ~facts.special.begin);
    for (const Token& token : tokens)
      ids.push_back(plain || is_learned(passage, token) ? token.id : ~token.id);
    if (passage.framed && facts.special.end >= 0) ids.push_back(facts.special.end);
  }
  return {};
}

}  // namespace shardrun::data

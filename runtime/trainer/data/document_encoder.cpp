#include "runtime/trainer/data/document_encoder.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;

constexpr const char* kWithoutMarks = "leave out --marks-in-text";

bool is_learned(const Passage& passage, const Token& token) {
  return std::any_of(passage.learned.begin(), passage.learned.end(), [&](const Passage::Range& range) {
    return range.begin < token.end && token.end <= range.end;
  });
}

// Returns the names of control tokens, of which there must be some. `mend` is what else helps.
Result<std::vector<std::string>> names_of(const Tokenizer& tokenizer, const char* mend) {
  auto names = tokenizer.control_names();
  if (!names.empty()) return names;
  return Error(Code::kInvalid, fmt::format("this tokenizer has no special tokens by name; {}", mend));
}

// Returns where names of control tokens stand in a text.
std::vector<Passage::Range> marks_in(const std::vector<std::string>& names, std::string_view text) {
  std::array<std::vector<std::string_view>, 256> by_first;
  for (const std::string& name : names)
    if (!name.empty()) by_first[static_cast<unsigned char>(name.front())].push_back(name);
  std::vector<Passage::Range> marks;
  for (size_t at = 0; at < text.size();) {
    size_t longest = 0;
    for (const std::string_view name : by_first[static_cast<unsigned char>(text[at])])
      if (name.size() > longest && text.substr(at).starts_with(name)) longest = name.size();
    if (longest > 0) marks.push_back({at, at + longest});
    at += std::max<size_t>(1, longest);
  }
  return marks;
}

// Returns what a checkpoint's own template wrote as a passage. What ends an answer is its last mark, where there is one.
Result<Passage> passage_of(const Tokenizer& tokenizer, const OwnTemplate::Rendered& rendered) {
  ASSIGN_OR_RETURN(const auto names, names_of(tokenizer, "choose another --template than own"));
  Passage passage{rendered.text, {}, {}, false, false};
  for (const Passage::Range& own : rendered.own) {
    const auto marks =
        marks_in(names, std::string_view(rendered.text).substr(own.begin, own.end - own.begin));
    for (const Passage::Range& mark : marks)
      passage.marks.push_back({own.begin + mark.begin, own.begin + mark.end});
  }
  for (Passage::Range answer : rendered.answers) {
    for (auto mark = passage.marks.rbegin(); mark != passage.marks.rend(); ++mark) {
      if (mark->begin < answer.begin || mark->end > answer.end) continue;
      answer.end = mark->end;
      break;
    }
    passage.learned.push_back(answer);
  }
  return passage;
}

// Encodes a passage; the template's marks become their tokens where the tokenizer has such.
Result<void> encode_passage(const Tokenizer& tokenizer, const Passage& passage, std::vector<Token>& tokens) {
  const std::string_view text = passage.text;
  size_t at = 0;
  const auto encode_to = [&](size_t end) -> Result<void> {
    const size_t first = tokens.size();
    if (at < end) RETURN_IF_ERROR(tokenizer.encode(text.substr(at, end - at), tokens));
    for (size_t i = first; i < tokens.size(); ++i) tokens[i].end += static_cast<uint32_t>(at);
    at = end;
    return {};
  };
  for (const Passage::Range& mark : passage.marks) {
    const int32_t id = tokenizer.control_token(text.substr(mark.begin, mark.end - mark.begin));
    if (id < 0) continue;
    RETURN_IF_ERROR(encode_to(mark.begin));
    tokens.push_back({id, static_cast<uint32_t>(mark.end)});
    at = mark.end;
  }
  return encode_to(text.size());
}

}  // namespace

Result<void> choose_template(std::string_view name, const std::string& tokenizer_path, Encoding& encoding) {
  if (name == "own") {
    ASSIGN_OR_RETURN(encoding.own_template, OwnTemplate::beside(tokenizer_path));
    return {};
  }
  ASSIGN_OR_RETURN(encoding.chat_template, parse_chat_template(name));
  return {};
}

Document prompt_document(const std::string& prompt, const std::string& system, const Encoding& encoding) {
  if (!encoding.talks()) return {prompt, {}};
  Document document;
  if (!system.empty()) document.messages.push_back({"system", system});
  document.messages.push_back({"user", prompt});
  return document;
}

Result<Question> encode_question(const Tokenizer& tokenizer, Document document, const Encoding& encoding) {
  const SpecialTokens& special = tokenizer.facts().special;
  Question question;
  if (special.end >= 0) question.ends.push_back(special.end);
  std::vector<Passage> passages{{document.text, {}, {}, true, false}};
  if (document.messages.empty() && encoding.marks_in_text) {
    ASSIGN_OR_RETURN(const auto names, names_of(tokenizer, kWithoutMarks));
    passages.front().marks = marks_in(names, document.text);
  }
  if (!document.messages.empty() && encoding.own_template) {
    ASSIGN_OR_RETURN(const auto asked, encoding.own_template->render(document.messages, true));
    ASSIGN_OR_RETURN(passages.front(), passage_of(tokenizer, asked));
    document.messages.push_back({"assistant", "x"});
    const auto answered = encoding.own_template->render(document.messages, false);
    Passage after;
    if (answered) {
      ASSIGN_OR_RETURN(after, passage_of(tokenizer, *answered));
    }
    for (const Passage::Range& mark : after.marks) {
      const int32_t id =
          tokenizer.control_token(std::string_view(after.text).substr(mark.begin, mark.end - mark.begin));
      if (mark.begin >= asked.text.size() && after.text.starts_with(asked.text)) question.ends.push_back(id);
    }
  } else if (!document.messages.empty()) {
    if (!encoding.chat_template)
      return Error(Code::kInvalid, fmt::format("a conversation needs --template {}", kChatTemplates));
    document.messages.push_back({"assistant", ""});
    ASSIGN_OR_RETURN(passages, apply_chat_template(*encoding.chat_template, document.messages));
    // What the template would have the assistant say itself is what ends an answer.
    Passage& last = passages.back();
    const size_t answer = last.learned.back().begin;
    while (!last.marks.empty() && last.marks.back().begin >= answer) {
      const Passage::Range mark = last.marks.back();
      const int32_t id =
          tokenizer.control_token(std::string_view(last.text).substr(mark.begin, mark.end - mark.begin));
      if (id >= 0) question.ends.push_back(id);
      last.marks.pop_back();
    }
    last.text.resize(answer);
    last.ends = false;
  }
  std::vector<Token> tokens;
  for (const Passage& passage : passages) {
    tokens.clear();
    RETURN_IF_ERROR(encode_passage(tokenizer, passage, tokens));
    if (encoding.special_tokens && passage.begins && special.begin >= 0)
      question.ids.push_back(special.begin);
    for (const Token& token : tokens) question.ids.push_back(token.id);
    if (encoding.special_tokens && passage.ends && special.end >= 0) question.ids.push_back(special.end);
  }
  return question;
}

Result<void> encode_document(const Tokenizer& tokenizer, const Document& document, const Encoding& encoding,
                             std::vector<int32_t>& ids) {
  const TokenizerFacts& facts = tokenizer.facts();
  const bool places_specials = facts.special.mask < 0;
  std::vector<Passage> passages;
  ids.clear();
  if (document.messages.empty()) {
    passages.push_back({document.text, {{0, document.text.size()}}, {}, places_specials, places_specials});
    if (encoding.marks_in_text) {
      ASSIGN_OR_RETURN(const auto names, names_of(tokenizer, kWithoutMarks));
      passages.front().marks = marks_in(names, document.text);
    }
  } else {
    if (!places_specials)
      return Error(Code::kInvalid,
                   "a vocabulary for masked words is not made for conversations; use \"text\"");
    if (encoding.own_template) {
      ASSIGN_OR_RETURN(const auto rendered, encoding.own_template->render_to_learn(document.messages));
      ASSIGN_OR_RETURN(passages.emplace_back(), passage_of(tokenizer, rendered));
    } else if (!encoding.chat_template) {
      return Error(Code::kInvalid, fmt::format("a conversation needs --template {}", kChatTemplates));
    } else {
      ASSIGN_OR_RETURN(passages, apply_chat_template(*encoding.chat_template, document.messages));
    }
  }
  std::vector<Token> tokens;
  for (const Passage& passage : passages) {
    tokens.clear();
    RETURN_IF_ERROR(encode_passage(tokenizer, passage, tokens));
    if (tokens.empty()) continue;
    const bool plain = document.messages.empty();
    if (encoding.special_tokens && passage.begins && facts.special.begin >= 0)
      ids.push_back(plain ? facts.special.begin : ~facts.special.begin);
    for (const Token& token : tokens)
      ids.push_back(plain || is_learned(passage, token) ? token.id : ~token.id);
    const bool ends_learned =
        plain || (!passage.learned.empty() && passage.learned.back().end == passage.text.size());
    if (encoding.special_tokens && passage.ends && facts.special.end >= 0)
      ids.push_back(ends_learned ? facts.special.end : ~facts.special.end);
  }
  return {};
}

}  // namespace shardrun::data

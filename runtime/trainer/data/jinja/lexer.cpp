#include "runtime/trainer/data/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "runtime/base/text.h"
#include "runtime/base/visible.h"

namespace shardrun::data::jinja {
namespace {

using base::kWhite;

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
constexpr std::string_view kDigits = "0123456789";

// Python's ways to end a line become one, and the last of them goes.
std::string with_plain_lines(std::string_view source) {
  std::string text;
  for (size_t at = 0; at < source.size(); ++at) {
    const bool returns = source[at] == '\r';
    if (returns && at + 1 < source.size() && source[at + 1] == '\n') ++at;
    text += returns ? '\n' : source[at];
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void append_utf8(std::string& text, uint32_t point) {
  if (point < 0x80) {
    text += static_cast<char>(point);
    return;
  }
  const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  constexpr uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  text += static_cast<char>(kLead[more] | (point >> (6 * more)));
  for (int shift = more - 1; shift >= 0; --shift)
    text += static_cast<char>(0x80 | ((point >> (6 * shift)) & 0x3F));
}

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  Result<std::vector<Token>> run() {
    while (at_ < text_.size()) RETURN_IF_ERROR(next_tag());
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  enum class Tag { kPrint, kBlock, kComment };

  void add(Token::Kind kind, std::string text, int64_t number = 0) {
    tokens_.push_back({kind, line_, std::move(text), number});
  }
  void advance_to(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }
  bool stands(std::string_view what, size_t at) const {
    return std::string_view(text_).substr(at).starts_with(what);
  }

  // Text up to the next tag, and that tag.
  Result<void> next_tag() {
    size_t begin = at_;
    while ((begin = text_.find('{', begin)) != std::string::npos && !stands("{{", begin) &&
           !stands("{%", begin) && !stands("{#", begin))
      ++begin;
    if (begin == std::string::npos) {
      add(Token::Kind::kText, text_.substr(at_));
      advance_to(text_.size());
      return {};
    }
    const Tag tag = text_[begin + 1] == '{'   ? Tag::kPrint
                    : text_[begin + 1] == '%' ? Tag::kBlock
                                              : Tag::kComment;
    std::string before = text_.substr(at_, begin - at_);
    const char sign = begin + 2 < text_.size() ? text_[begin + 2] : '\0';
    if (sign == '-') {
      before.resize(before.find_last_not_of(kWhite) + 1);
    } else if (sign != '+' && tag != Tag::kPrint) {
      const size_t line_break = before.rfind('\n');
      const size_t line = line_break == std::string::npos ? 0 : line_break + 1;
      if ((line > 0 || line_begins_) && before.find_first_not_of(kWhite, line) == std::string::npos)
        before.resize(line);
    }
    if (!before.empty()) add(Token::Kind::kText, before);
    advance_to(begin + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (tag == Tag::kComment) return skip_comment();
    add(tag == Tag::kPrint ? Token::Kind::kPrintBegin : Token::Kind::kBlockBegin, "");
    return tokens_of(tag);
  }

  Result<void> skip_comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string::npos) return template_error(line_, "a comment has no end", "write #}");
    const char sign = end > at_ ? text_[end - 1] : '\0';
    advance_to(end + 2);
    end_tag(sign, Tag::kComment);
    return {};
  }

  void end_tag(char sign, Tag tag) {
    size_t end = at_;
    if (sign == '-') {
      end = std::min(text_.find_first_not_of(kWhite, at_), text_.size());
    } else if (sign != '+' && tag != Tag::kPrint && stands("\n", at_)) {
      ++end;
    }
    advance_to(end);
    line_begins_ = at_ > 0 && text_[at_ - 1] == '\n';
  }

  // The tokens of a tag up to its end. Brackets of a dict may stand before the end of a print: }}}.
  Result<void> tokens_of(Tag tag) {
    const std::string_view end = tag == Tag::kPrint ? "}}" : "%}";
    int open = 0;
    while (true) {
      advance_to(std::min(text_.find_first_not_of(kWhite, at_), text_.size()));
      if (at_ == text_.size()) return template_error(line_, "a tag has no end", fmt::format("write {}", end));
      const bool signed_end = (text_[at_] == '-' || text_[at_] == '+') && stands(end, at_ + 1);
      if (signed_end || (open == 0 && stands(end, at_))) {
        const char sign = signed_end ? text_[at_] : '\0';
        advance_to(at_ + end.size() + (signed_end ? 1 : 0));
        add(tag == Tag::kPrint ? Token::Kind::kPrintEnd : Token::Kind::kBlockEnd, "");
        end_tag(sign, tag);
        return {};
      }
      RETURN_IF_ERROR(next_token());
      if (tokens_.back().kind != Token::Kind::kSign) continue;
      const char bracket = tokens_.back().text.front();
      if (bracket == '{') ++open;
      if (bracket == '}') --open;
    }
  }

  Result<void> next_token() {
    const char first = text_[at_];
    if (first == '\'' || first == '"') return string_token(first);
    if (kDigits.find(first) != std::string_view::npos) return number_token();
    if (kLetters.find(first) != std::string_view::npos) {
      size_t end = at_;
      while (end < text_.size() && (kLetters.find(text_[end]) != std::string_view::npos ||
                                    kDigits.find(text_[end]) != std::string_view::npos))
        ++end;
      add(Token::Kind::kName, text_.substr(at_, end - at_));
      at_ = end;
      return {};
    }
    for (const std::string_view sign : {"==", "!=", "<=", ">=", "//", "**", "(", ")", "[", "]", "{", "}", ",",
                                        ":",  ".",  "|",  "~",  "+",  "-",  "*", "/", "%", "<", ">", "="}) {
      if (!stands(sign, at_)) continue;
      add(Token::Kind::kSign, std::string(sign));
      at_ += sign.size();
      return {};
    }
    return template_error(line_, fmt::format("\"{}\" is no Jinja", base::visible(text_.substr(at_, 1))),
                          "remove it");
  }

  Result<void> number_token() {
    int64_t number = 0;
    const auto [end, failure] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    const auto length = static_cast<size_t>(end - (text_.data() + at_));
    const bool longer =
        at_ + length < text_.size() && (stands("_", at_ + length) || stands("e", at_ + length) ||
                                        stands("E", at_ + length) || stands("x", at_ + length));
    const bool has_fraction = stands(".", at_ + length) && at_ + length + 1 < text_.size() &&
                              kDigits.find(text_[at_ + length + 1]) != std::string_view::npos;
    if (failure != std::errc() || longer || has_fraction)
      return template_error(line_, "a number is no plain integer", "write one of at most 18 digits");
    add(Token::Kind::kNumber, text_.substr(at_, length), number);
    at_ += length;
    return {};
  }

  // Escapes are Python's.
  Result<void> string_token(char quote) {
    std::string said;
    size_t at = at_ + 1;
    for (; at < text_.size() && text_[at] != quote; ++at) {
      if (text_[at] != '\\') {
        said += text_[at];
        continue;
      }
      if (++at == text_.size()) break;
      constexpr std::string_view kNamed = "ntrbfva\\'\"", kMeant = "\n\t\r\b\f\v\a\\'\"";
      if (const size_t named = kNamed.find(text_[at]); named != std::string_view::npos) {
        said += kMeant[named];
      } else if (const int digits = text_[at] == 'x'   ? 2
                                    : text_[at] == 'u' ? 4
                                    : text_[at] == 'U' ? 8
                                                       : 0;
                 digits > 0) {
        uint32_t point = 0;
        const char* begin = text_.data() + at + 1;
        const char* end = begin + std::min<size_t>(static_cast<size_t>(digits), text_.size() - at - 1);
        const auto [stop, failure] = std::from_chars(begin, end, point, 16);
        if (failure != std::errc() || stop != begin + digits || point > 0x10FFFF ||
            (point >= 0xD800 && point < 0xE000))
          return template_error(line_, "a string has an escape that names no character", "mend it");
        append_utf8(said, point);
        at += static_cast<size_t>(digits);
      } else if (kDigits.find(text_[at]) != std::string_view::npos || text_[at] == 'N') {
        return template_error(line_, "a string has an octal or a named escape", "write \\u and four digits");
      } else if (text_[at] != '\n') {
        said += '\\';
        said += text_[at];
      }
    }
    if (at >= text_.size()) return template_error(line_, "a string has no end", "close its quotes");
    add(Token::Kind::kString, std::move(said));
    advance_to(at + 1);
    return {};
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // whether what was read last ended a line
  std::vector<Token> tokens_;
};

}  // namespace

base::Error template_error(int line, const std::string& what, const std::string& mend) {
  return {base::Code::kInvalid, fmt::format("line {}: {}; {}", line, what, mend)};
}

Result<std::vector<Token>> tokenize_template(std::string_view source) {
  return Lexer(with_plain_lines(source)).run();
}

}  // namespace shardrun::data::jinja

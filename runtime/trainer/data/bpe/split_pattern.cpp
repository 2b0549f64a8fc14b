// The only file that includes PCRE2.
#include "runtime/trainer/data/bpe/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include <fmt/format.h>

namespace shardrun::data::bpe {
namespace {

using base::Error;

constexpr uint32_t kMaximumSteps = 10'000'000;
constexpr uint32_t kMaximumHeapKib = 64 << 10;

Error refused(std::string_view expression, std::string_view what) {
  return Error(base::Code::kInvalid, fmt::format("the pattern {:?} {}", expression, what));
}

// Rewrites Ruby's syntax, as Oniguruma reads it, in PCRE2's.
class Translation {
 public:
  explicit Translation(std::string_view expression) : expression_(expression) {}

  Result<std::string> run() {
    while (at_ < expression_.size()) {
      const char c = expression_[at_];
      if (c == '\\') {
        RETURN_IF_ERROR(escape());
      } else if (in_class_) {
        RETURN_IF_ERROR(inside_class(c));
      } else if (c == '[') {
        open_class();
      } else if (expression_.substr(at_).starts_with("(?m") || expression_.substr(at_).starts_with("(?a")) {
        return refused(expression_,
                       fmt::format("has \"{}\", which is not read here", expression_.substr(at_, 3)));
      } else {
        copy(1);
      }
    }
    return out_;
  }

 private:
  void copy(size_t count) {
    out_ += expression_.substr(at_, count);
    at_ += count;
  }

  // A bracket that comes first in a class stands for itself.
  void open_class() {
    in_class_ = true;
    copy(1);
    if (expression_.substr(at_).starts_with('^')) copy(1);
    if (expression_.substr(at_).starts_with(']')) {
      out_ += "\\]";
      ++at_;
    }
  }

  Result<void> inside_class(char c) {
    if (c == '[' || expression_.substr(at_).starts_with("&&"))
      return refused(expression_, "has a set inside a set, which is not read here");
    if (c == ']') in_class_ = false;
    copy(1);
    return {};
  }

  // \s and \w are Unicode's here; PCRE2's own would take U+180E for a space, and leave marks out of words.
  Result<void> escape() {
    if (at_ + 1 == expression_.size()) return refused(expression_, "ends in a backslash");
    static constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})", kWord = R"(\p{L}\p{M}\p{Nd}\p{Pc})";
    const char c = expression_[at_ + 1];
    const std::string_view members = c == 's' || c == 'S' ? kSpace : c == 'w' || c == 'W' ? kWord : "";
    if (!members.empty()) {
      const bool negated = c == 'S' || c == 'W';
      if (in_class_ && negated)
        return refused(expression_, fmt::format("has \\{} inside a set, which is not read here", c));
      out_ += in_class_ ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
      at_ += 2;
      return {};
    }
    if (std::string_view("hHRXbBGKyYkgoQEC").find(c) != std::string_view::npos)
      return refused(expression_, fmt::format("has \\{}, which is not read here", c));
    copy(2);
    return {};
  }

  std::string_view expression_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

pcre2_match_context* limits() {
  static pcre2_match_context* const context = [] {
    pcre2_match_context* made = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(made, kMaximumSteps);
    pcre2_set_heap_limit(made, kMaximumHeapKib);
    return made;
  }();
  return context;
}

}  // namespace

Result<SplitPattern> SplitPattern::compile(std::string_view expression) {
  ASSIGN_OR_RETURN(const std::string translated, Translation(expression).run());
  int failure = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                   &failure, &place, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> words{};
    pcre2_get_error_message(failure, words.data(), words.size());
    return refused(expression,
                   fmt::format("is no regular expression: {}", reinterpret_cast<const char*>(words.data())));
  }
  // Without the compiler to machine code, which some systems forbid, the same pattern is interpreted.
  static_cast<void>(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE));
  return SplitPattern(Code(code, [](void* owned) { pcre2_code_free(static_cast<pcre2_code*>(owned)); }));
}

Result<SplitPattern> SplitPattern::literal(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view(R"(\^$.[]|()?*+{}#-)").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return compile(escaped);
}

SplitPattern::Scratch::Scratch()
    : matches_(pcre2_match_data_create(1, nullptr),
               [](void* owned) { pcre2_match_data_free(static_cast<pcre2_match_data*>(owned)); }) {}

Result<std::optional<Range>> SplitPattern::find(std::string_view text, size_t from, Scratch& scratch) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  auto* matches = static_cast<pcre2_match_data*>(scratch.matches_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, matches, limits());
  // The machine code has a stack of its own, which a long match exhausts; the interpreter takes it from the heap.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)
    found =
        pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matches, limits());
  if (found == PCRE2_ERROR_NOMATCH) return std::optional<Range>();
  if (found < 0) {
    std::array<PCRE2_UCHAR, 256> words{};
    pcre2_get_error_message(found, words.data(), words.size());
    return Error(base::Code::kInvalid, fmt::format("the tokenizer's pattern gives up on this text: {}",
                                                   reinterpret_cast<const char*>(words.data())));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(matches);
  return std::optional<Range>(Range{ends[0], ends[1]});
}

}  // namespace shardrun::data::bpe

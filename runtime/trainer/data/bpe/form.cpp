#include "runtime/trainer/data/bpe/form.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include <fmt/format.h>

namespace shardrun::data::bpe {
namespace {

// Builds the next form of a text out of stretches of the one before.
class Builder {
 public:
  explicit Builder(const Form& before) : before_(before) { next_.text.reserve(before.text.size()); }

  // Keeps the bytes of [begin, end) of the text before.
  void keep(size_t begin, size_t end) {
    if (begin == end) return;
    if (changed_) {
      for (size_t i = begin; i < end; ++i) next_.ends.push_back(before_.original_end(i + 1));
    }
    next_.text.append(before_.text, begin, end - begin);
  }

  // Puts `content` in the place of [begin, end); each of its bytes ends where the stretch does. An empty stretch is taken
  // to end with the character behind it.
  void replace(size_t begin, size_t end, std::string_view content) {
    if (before_.text.compare(begin, end - begin, content) == 0) return keep(begin, end);
    if (!changed_) {
      changed_ = true;
      for (size_t i = 0; i < next_.text.size(); ++i) next_.ends.push_back(before_.original_end(i + 1));
    }
    if (begin == end && end < before_.text.size()) {
      ++end;
      while (end < before_.text.size() && (static_cast<unsigned char>(before_.text[end]) & 0xC0U) == 0x80U)
        ++end;
    }
    next_.ends.insert(next_.ends.end(), content.size(), end == 0 ? 0 : before_.original_end(end));
    next_.text += content;
  }

  size_t size() const { return next_.text.size(); }

  Form finish(Form before) && {
    if (!changed_) return before;
    return std::move(next_);
  }

 private:
  const Form& before_;
  Form next_;
  bool changed_ = false;
};

// Characters below U+0300 compose with nothing that stands before them: a text may be cut in front of each.
bool begins_stretch(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  return byte < 0x80 || (byte >= 0xC2 && byte < 0xCC);
}

bool is_ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

// Returns the stretch as it is where utf8proc cannot map it, for lack of memory.
std::string mapped(std::string_view stretch, utf8proc_option_t options) {
  utf8proc_uint8_t* made = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(stretch.data()),
                                  static_cast<utf8proc_ssize_t>(stretch.size()), &made, options);
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owned(made, std::free);
  if (bytes < 0) return std::string(stretch);
  return {reinterpret_cast<const char*>(made), static_cast<size_t>(bytes)};
}

Form in_unicode_form(UnicodeForm unicode_form, Form form) {
  if (is_ascii(form.text)) return form;
  const bool composed = unicode_form == UnicodeForm::kNfc || unicode_form == UnicodeForm::kNfkc;
  const bool compatible = unicode_form == UnicodeForm::kNfkc || unicode_form == UnicodeForm::kNfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                     (compatible ? UTF8PROC_COMPAT : 0));
  Builder builder(form);
  const std::string_view text = form.text;
  size_t kept = 0;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    while (end < text.size() && !begins_stretch(text, end)) ++end;
    const std::string_view stretch = text.substr(at, end - at);
    if (stretch.size() > 1 || !is_ascii(stretch)) {
      builder.keep(kept, at);
      builder.replace(at, end, mapped(stretch, options));
      kept = end;
    }
    at = end;
  }
  builder.keep(kept, text.size());
  return std::move(builder).finish(std::move(form));
}

base::Error too_long(size_t most_bytes) {
  return base::Error(base::Code::kInvalid,
                     fmt::format("the tokenizer's normalizer makes more than {} bytes of a text; use the "
                                 "tokenizer.json that came with the model",
                                 most_bytes));
}

Form with_prefix(const Prepend& prepend, Form form, bool first) {
  if (form.text.empty() || (prepend.first && !first) ||
      (prepend.once && form.text.starts_with(prepend.prefix)))
    return form;
  Builder builder(form);
  builder.replace(0, 0, prepend.prefix);
  builder.keep(0, form.text.size());
  return std::move(builder).finish(std::move(form));
}

Result<Form> with_replaced(const Replace& replace, Form form, size_t most_bytes,
                           SplitPattern::Scratch& scratch) {
  Builder builder(form);
  size_t at = 0;
  for (size_t from = 0; from <= form.text.size();) {
    ASSIGN_OR_RETURN(const auto match, replace.pattern.find(form.text, from, scratch));
    if (!match) break;
    builder.keep(at, match->begin);
    builder.replace(match->begin, match->end, replace.content);
    if (builder.size() > most_bytes) return too_long(most_bytes);
    from = at = match->end;
    if (match->begin < match->end) continue;
    ++from;  // matched nothing: look again behind this character
    while (from < form.text.size() && (static_cast<unsigned char>(form.text[from]) & 0xC0U) == 0x80U) ++from;
  }
  builder.keep(at, form.text.size());
  return std::move(builder).finish(std::move(form));
}

// Returns the bytes of the character at `at`, or minus the bytes that are to be replaced by one U+FFFD.
int character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return -1;
  const int size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return -1;
  for (int i = 2; i < size; ++i)
    if ((byte(static_cast<size_t>(i)) & 0xC0U) != 0x80U) return -i;
  return size;
}

}  // namespace

Form valid_utf8(std::string_view text) {
  Form form{std::string(text), {}};
  if (is_ascii(text)) return form;
  Builder builder(form);
  size_t kept = 0;
  for (size_t at = 0; at < text.size();) {
    const int size = character_at(text, at);
    if (size < 0) {
      builder.keep(kept, at);
      kept = at + static_cast<size_t>(-size);
      builder.replace(at, kept, "\xEF\xBF\xBD");
    }
    at += static_cast<size_t>(std::abs(size));
  }
  builder.keep(kept, text.size());
  return std::move(builder).finish(std::move(form));
}

Result<Form> normalized(const Normalizer& normalizer, Form form, bool first, size_t most_bytes,
                        SplitPattern::Scratch& scratch) {
  if (const auto* unicode_form = std::get_if<UnicodeForm>(&normalizer)) {
    form = in_unicode_form(*unicode_form, std::move(form));
  } else if (const auto* prepend = std::get_if<Prepend>(&normalizer)) {
    form = with_prefix(*prepend, std::move(form), first);
  } else {
    ASSIGN_OR_RETURN(form,
                     with_replaced(std::get<Replace>(normalizer), std::move(form), most_bytes, scratch));
  }
  if (form.text.size() > most_bytes) return too_long(most_bytes);
  return form;
}

}  // namespace shardrun::data::bpe

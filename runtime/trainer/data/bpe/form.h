// Form: a text in the form that a model's pieces have, and where each of its bytes came from; and the normalizers of a
// tokenizer.json that make one.
//
// Thread rule: values and pure functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/bpe/split_pattern.h"

namespace shardrun::data::bpe {

struct Form {
  std::string text;
  // ends[i] is the byte of the original up to which byte i of `text` reaches; empty while the text is the original.
  std::vector<uint32_t> ends;

  // Returns the byte of the original up to which the first `size` bytes of the text reach; size ≥ 1.
  uint32_t original_end(size_t size) const {
    return ends.empty() ? static_cast<uint32_t>(size) : ends[size - 1];
  }
};

// Unicode's normalization forms. A stretch that changes ends, byte for byte, where the stretch of the original does.
enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
// Puts `prefix` in front of a text that is not empty; only where it does not stand there already, if `once`; only before
// the first stretch of a document, if `first`.
struct Prepend {
  std::string prefix;
  bool once = false, first = false;
};
struct Replace {
  SplitPattern pattern;
  std::string content;
};
using Normalizer = std::variant<UnicodeForm, Prepend, Replace>;

// Returns `text` with every byte that is not UTF-8 replaced by U+FFFD, as Python's "replace" does it.
Form valid_utf8(std::string_view text);

// Applies one normalizer to `form`. `first` says that the text is the beginning of a document. Errors are those of
// SplitPattern::find, and kInvalid where the text would have more than `most_bytes`.
Result<Form> normalized(const Normalizer& normalizer, Form form, bool first, size_t most_bytes,
                        SplitPattern::Scratch& scratch);

}  // namespace shardrun::data::bpe

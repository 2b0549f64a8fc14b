// SplitPattern: a regular expression of a tokenizer.json, as its pre-tokenizer or normalizer uses it.
//
// tokenizer.json is written for Oniguruma in Ruby's syntax; this is PCRE2, which agrees once the pattern is translated:
// \s, \S, \w and \W become Unicode's White_Space and Oniguruma's word characters, ^ and $ stand at lines. What would mean
// something else here is refused by name.
// Thread rule: immutable after compile; find is thread-safe with one Scratch for each thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/result.h"

namespace shardrun::data::bpe {

using base::Result;

struct Range {
  size_t begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};

class SplitPattern {
 public:
  // Returns the pattern compiled. kInvalid for what is no regular expression, or none that this translation covers.
  static Result<SplitPattern> compile(std::string_view expression);
  // Returns the pattern that matches `text` itself.
  static Result<SplitPattern> literal(std::string_view text);

  // What one thread needs while it looks for matches; serves any pattern.
  class Scratch {
   public:
    Scratch();

   private:
    friend class SplitPattern;
    std::unique_ptr<void, void (*)(void*)> matches_;
  };

  // Returns the first match at or after byte `from` of `text`, which is UTF-8; nullopt where there is none. kInvalid when
  // the pattern needs more steps than a pattern may.
  Result<std::optional<Range>> find(std::string_view text, size_t from, Scratch& scratch) const;

 private:
  using Code = std::unique_ptr<void, void (*)(void*)>;
  explicit SplitPattern(Code code) : code_(std::move(code)) {}
  Code code_;
};

}  // namespace shardrun::data::bpe

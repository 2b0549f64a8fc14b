// WordCutter: cuts a text into the words that merges never cross, as the pre-tokenizers of a tokenizer.json do.
//
// Thread rule: immutable; cut is thread-safe with one Scratch for each thread.
#pragma once

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/bpe/split_pattern.h"

namespace shardrun::data::bpe {

// What becomes of a match and of what stands between two: pieces of their own; matches left out; a match joined to what
// stands before it, or behind it; neighbours of one sort joined.
enum class Behaviour { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Split {
  SplitPattern pattern;
  Behaviour behaviour = Behaviour::kIsolated;
  bool inverted = false;  // what stands between matches is the match
};

class WordCutter {
 public:
  // Each split cuts the pieces of the one before as texts of their own. Without any the text is one word.
  explicit WordCutter(std::vector<Split> splits) : splits_(std::move(splits)) {}

  using Visit = std::function<Result<void>(Range)>;
  // Calls `visit` with each word of `text` from left to right; no word is empty. Errors are those of SplitPattern::find,
  // and what `visit` returns.
  Result<void> cut(std::string_view text, SplitPattern::Scratch& scratch, const Visit& visit) const;

 private:
  Result<void> cut_by(size_t split, std::string_view text, Range range, SplitPattern::Scratch& scratch,
                      const Visit& visit) const;
  std::vector<Split> splits_;
};

}  // namespace shardrun::data::bpe

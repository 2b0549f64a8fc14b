// Merges: byte-pair encoding of one word (Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with
// Subword Units"; over bytes as in Radford et al. 2019): the pair of neighbours whose merge ranks first is merged, the
// leftmost of equals, until no merge fits.
//
// Thread rule: immutable after make; encode is thread-safe with one Scratch for each thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::data::bpe {

using base::Result;

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
// Ids by piece.
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// What a model file says of its merges; pieces are bytes, whatever alphabet the file spells them in.
struct MergeRules {
  Vocabulary vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // first to last in rank
  bool bytes = false;                                       // words begin as bytes; else as characters
  bool whole_words = false;   // a word of the vocabulary is one token, whatever the merges make of it
  bool fuse_unknown = false;  // unknown neighbours are one token
  int32_t unknown = -1;       // the token of an unknown character; -1: it is left out
  std::array<int32_t, 256>
      byte_pieces{};  // "<0x00>" …: what an unknown character falls back to; -1: there is none
};

class Merges {
 public:
  // kInvalid for a merge of pieces that are not in the vocabulary.
  static Result<Merges> make(MergeRules rules);

  struct Symbol {
    int32_t id = 0;
    uint32_t end = 0;  // bytes of the word up to its end
  };
  // A thread's working memory; the symbols are what encode() returned last.
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<int32_t> before, after;
    std::vector<std::pair<uint64_t, int32_t>> queue;
  };

  // Returns the tokens of `word`, which is not empty; they stay in `scratch` until the next call.
  std::span<const Symbol> encode(std::string_view word, Scratch& scratch) const;

  const MergeRules& rules() const { return rules_; }

 private:
  struct Merge {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = 0;
    int32_t id = 0;
  };
  explicit Merges(MergeRules rules) : rules_(std::move(rules)) {}
  const Merge* find(int32_t left, int32_t right) const;
  void insert(Merge merge);
  void split(std::string_view word, std::vector<Symbol>& symbols) const;
  void merge_short(std::vector<Symbol>& symbols) const;
  void merge_long(Scratch& scratch) const;

  MergeRules rules_;
  std::vector<Merge> table_;  // open addressing; a power of two, at most half full
  std::array<int32_t, 256> byte_ids_{};
  Vocabulary single_;  // words that become one token
};

}  // namespace shardrun::data::bpe

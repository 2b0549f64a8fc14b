// BertLoader: decides which masked sentence pairs every rank trains on at every step. It has no hidden state.
//
// Each document of the token files is cut into chunks of T − 3 tokens (the last may be shorter, but has at least
// two); chunk i becomes example i:  [CLS] A [SEP] B [SEP], padded to T. The chunk is split at a uniformly drawn
// place; A is what stands before it. In half of the examples B is what stands behind it, in the others a span of
// the same length from a document drawn among the others (shorter where that document is), so that the length gives
// nothing away. For a RoBERTa, which judges no pairs, the chunk is one sentence of T − 2 tokens:  <s> A </s>.
// Of the tokens of A and B, 15 % (rounded, at least one) are targets; of these 80 % are replaced with [MASK], 10 %
// with a uniformly drawn id, and 10 % stay. Documents are split between tokens, not between sentences, because a
// token file knows no sentences.
//
// Positions are shuffled as in runtime/trainer/data/loader.h, so the resumable state is one integer here too; splits,
// partners and masks are drawn from (seed, position) and therefore differ from epoch to epoch.
// Source: Devlin et al. 2018, section 3.1 and appendix A; Liu et al. 2019, section 4.2 (DOC-SENTENCES).
// Thread rule: const functions are thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/data/corpus.h"
#include "runtime/trainer/data/loader.h"

namespace shardrun::data {

// Where a reader puts what it reads; the members are those of model::Batch.
struct BertRows {
  std::span<int32_t> tokens;         // (B,T)
  std::span<int32_t> targets;        // (B,T): the token that was there; -1 where none is to be predicted
  std::span<int32_t> segments;       // (B,T): 1 for B and its [SEP], else 0
  std::span<int32_t> lengths;        // (B): number of tokens that are not padding
  std::span<int32_t> next_sentence;  // (B): 0 when B follows A, 1 when it does not, -1 for no loss
};

class BertLoader {
 public:
  // kInvalid for files whose vocabulary has no [CLS], [SEP], [PAD] and [MASK] or the like, for fewer documents than an example
  // takes, for documents of one token and for a sequence_length that leaves no room for two. `key` is as in Corpus::open.
  // Memory: 8 bytes a document.
  static Result<BertLoader> create(Corpus corpus, int sequence_length, uint64_t seed, bool pairs,
                                   const std::string& key);

  const Corpus& corpus() const { return corpus_; }
  int64_t sequences() const { return first_examples_.back(); }
  int sequence_length() const { return sequence_length_; }

  // Returns the number of targets in `count` training positions from `position` on.
  int64_t training_targets(int64_t position, int64_t count) const;

  // Reads the rows of one micro-step of one rank, as Loader does. kCorrupt names a damaged token file.
  Result<void> read_training(int64_t position, const plan::BatchPlan& plan, int64_t micro_step,
                             int64_t data_parallel_rank, const BertRows& rows) const;

  // Works as Loader::read_validation, with the same masks every time; a slot beyond `count` is padding without
  // loss.
  Result<void> read_validation(int64_t first_slot, int64_t count, const BertRows& rows) const;
  // Every example has a target.
  bool validation_has_targets(int64_t count) const { return count > 0; }

 private:
  // The spans of the corpus from which an example is made.
  struct Example {
    int64_t a_begin = 0, a_size = 0, b_begin = 0, b_size = 0;
    bool follows = true;  // whether B does; of a single sentence always
    uint64_t key = 0;     // key of the draws that are left
  };
  BertLoader(Corpus corpus, int sequence_length, uint64_t seed, bool pairs,
             std::vector<int64_t> first_examples)
      : corpus_(std::move(corpus)),
        sequence_length_(sequence_length),
        seed_(seed),
        pairs_(pairs),
        first_examples_(std::move(first_examples)) {}
  Example example(int64_t index, uint64_t key) const;
  Example training_example(int64_t position) const;
  Result<void> write_example(const Example& example, const BertRows& row) const;
  void leave_out(const BertRows& row) const;
  void mask(const Example& example, const BertRows& row) const;

  Corpus corpus_;
  int sequence_length_ = 0;
  uint64_t seed_ = 0;
  bool pairs_ = true;
  // Index of each document's first example; the last element is the number of examples.
  std::vector<int64_t> first_examples_;
};

}  // namespace shardrun::data

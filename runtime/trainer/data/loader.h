// Loader: decides which tokens every rank trains on at every step. It has no hidden state.
//
// The corpus is cut into sequences of `sequence_length` (T) inputs and as many targets (the input shifted by one),
// so sequence i reads tokens [i·T, i·T + T] and every token but the first is a target exactly once. What is left at
// the end, fewer than T tokens, is not read. Documents of token files are packed as they stand: a sequence may hold
// many, and a long one spans several sequences. The first token of a document is no target, and neither is a token
// that carries no loss.
//
// Training reads one endless row of sequences. Position p lies in epoch p / n (n is the number of sequences in the
// corpus) and is sequence permutation(seed, epoch)[p mod n] of it: each epoch reads every sequence once, in its own
// order. The whole resumable state is one integer, the position of the next step's first sequence; with n, T and
// the seed, which must not change, it decides everything that follows.
//
// A step that starts at position p reads positions [p, p + global_batch), whatever the world size; BatchPlan says
// which rank reads which of them when. A slot of a micro-batch for which there is no sequence carries no loss.
//
// Thread rule: const functions are thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/result.h"
#include "runtime/plan/batch_plan.h"
#include "runtime/trainer/data/corpus.h"

namespace shardrun::data {

// The pure part maps positions to sequences. permuted_index is a keyed permutation of [0, count) that needs no
// table: a Feistel network on the next even power of two, walked until it lands inside (Black and Rogaway 2002,
// "cycle walking").
uint64_t permuted_index(uint64_t key, uint64_t index, uint64_t count);

// Returns what stands at `position` of the endless row of shuffled epochs over `count` items.
int64_t shuffled(uint64_t seed, int64_t position, int64_t count);

// Where a reader puts what it reads, each (B,T); the members are those of model::Batch.
struct Rows {
  std::span<int32_t> tokens;
  std::span<int32_t> targets;          // the next token; -1 carries no loss
  std::span<int32_t> document_begins;  // column at which each token's document begins; may be empty
};

class Loader {
 public:
  // kInvalid when the corpus is shorter than one sequence. `key` is as in Corpus::open.
  static Result<Loader> create(Corpus corpus, int sequence_length, uint64_t seed, const std::string& key);

  const Corpus& corpus() const { return corpus_; }
  int64_t sequences() const { return sequences_; }
  int sequence_length() const { return sequence_length_; }

  // Returns the sequence of the corpus that training position `position` reads.
  int64_t sequence_at(int64_t position) const { return shuffled(seed_, position, sequences_); }

  // Returns how many targets carry loss in `count` training positions from `position` on. Reads tokens only where a file
  // has tokens without loss. kCorrupt as below.
  Result<int64_t> training_targets(int64_t position, int64_t count) const;

  // Returns whether any target of the corpus carries loss, as far as its first 16 Mi tokens tell: true where there are more, and none
  // of those does. Reads up to the first that does. kCorrupt as below.
  Result<bool> has_targets() const;

  // Reads the rows of one micro-step of one rank in the step that starts at `position`. kCorrupt names a damaged
  // token file.
  Result<void> read_training(int64_t position, const plan::BatchPlan& plan, int64_t micro_step,
                             int64_t data_parallel_rank, const Rows& rows) const;

  // Validation reads `count` = min(wanted, sequences()) sequences, spread evenly over the corpus, the same ones
  // every time. Slot i < count reads sequence i·sequences()/count; further slots get targets of -1 (no loss).
  Result<void> read_validation(int64_t first_slot, int64_t count, const Rows& rows) const;
  // Returns whether any target of these `count` sequences carries loss; reads up to the first that does. kCorrupt as above.
  Result<bool> validation_has_targets(int64_t count) const;

 private:
  Loader(Corpus corpus, int sequence_length, uint64_t seed, int64_t sequences)
      : corpus_(std::move(corpus)), sequence_length_(sequence_length), seed_(seed), sequences_(sequences) {}
  Result<void> read_sequence(int64_t sequence, const Rows& row) const;
  void mark_documents(int64_t sequence, const Rows& row) const;
  Result<int64_t> count_targets(int64_t sequence) const;

  Corpus corpus_;
  int sequence_length_ = 0;
  uint64_t seed_ = 0;
  int64_t sequences_ = 0;
};

}  // namespace shardrun::data

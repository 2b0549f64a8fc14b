// Batches: the micro-batches of a job, whatever its network reads: rows of text, or masked sentence pairs.
//
// Positions, epochs and what a rank reads when are runtime/trainer/data/loader.h's. A Batches owns the memory of one
// micro-batch, which the next read overwrites.
//
// Errors: kInvalid for files that do not fit the network or each other; kCorrupt names a damaged token file.
// Thread rule: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/context.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/data/corpus.h"
#include "runtime/trainer/data/loader.h"
#include "runtime/trainer/model/model.h"
#include "runtime/trainer/train/network.h"

namespace shardrun::train {

struct BatchOptions {
  std::vector<std::string> training_files, validation_files;
  std::vector<spec::EvaluationSet> evaluations{};
  int sequence_length = 256;
  int64_t micro_batch = 1;
  uint64_t seed = 1;
  plan::ContextPlace context{};  // the tokens of each sequence that this rank computes
};

class Batches {
 public:
  static Result<std::unique_ptr<Batches>> open(const Network& network, const BatchOptions& options);
  virtual ~Batches() = default;

  virtual const data::Corpus& training_corpus() const = 0;
  virtual const data::Corpus* validation_corpus() const = 0;  // null without validation files
  // Of held-out data: set 0 is validation, which there must be; set 1 + i is evaluation i.
  virtual int64_t held_out_sequences(size_t set) const = 0;
  // Whether any target of `count` sequences of it, as they are spread over it, carries loss.
  virtual Result<bool> held_out_has_targets(size_t set, int64_t count) const = 0;

  // Targets that carry loss in `count` sequences from training position `position` on.
  virtual Result<int64_t> training_targets(int64_t position, int64_t count) const = 0;
  // Spans of the result are valid until the next read. Its scales are the caller's.
  virtual Result<model::Batch> read_training(int64_t position, const plan::BatchPlan& plan,
                                             int64_t micro_step, int64_t data_rank) = 0;
  virtual Result<model::Batch> read_held_out(size_t set, int64_t first_slot, int64_t count) = 0;
};

}  // namespace shardrun::train

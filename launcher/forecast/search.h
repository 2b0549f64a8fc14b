// The best layout of a training job on a number of nodes: every combination of strategy, shard degree, tensor degree,
// micro-batch, checkpointing and offload that solves the batch and fits the accelerator's memory, by predicted time.
//
// Thread rule: pure functions. 10,000 nodes take well under 2 s (tests/unit/forecast/search_test.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/forecast/memory.h"
#include "launcher/forecast/step.h"

namespace shardrun::launcher {

struct Question {
  Machine machine;
  ModelShape model;
  Traits traits;
  Constants constants;
  int64_t nodes = 1;
  int64_t global_batch = 1;  // sequences
  int sequence_length = 4096;
  int heads = 0;            // that a tensor degree must divide; 0: any
  Given given;              // of every layout
  int tensor_parallel = 0;  // only this; 0: every one
  bool as_offered = false;  // only what the stack has (Traits::offered)
  bool fp8 = false;
  // Only this; absent: every value.
  std::optional<spec::Checkpointing> checkpointing;
  bool optimizer_offload = true, shard_grad_op = true;  // may be chosen
};

struct Candidate {
  Layout layout;
  double seconds = 0.0, bytes = 0.0;
  bool fits = false;
};

// What another choice would cost.
struct Reason {
  std::string choice;            // in words
  std::optional<Layout> layout;  // absent: it does not fit
  double ratio = 1.0;            // of its step to the best one's
  double bytes = 0.0;            // of a rank, where it does not fit
};

struct Answer {
  std::vector<Candidate> candidates;  // every combination that solves the batch
  std::optional<Candidate> best;      // absent: nothing fits
  std::vector<Reason> reasons;
  std::string why_none;  // of no candidates: what does not divide, of the degrees that came furthest
};

Answer search(const Question& question);

// The same without its best candidate, which turned out to hold `bytes`, and without those that hold no less.
Answer without_best(Answer answer, double bytes);

// Ascending. O(√number).
std::vector<int64_t> divisors(int64_t number);
// The divisors of so many sequences, a rank's of a step, that a job can ask for as its micro-batch: up to 2^20.
std::vector<int64_t> micro_batches(int64_t local);

// "full_shard over 128", "no_shard"
std::string sharding_text(const Layout& layout);

}  // namespace shardrun::launcher

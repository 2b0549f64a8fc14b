// BatchPlan: how the sequences of one optimizer step are spread over data-parallel ranks and micro-steps.
//
// Every rank takes the same number of micro-steps, because every micro-step has collectives. All micro-steps but the
// last are full; the last divides what is left over the ranks as evenly as whole sequences allow, and the first ranks
// get one more. An even batch, global_batch = micro_batch × gradient_accumulation × data_parallel, is the case in which
// the last one is full too. The sequences of a step are numbered from 0; each is read by one rank in one micro-step.
//
// Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>

#include "runtime/base/fields.h"

namespace shardrun::plan {

struct BatchPlan {
  int64_t global_batch = 0;  // sequences of a step
  int64_t micro_batch = 0;   // most sequences that a rank computes at once
  int64_t gradient_accumulation = 0;
  int64_t data_parallel = 0;

  struct Share {
    int64_t begin = 0, count = 0;
  };
  // Returns, for a possible plan, the sequences [begin, begin + count) of the step which `data_rank` reads in
  // `micro_step`. count ≤ micro_batch.
  Share share(int64_t micro_step, int64_t data_rank) const;
  // Returns how many sequences the rank reads in all micro-steps.
  int64_t sequences_of(int64_t data_rank) const;
  // Says whether the numbers belong together: there are as few micro-steps as global_batch takes, and none
  // of them is zero.
  bool is_possible() const;
  bool is_even() const {
    return global_batch % micro_batch == 0 && global_batch / micro_batch % data_parallel == 0;
  }
};

void fields(auto& visit, base::Is<BatchPlan> auto& batch) {
  visit("global_batch", batch.global_batch);
  visit("micro_batch", batch.micro_batch);
  visit("gradient_accumulation", batch.gradient_accumulation);
  visit("data_parallel", batch.data_parallel);
}

// Returns the plan whose global_batch is the product of the three.
BatchPlan even_batch(int64_t micro_batch, int64_t gradient_accumulation, int64_t data_parallel);

}  // namespace shardrun::plan

// Block times: how long a rank takes to compute one block of the built-in trainer, forward and backward, with the
// trainer's own model code on made-up tokens.
//
// Every rank measures at once, as ranks compute at once; seconds are CPU seconds (record/calibration.h says why).
// Thread rule: one thread, the same calls on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/record/calibration.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::measure {

// Micro-batch, sequence length, hidden, heads, heads of keys and values, ffn, vocabulary.
using ProbeSizes = std::array<int64_t, 7>;
record::StepProbe probe_of(const ProbeSizes& sizes);
// Returns shapes from small to large; the times of the shapes between follow from theirs.
std::vector<record::StepProbe> probes_to_make();

// The blocks of one shape. A pass of a block is now and then much longer than most; a step has many of them and takes what they take on
// average. So what counts is the mean over a window of some hundredths of a second, about a step of a small model, and of all ranks'
// windows, whose quartiles a probe has, the median: what disturbs a machine for longer than a window disturbs some of them.
class BlockTimes {
 public:
  BlockTimes(record::StepProbe shape, int windows) : probe_(std::move(shape)), windows_(windows) {}

  // Adds so many windows of every rank. `cpus` is the number of OpenMP threads of this rank. Called again at another moment it
  // adds to those before.
  base::Result<void> measure(comm::Communicator& world, int cpus);
  const record::StepProbe& probe() const { return probe_; }

 private:
  record::StepProbe probe_;
  int windows_;
  std::vector<std::vector<double>> pooled_;  // the windows' means, by kind of pass
};

}  // namespace shardrun::measure

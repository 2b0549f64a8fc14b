// What a rank of the built-in trainer holds at its peak, as a formula: for a search over many layouts, and before a run,
// where asking the trainer's own code (runtime/trainer/train/memory_plan.h, which is exact) would cost a process.
//
// Sources: runtime/trainer/model/llama_buffers.h, runtime/trainer/shard/engine.cpp, plugins/abi/comm_v1.h. Within 5 % of measured peaks:
// tests/process/train/plan_memory_test.cpp. Units: bytes of one rank, bf16. Thread rule: pure functions.
#pragma once

#include "launcher/forecast/step.h"

namespace shardrun::launcher {

struct OwnMemoryQuestion {
  ModelShape model;
  Layout layout;
  int64_t world = 1;  // ranks of the job
  int heads = 1;
  int prefetch = 1;
  bool saves_while_training = false;
};

// A Llama's. What lies in files is not in it, but for the window of it.
double own_memory(const OwnMemoryQuestion& question);

}  // namespace shardrun::launcher

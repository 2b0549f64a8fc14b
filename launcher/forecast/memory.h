// What a rank holds while it trains, estimated for any stack: what the search discards layouts by, thousands at a time.
// The built-in trainer's own plan (runtime/plan/rank_memory.h) is exact, and is asked about the layout that is chosen.
//
// Units: bytes of one rank. Thread rule: pure functions.
#pragma once

#include "launcher/forecast/certainty.h"
#include "launcher/forecast/step.h"
#include "runtime/plan/rank_memory.h"

namespace shardrun::launcher {

struct MemoryForecast {
  double state = 0.0;        // masters, moments, gradient and bf16 copy of its shard
  double gathered = 0.0;     // whole blocks, one ahead, and their gradients
  double activations = 0.0;  // kept for backward, and of the layer that is worked on
  double logits = 0.0;
  double overhead = 0.0;  // contexts, connections, and what an allocator loses

  double total() const { return state + gathered + activations + logits + overhead; }
};

// The share of a device's memory that can be planned with: drivers and allocators need the rest.
inline constexpr double kUsableMemory = 0.95;

// What published runs held, as factors of total(): four of five lie between (tests/unit/forecast/calibration_test.cpp). Their
// allocators also keep what is free for the time being, and give it back before they fail.
inline constexpr Interval kHeldOfEstimate{0.915, 1.435};
// And jobs of the built-in trainer, of planned_memory: tests/process/train/plan_memory_test allows no more.
inline constexpr Interval kHeldOfPlan{0.98, 1.02};

// Returns `bytes` times the ends of an interval of factors.
constexpr Interval times(const Interval& factors, double bytes) {
  return {factors.low * bytes, factors.high * bytes};
}

MemoryForecast forecast_memory(const ModelShape& model, const Layout& layout, const Traits& traits,
                               int per_node);

// Returns what a rank of the built-in trainer holds where `job` runs as `layout` has it.
plan::MemoryPlan planned_memory(plan::RankOptions job, const Layout& layout, const plan::RankPlace& place);

}  // namespace shardrun::launcher

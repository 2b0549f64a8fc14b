// Pipeline: how the layers of a model are cut into stages, and what a stage does in which order. Pure arithmetic.
//
// Each stage has some neighbouring layers, the first one the embedding too and the last one the head. Every micro-batch passes
// through all of them and its gradient back: one forward, one backward (1F1B), which ends a micro-batch as early as it can, so
// that stage s of P holds the activations of at most P − s micro-batches, however many a step has:
//
//   3 stages, 4 micro-steps     stage 0   F0 F1 F2    B0 F3 B1    B2    B3
//                               stage 1      F0 F1 B0 F2 B1 F3 B2    B3
//                               stage 2         F0B0  F1B1  F2B2  F3B3
//
// Contributions to a gradient come in the order of micro-steps on every stage, as they do without a pipeline.
//
// Thread rule: plain values, pure functions.
// Source: Narayanan et al. 2021 (Memory-Efficient Pipeline-Parallel DNN Training), Megatron-LM's schedule without interleaving.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::plan {

// Which stage of how many; of one: there is no pipeline.
struct Stage {
  int number = 0, stages = 1;

  bool is_first() const { return number == 0; }
  bool is_last() const { return number + 1 == stages; }
  // Forwards before the first backward, beside the one that it follows.
  int64_t warm_up(int64_t micro_steps) const { return std::min<int64_t>(stages - 1 - number, micro_steps); }
  // Micro-batches whose activations are held at once, at most.
  int64_t in_flight(int64_t micro_steps) const { return std::min<int64_t>(stages - number, micro_steps); }
};

// What is done without looking at another micro-batch in between: forward, or backward, or both.
struct Turn {
  int64_t micro_step = 0;
  bool forward = true, backward = true;

  friend bool operator==(const Turn&, const Turn&) = default;
};

// The turns of a step of `micro_steps`, by number from 0. Without `backward` it is forward alone, as a validation's. On the last
// stage the two of a micro-step are one turn.
int64_t turn_count(const Stage& stage, int64_t micro_steps, bool backward);
Turn turn_at(const Stage& stage, int64_t micro_steps, bool backward, int64_t number);

// Returns the share of a step's time in which a stage has nothing to do, where all stages take as long.
double bubble_share(int stages, int64_t micro_steps);

// Returns the first layer of each stage, and behind them the number of layers, so that the costliest stage costs as little as
// it can; each has a layer. Costs are in any unit: of every layer, of what stands before the first and behind the last one.
// Among equal cuts early stages, which hold more activations, get the fewest layers. More stages than layers are a bug (CHECK).
std::vector<int> cut_layers(std::span<const double> layers, double before, double behind, int stages);

}  // namespace shardrun::plan

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
// Interleaved, a stage has V chunks of neighbouring layers and not one: chunk c of stage s is part c·P + s of the model, so that
// a micro-batch passes through all stages V times, and what is behind the last stage goes on at the first. Stages wait for a
// V-th of the time and send V times as much. P micro-batches at a time go through a chunk before the next one is theirs:
//
//   2 stages of 2 chunks, 2 micro-steps, a and b:   stage 0   Fa0 Fa1 Fb0 Fb1     Bb0 Bb1 Ba0 Ba1
//                                                   stage 1       Fa0 Fa1 Fb0Bb0 Fb1Bb1 Ba0 Ba1
//
// Where the micro-steps are no multiple of P, the turns of those that are missing in the last such group are left out: who waits for
// whom, and how much is held, is then a part of what it would be, so nothing that is true of whole groups can break.
// Contributions to a gradient come in the order of micro-steps on every stage, as they do without a pipeline.
//
// Thread rule: plain values, pure functions; Turns and HeldLayers are thread-compatible.
// Source: Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training (1F1B), and Efficient Large-Scale Language Model
// Training on GPU Clusters Using Megatron-LM, section 2.2 (interleaved).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace shardrun::plan {

// Which stage of how many, and how many chunks of layers each has; of one stage: there is no pipeline.
struct Stage {
  int number = 0, stages = 1, chunks = 1;

  bool is_first() const { return number == 0; }
  bool is_last() const { return number + 1 == stages; }
  // Whether this chunk of this stage is where the model begins, or ends: all others pass on what they compute.
  bool begins(int chunk) const { return is_first() && chunk == 0; }
  bool ends(int chunk) const { return is_last() && chunk + 1 == chunks; }
  // Forwards of a chunk before the first backward, beside the one that it follows. One more is the most that are ever held: P·V + P − 1
  // on the first stage, and P without interleaving.
  int64_t warm_up() const {
    const int behind = stages - 1 - number;
    return chunks == 1 ? behind : int64_t{chunks - 1} * stages + 2 * behind;
  }
};

// What is done of one chunk without looking at another micro-batch in between: forward, or backward, or both.
struct Turn {
  int64_t micro_step = 0;
  int chunk = 0;
  bool forward = true, backward = true;

  friend bool operator==(const Turn&, const Turn&) = default;
};

// The turns of a step of `micro_steps`, one after the other. Without `backward` it is forward alone, as a validation's. On the last
// stage the two of a micro-step's last chunk are one turn.
class Turns {
 public:
  Turns(const Stage& stage, int64_t micro_steps, bool backward);
  // Returns the turn that comes next; nullopt after the last.
  std::optional<Turn> next();

 private:
  Turn turn_of_whole_groups();

  Stage stage_;
  int64_t micro_steps_ = 0;
  int64_t forwards_ = 0, backwards_ = 0;          // that are done
  int64_t all_forwards_ = 0, all_backwards_ = 0;  // as if the last group were whole
};

// Where the activations of a stage's layers lie, in equal pieces of memory, one for a layer: each turn's forward takes those of its chunk,
// and its backward is the last to use them.
class HeldLayers {
 public:
  // `layers` of each chunk.
  explicit HeldLayers(std::vector<int> layers);
  // Returns the pieces of a turn's layers, in their order, valid until it ends.
  std::span<const int> begin(const Turn& turn);
  // After the turn, whether a backward of what it went forward with follows or not.
  void end(const Turn& turn, bool backward_follows);
  // Pieces that were used so far.
  int pieces() const { return pieces_; }

 private:
  std::vector<int> layers_;
  std::vector<std::deque<std::vector<int>>> held_;  // by chunk, oldest micro-batch first
  std::vector<int> free_;
  int pieces_ = 0;
};

// Returns the pieces that HeldLayers uses in a step.
int64_t most_held(const Stage& stage, int64_t micro_steps, const std::vector<int>& layers);

// Returns for how many micro-steps' time a stage has nothing to do in a step, where all chunks take as long.
constexpr double idle_micro_steps(int stages, int chunks) {
  return static_cast<double>(stages - 1) / chunks;
}
// Returns the share of a step's time that this is. Where chunks are several and the last group is not whole it is at most that: the
// group counts as if it were.
double bubble_share(int stages, int chunks, int64_t micro_steps);

// Returns the first layer of each stage, and behind them the number of layers, so that the costliest stage costs as little as
// it can; each has at least `least` layers. Costs are in any unit: of every layer, of what stands before the first and behind the last
// one. Among equal cuts early stages, which hold more activations, get the fewest layers. Too few layers are a bug (CHECK).
std::vector<int> cut_layers(std::span<const double> layers, double before, double behind, int stages,
                            int least = 1);

// Returns the layers of each chunk of a stage that has so many of them: as equal as they can be, with more of them in late chunks,
// which are held for less long, or on the last stage, whose last chunk has the head, in early ones.
std::vector<int> layers_of_chunks(const Stage& stage, int layers);

}  // namespace shardrun::plan

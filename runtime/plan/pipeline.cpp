#include "runtime/plan/pipeline.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/result.h"

namespace shardrun::plan {
namespace {

int64_t rounded_up(int64_t micro_steps, int stages) {
  return (micro_steps + stages - 1) / stages * stages;
}

// Number `at` of all forwards of a stage; backwards have the chunks in the opposite order.
Turn turn_of(const Stage& stage, int64_t at, bool backward) {
  const int64_t of_group = int64_t{stage.stages} * stage.chunks, in_group = at % of_group;
  const int chunk = static_cast<int>(in_group / stage.stages);
  return {at / of_group * stage.stages + in_group % stage.stages, backward ? stage.chunks - 1 - chunk : chunk,
          !backward, backward};
}

}  // namespace

Turns::Turns(const Stage& stage, int64_t micro_steps, bool backward)
    : stage_(stage),
      micro_steps_(micro_steps),
      all_forwards_(rounded_up(micro_steps, stage.stages) * stage.chunks),
      all_backwards_(backward ? all_forwards_ : 0) {}

std::optional<Turn> Turns::next() {
  while (forwards_ < all_forwards_ || backwards_ < all_backwards_) {
    const Turn turn = turn_of_whole_groups();
    if (turn.micro_step < micro_steps_) return turn;
  }
  return std::nullopt;
}

Turn Turns::turn_of_whole_groups() {
  const bool goes_forward =
      forwards_ < all_forwards_ && (all_backwards_ == 0 || forwards_ - backwards_ <= stage_.warm_up());
  if (!goes_forward) return turn_of(stage_, backwards_++, /*backward=*/true);
  Turn turn = turn_of(stage_, forwards_++, /*backward=*/false);
  if (all_backwards_ == 0 || !stage_.ends(turn.chunk)) return turn;
  const Turn back = turn_of(stage_, backwards_++, /*backward=*/true);
  SHARDRUN_CHECK(back.micro_step == turn.micro_step && back.chunk == turn.chunk);
  turn.backward = true;
  return turn;
}

HeldLayers::HeldLayers(std::vector<int> layers) : layers_(std::move(layers)), held_(layers_.size()) {}

std::span<const int> HeldLayers::begin(const Turn& turn) {
  auto& held = held_.at(turn.chunk);
  if (!turn.forward) return held.front();
  std::vector<int> taken;
  for (int layer = 0; layer < layers_[turn.chunk]; ++layer) {
    taken.push_back(free_.empty() ? pieces_++ : free_.back());
    if (!free_.empty()) free_.pop_back();
  }
  held.push_back(std::move(taken));
  return held.back();
}

void HeldLayers::end(const Turn& turn, bool backward_follows) {
  if (!turn.backward && backward_follows) return;
  auto& held = held_.at(turn.chunk);
  free_.insert(free_.end(), held.front().rbegin(), held.front().rend());
  held.pop_front();
}

int64_t most_held(const Stage& stage, int64_t micro_steps, const std::vector<int>& layers) {
  // Warming up takes less than two groups, and then all groups are alike.
  const int64_t settled = int64_t{4} * stage.stages;
  HeldLayers held(layers);
  Turns turns(stage, std::min(micro_steps, settled), /*backward=*/true);
  while (const auto turn = turns.next()) {
    held.begin(*turn);
    held.end(*turn, /*backward_follows=*/true);
  }
  return held.pieces();
}

double bubble_share(int stages, int chunks, int64_t micro_steps) {
  const int64_t in_groups = chunks == 1 ? micro_steps : rounded_up(micro_steps, stages);
  return 1.0 - static_cast<double>(micro_steps) /
                   (static_cast<double>(in_groups) + idle_micro_steps(stages, chunks));
}

std::vector<int> cut_layers(std::span<const double> layers, double before, double behind, int stages,
                            int least) {
  const int count = static_cast<int>(layers.size());
  SHARDRUN_CHECK(stages >= 1 && least >= 1 && stages * least <= count);
  std::vector<double> up_to(1, 0.0);  // the sum of the layers before each
  for (const double layer : layers) up_to.push_back(up_to.back() + layer);
  // The cost of the costliest of `stage` + 1 stages that have the first `end` layers, and where the last of them begins.
  struct Best {
    double cost = std::numeric_limits<double>::infinity();
    int begin = 0;
  };
  std::vector<std::vector<Best>> best(stages, std::vector<Best>(count + 1));
  for (int end = least; end <= count; ++end)
    best[0][end] = {before + up_to[end] + (stages == 1 ? behind : 0.0), 0};
  for (int stage = 1; stage < stages; ++stage) {
    const double extra = stage + 1 == stages ? behind : 0.0;
    for (int end = (stage + 1) * least; end <= count; ++end) {
      for (int begin = stage * least; begin + least <= end; ++begin) {
        const double cost = std::max(best[stage - 1][begin].cost, up_to[end] - up_to[begin] + extra);
        if (cost < best[stage][end].cost) best[stage][end] = {cost, begin};
      }
    }
  }
  std::vector<int> first(stages + 1, count);
  for (int stage = stages - 1; stage >= 0; --stage) first[stage] = best[stage][first[stage + 1]].begin;
  return first;
}

std::vector<int> layers_of_chunks(const Stage& stage, int layers) {
  const int each = layers / stage.chunks, more = layers % stage.chunks;
  std::vector<int> chunks(stage.chunks, each);
  for (int i = 0; i < more; ++i) ++chunks[stage.is_last() ? i : stage.chunks - 1 - i];
  return chunks;
}

}  // namespace shardrun::plan

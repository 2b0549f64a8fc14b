#include "runtime/plan/pipeline.h"

#include <limits>

#include "runtime/base/result.h"

namespace shardrun::plan {

int64_t turn_count(const Stage& stage, int64_t micro_steps, bool backward) {
  return backward && stage.warm_up(micro_steps) > 0 ? 2 * micro_steps : micro_steps;
}

Turn turn_at(const Stage& stage, int64_t micro_steps, bool backward, int64_t number) {
  SHARDRUN_CHECK(number >= 0 && number < turn_count(stage, micro_steps, backward));
  if (!backward) return {number, true, false};
  const int64_t warm_up = stage.warm_up(micro_steps), in_pairs = 2 * (micro_steps - warm_up);
  if (warm_up == 0) return {number, true, true};
  if (number < warm_up) return {number, true, false};
  const int64_t after = number - warm_up;
  if (after >= in_pairs) return {micro_steps - warm_up + after - in_pairs, false, true};
  if (after % 2 == 0) return {warm_up + after / 2, true, false};
  return {after / 2, false, true};
}

double bubble_share(int stages, int64_t micro_steps) {
  const double waiting = stages - 1;
  return waiting / (waiting + static_cast<double>(micro_steps));
}

std::vector<int> cut_layers(std::span<const double> layers, double before, double behind, int stages) {
  const int count = static_cast<int>(layers.size());
  SHARDRUN_CHECK(stages >= 1 && stages <= count);
  std::vector<double> up_to(1, 0.0);  // the sum of the layers before each
  for (const double layer : layers) up_to.push_back(up_to.back() + layer);
  // The cost of the costliest of `stage` + 1 stages that have the first `end` layers, and where the last of them begins.
  struct Best {
    double cost = std::numeric_limits<double>::infinity();
    int begin = 0;
  };
  std::vector<std::vector<Best>> best(stages, std::vector<Best>(count + 1));
  for (int end = 1; end <= count; ++end)
    best[0][end] = {before + up_to[end] + (stages == 1 ? behind : 0.0), 0};
  for (int stage = 1; stage < stages; ++stage) {
    const double extra = stage + 1 == stages ? behind : 0.0;
    for (int end = stage + 1; end <= count; ++end) {
      for (int begin = stage; begin < end; ++begin) {
        const double cost = std::max(best[stage - 1][begin].cost, up_to[end] - up_to[begin] + extra);
        if (cost < best[stage][end].cost) best[stage][end] = {cost, begin};
      }
    }
  }
  std::vector<int> first(stages + 1, count);
  for (int stage = stages - 1; stage >= 0; --stage) first[stage] = best[stage][first[stage + 1]].begin;
  return first;
}

}  // namespace shardrun::plan

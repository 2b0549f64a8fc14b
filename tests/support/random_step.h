// Steps of random models on random groups, the same ones in every run.
#pragma once

#include <random>
#include <vector>

#include "runtime/plan/sharded_state.h"
#include "runtime/plan/step.h"

namespace shardrun::tests {

struct RandomStep {
  plan::StepShape shape;
  plan::StateOptions options;
  int group_size = 1;
};

// Up to 7 blocks, of which some are visited again anywhere, also one behind the other.
inline RandomStep random_step(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  RandomStep step;
  const int blocks = 1 + below(7), revisits = below(3) == 0 ? below(4) : 0;
  auto& visits = step.shape.visits;
  for (int block = 0; block < blocks; ++block) visits.push_back(block);
  for (int i = 0; i < revisits; ++i)
    visits.insert(visits.begin() + below(static_cast<int>(visits.size()) + 1), below(blocks));
  step.group_size = 1 + below(3);
  step.shape.micro_steps = 1 + below(3);
  step.shape.backward = below(5) > 0;
  step.shape.prefetch = below(4);
  step.shape.replicated = below(2) == 1;
  step.options = {.prefetch = step.shape.prefetch,
                  .accumulates = step.shape.micro_steps > 1,
                  .revisits = revisits > 0,
                  .keeps_parameters = below(3) == 0};
  if (below(2) == 1) step.options.layers = {below(blocks), blocks - below(2)};
  step.options.tied = below(2) == 1;
  step.shape.looks_up = below(2) == 1;
  step.shape.buffers = plan::buffer_counts(step.group_size, blocks, step.options);
  return step;
}

}  // namespace shardrun::tests

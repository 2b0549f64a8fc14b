// AdamW with its moments in 8 bits, over several ranks and through checkpoints.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

train::SessionOptions packed(const Folder& folder, int world_size) {
  auto options = tiny_options(folder, world_size);
  options.packed_moments = true;
  return options;
}

}  // namespace

TEST_CASE("8-bit AdamW: the curve is AdamW's within a hundredth, under every strategy") {
  const Folder folder;
  const RunOptions steps{.loop = {.steps = 40}};
  const auto whole = run_world(1, tiny_options(folder, 1), steps),
             alone = run_world(1, packed(folder, 1), steps);
  require_success(whole);
  require_success(alone);
  CHECK(alone[0].losses != whole[0].losses);
  double worst = largest_difference(alone[0].losses, whole[0].losses);
  for (const int shard_degree : {2, 1}) {
    const auto ranks = run_world(2, packed(folder, 2), {.loop = {.steps = 40}, .shard_degree = shard_degree});
    require_success(ranks);
    worst = std::max(worst, largest_difference(ranks[0].losses, whole[0].losses));
  }
  MESSAGE("furthest from AdamW's loss: " << worst << " of " << whole[0].losses.back());
  CHECK(worst < 0.01 * whole[0].losses.back());
}

TEST_CASE(
    "8-bit AdamW: a run that stops goes on with the bits of one that did not, and saves beside training") {
  const Folder folder, kept;
  auto options = packed(folder, 2);
  options.saves_while_training = true;
  const auto whole = run_world(2, options, {.loop = {.steps = 8}});
  require_success(whole);
  RunOptions run{.loop = {.steps = 8, .checkpoint_every_steps = 3}};
  run.checkpoint_directory = kept.path() + "/checkpoints";
  run.stop_at_step = 5;
  const auto first = run_world(2, options, run);
  require_success(first);
  REQUIRE(first[0].stopped);
  run.stop_at_step = -1;
  const auto second = run_world(2, options, run);
  require_success(second);
  auto losses = first[0].losses;
  losses.insert(losses.end(), second[0].losses.begin(), second[0].losses.end());
  CHECK(losses == whole[0].losses);
}

TEST_CASE("8-bit AdamW: goes on from AdamW's checkpoint, and AdamW from its") {
  const Folder folder, kept;
  RunOptions run{.loop = {.steps = 12}};
  run.checkpoint_directory = kept.path() + "/checkpoints";
  const auto whole = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 12}});
  require_success(whole);
  std::vector<double> losses;
  const int64_t stops[] = {4, 8, -1};
  for (int part = 0; part < 3; ++part) {
    run.stop_at_step = stops[part];
    const auto ranks = run_world(1, part == 1 ? packed(folder, 1) : tiny_options(folder, 1), run);
    require_success(ranks);
    losses.insert(losses.end(), ranks[0].losses.begin(), ranks[0].losses.end());
  }
  CHECK(largest_difference(losses, whole[0].losses) < 0.01 * losses.back());
}

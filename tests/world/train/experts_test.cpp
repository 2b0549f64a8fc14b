// A mixture of experts, trained over every kind of mesh.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

model::LlamaConfig& config_of(train::SessionOptions& options) {
  return std::get<model::LlamaConfig>(options.model);
}

train::SessionOptions mixture(const Folder& folder, int world_size, int64_t micro_batch = 1) {
  auto options = tiny_options(folder, world_size, micro_batch);
  config_of(options).experts = {.count = 8, .per_token = 2, .normalize = true, .balance = 0.02};
  return options;
}

}  // namespace

TEST_CASE("experts: the loss follows one curve under every strategy, and falls") {
  const Folder folder;
  const RunOptions steps{.loop = {.steps = 8}};
  const auto alone = run_world(1, mixture(folder, 1), steps);
  require_success(alone);
  CHECK(alone[0].losses.back() < alone[0].losses.front() - 0.5);
  const struct {
    int world, shard_degree;
    bool keeps;
  } meshes[] = {{2, 2, false}, {4, 4, false}, {4, 4, true}, {4, 2, false}, {4, 1, false}};
  for (const auto& [world, shard_degree, keeps] : meshes) {
    CAPTURE(world);
    CAPTURE(shard_degree);
    CAPTURE(keeps);
    auto options = mixture(folder, world);
    options.keeps_parameters = keeps;
    const auto ranks = run_world(world, options, {.loop = {.steps = 8}, .shard_degree = shard_degree});
    require_success(ranks);
    CHECK(largest_difference(ranks[0].losses, alone[0].losses) < 1e-5);
    CHECK(std::abs(*ranks[0].validation_loss - *alone[0].validation_loss) < 1e-5);
  }
}

TEST_CASE("experts: recomputation, and activations in a file, leave every bit as it is") {
  const Folder folder;
  const RunOptions steps{.loop = {.steps = 6}};
  for (const auto compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
    auto plain = mixture(folder, 1, 2);
    plain.compute = compute;
    const auto expected = run_world(1, plain, steps);
    require_success(expected);
    for (const auto level : {model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
      auto options = plain;
      options.checkpointing = level;
      const auto again = run_world(1, options, steps);
      require_success(again);
      CHECK(again[0].losses == expected[0].losses);
    }
    auto offloaded = plain;
    offloaded.activation_offload = true;
    offloaded.offload_directory = folder.path();
    const auto again = run_world(1, offloaded, steps);
    require_success(again);
    CHECK(again[0].losses == expected[0].losses);
  }
}

TEST_CASE("experts: the balance's loss is a part of training and none of validation") {
  const Folder folder;
  const RunOptions one{.loop = {.steps = 1}};
  auto none = mixture(folder, 1), some = none;
  config_of(none).experts.balance = 0.0;
  config_of(some).experts.balance = 1.0;
  none.schedule.peak = some.schedule.peak = 0.0;
  none.schedule.minimum = some.schedule.minimum = 0.0;
  const auto without = run_world(1, none, one), with = run_world(1, some, one);
  require_success(without);
  require_success(with);
  // Of 8 experts that share all choices evenly, E·Σ f·p is the number of choices of a token.
  CHECK(with[0].losses[0] - without[0].losses[0] == doctest::Approx(2.0).epsilon(0.05));
  CHECK(*with[0].validation_loss == doctest::Approx(*without[0].validation_loss).epsilon(1e-9));
}

TEST_CASE("experts: a run that stops goes on from its checkpoint with the bits of one that did not") {
  const Folder folder, kept;
  const auto whole = run_world(2, mixture(folder, 2), {.loop = {.steps = 8}});
  require_success(whole);
  RunOptions run{.loop = {.steps = 8}};
  run.checkpoint_directory = kept.path() + "/checkpoints";
  run.stop_at_step = 4;
  const auto first = run_world(2, mixture(folder, 2), run);
  require_success(first);
  REQUIRE(first[0].stopped);
  run.stop_at_step = -1;
  const auto second = run_world(2, mixture(folder, 2), run);
  require_success(second);
  auto losses = first[0].losses;
  losses.insert(losses.end(), second[0].losses.begin(), second[0].losses.end());
  CHECK(losses == whole[0].losses);
}

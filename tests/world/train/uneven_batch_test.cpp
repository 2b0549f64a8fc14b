#include <doctest/doctest.h>

#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

// Returns the tiny job with a global batch that its ranks need not divide.
train::SessionOptions uneven_options(const Folder& folder, int64_t global_batch, int64_t micro_batch,
                                     int data_parallel) {
  auto options = tiny_options(folder, 1, micro_batch);
  options.global_batch = global_batch;
  options.gradient_accumulation =
      (global_batch + micro_batch * data_parallel - 1) / (micro_batch * data_parallel);
  return options;
}

}  // namespace

TEST_CASE("training: an uneven batch follows the curve of one rank, with every strategy") {
  const Folder folder;
  constexpr int64_t kGlobalBatch = 11;
  const RunOptions steps{.loop = {.steps = 12}};
  const auto alone = run_world(1, uneven_options(folder, kGlobalBatch, 1, 1), steps);
  require_success(alone);
  struct Case {
    const char* name;
    int world_size, micro_batch, shard_degree, tensor_parallel;
    bool keeps_parameters;
  };
  for (const Case& spread :
       {Case{"full_shard, 6 and 5", 2, 2, 0, 1, false},
        Case{"full_shard, 4, 4 and 3 with an empty micro-batch", 3, 3, 0, 1, false},
        Case{"full_shard, one partial micro-step", 4, 8, 0, 1, false},
        Case{"hybrid_shard", 4, 2, 2, 1, false}, Case{"no_shard", 3, 1, 1, 1, false},
        Case{"shard_grad_op", 4, 1, 4, 1, true}, Case{"tp 2 × full 2", 4, 4, 2, 2, false}}) {
    CAPTURE(spread.name);
    auto options =
        uneven_options(folder, kGlobalBatch, spread.micro_batch, spread.world_size / spread.tensor_parallel);
    options.keeps_parameters = spread.keeps_parameters;
    const RunOptions run{.loop = {.steps = 12},
                         .shard_degree = spread.shard_degree,
                         .tensor_parallel = spread.tensor_parallel};
    const auto ranks = run_world(spread.world_size, options, run);
    require_success(ranks);
    CHECK(largest_difference(ranks[0].losses, alone[0].losses) < 1e-5);
    CHECK(*ranks[0].validation_loss == doctest::Approx(*alone[0].validation_loss).epsilon(1e-5));
    const auto again = run_world(spread.world_size, options, run);
    for (const RankRun& rank : again) CHECK(rank.losses == ranks[0].losses);
  }
  const auto floored = run_world(2, uneven_options(folder, 10, 1, 2), steps);
  require_success(floored);
  CHECK(largest_difference(floored[0].losses, alone[0].losses) > 1e-3);
}

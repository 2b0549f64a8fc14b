// What families of models add to a Llama, trained over every kind of mesh.
#include <doctest/doctest.h>

#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

TEST_CASE(
    "training: what families add to a Llama follows one curve on every mesh and with every recomputation") {
  const Folder folder;
  const auto adapted = [&](int trait, int data_parallel) {
    auto options = tiny_options(folder, data_parallel);
    auto& config = std::get<model::LlamaConfig>(options.model);
    if (trait == 0) config.qkv_bias = true;
    if (trait == 1) config.head_norms = config.tied_embeddings = true, config.head_size = 12;
    if (trait == 2) config.window = 5, config.rope = {spec::RopeScaling::kLinear, 4.0};
    return options;
  };
  const auto plain = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 8}});
  for (const int trait : {0, 1, 2}) {
    CAPTURE(trait);
    const auto alone = run_world(1, adapted(trait, 1), {.loop = {.steps = 8}});
    require_success(alone);
    CHECK(largest_difference(alone[0].losses, plain[0].losses) > 1e-6);
    for (const auto level : {model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
      auto options = adapted(trait, 1);
      options.checkpointing = level;
      const auto again = run_world(1, options, {.loop = {.steps = 8}});
      require_success(again);
      CHECK(again[0].losses == alone[0].losses);
    }
    for (const bool cut : {false, true}) {
      CAPTURE(cut);
      const int tensor_parallel = cut ? 2 : 1;
      const auto ranks =
          run_world(4, adapted(trait, 4 / tensor_parallel),
                    {.loop = {.steps = 8}, .shard_degree = 2, .tensor_parallel = tensor_parallel});
      require_success(ranks);
      CHECK(largest_difference(ranks[0].losses, alone[0].losses) < 1e-5);
    }
  }
}

// Stages of a pipeline follow the curve of one rank that has all layers.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

// Five layers, which no number of stages divides evenly, for `readers` data-parallel ranks.
train::SessionOptions deep_options(const Folder& folder, int readers, int64_t micro_batch = 1) {
  auto options = tiny_options(folder, readers, micro_batch);
  config_of(options).layers = 5;
  return options;
}

std::vector<RankRun> run_stages(const train::SessionOptions& options, int world_size, int stages,
                                const RunOptions& run = steps(5), const Decorate& decorate = {}) {
  RunOptions staged = run;
  staged.pipeline_parallel = stages;
  return run_world(world_size, options, staged, decorate);
}

// Sends each message in the place of the one behind it: every micro-batch but the first of all goes on with the activations, or
// the gradients, of the one before.
class LateByOne : public ForwardingCommunicator {
 public:
  explicit LateByOne(comm::Communicator& inner) : ForwardingCommunicator(inner) {}
  base::Result<comm::Pending> all_to_all(const Parts& parts) override {
    if (parts.send.empty()) return inner_.all_to_all(parts);
    const std::vector<std::byte> message(parts.send.begin(), parts.send.end());
    if (!before_.empty()) std::copy(before_.begin(), before_.end(), sent_.begin());
    if (before_.empty()) sent_ = message;
    before_ = message;
    Parts late = parts;
    late.send = sent_;
    return inner_.all_to_all(late);
  }

 private:
  std::vector<std::byte> before_, sent_;
};

}  // namespace

TEST_CASE("pipeline: 2 and 4 stages, with shards and copies in each, give one rank's curve") {
  const Folder folder;
  for (const int64_t micro_batch : {1, 3}) {
    CAPTURE(micro_batch);
    const auto alone = run_world(1, deep_options(folder, 1, micro_batch), steps(5));
    require_success(alone);
    for (const int stages : {2, 4}) {
      CAPTURE(stages);
      check_follows(run_stages(deep_options(folder, 1, micro_batch), stages, stages), alone);
      check_follows(run_stages(deep_options(folder, 2, micro_batch), 2 * stages, stages), alone);
      RunOptions copies = steps(5);
      copies.shard_degree = 1;
      check_follows(run_stages(deep_options(folder, 2, micro_batch), 2 * stages, stages, copies), alone);
    }
  }
}

TEST_CASE("pipeline: parameters that stay gathered, and fewer micro-steps than stages, keep the curve") {
  const Folder folder;
  auto options = deep_options(folder, 2, /*micro_batch=*/6);  // one micro-step
  const auto alone = run_world(1, deep_options(folder, 1), steps(5));
  require_success(alone);
  check_follows(run_stages(options, 8, 4), alone);
  options = deep_options(folder, 2, /*micro_batch=*/3);  // two
  options.keeps_parameters = true;
  check_follows(run_stages(options, 8, 4), alone);
  check_follows(run_stages(options, 4, 2), alone);
}

TEST_CASE("pipeline: the same stages have the same bits every time") {
  const Folder folder;
  auto options = deep_options(folder, 2);
  for (const auto compute : {base::DType::kFp32, base::DType::kBf16}) {
    options.compute = compute;
    const auto once = run_stages(options, 4, 2), again = run_stages(options, 4, 2);
    require_success(once);
    require_success(again);
    CHECK(once[0].losses == again[0].losses);
  }
}

TEST_CASE("pipeline: tied embeddings, tensor groups, shared sequences and recomputation keep the curve") {
  const Folder folder;
  auto options = deep_options(folder, 1);
  const auto alone = run_world(1, options, steps(5));
  require_success(alone);
  RunOptions beside = steps(5);
  beside.tensor_parallel = 2;
  check_follows(run_stages(options, 4, 2, beside), alone);
  beside.tensor_parallel = 1;
  beside.context_parallel = 2;
  check_follows(run_stages(options, 6, 3, beside), alone);
  for (const auto level : {plan::Checkpointing::kSelective, plan::Checkpointing::kFull}) {
    options.checkpointing = level;
    check_follows(run_stages(options, 2, 2), alone);
  }
  options.activation_offload = true;
  options.offload_directory = folder.path();
  check_follows(run_stages(options, 4, 4), alone);

  auto tied = deep_options(folder, 1);
  config_of(tied).tied_embeddings = true;
  const auto tied_alone = run_world(1, tied, steps(5));
  require_success(tied_alone);
  auto tied_on_two = deep_options(folder, 2);
  config_of(tied_on_two).tied_embeddings = true;
  check_follows(run_stages(tied, 2, 2), tied_alone);
  check_follows(run_stages(tied_on_two, 6, 3), tied_alone);
  RunOptions cut = steps(5);
  cut.tensor_parallel = 2;
  check_follows(run_stages(tied, 4, 2, cut), tied_alone);
}

TEST_CASE("pipeline: a batch that does not divide is spread over readers as without stages") {
  const Folder folder;
  auto options = deep_options(folder, 2, /*micro_batch=*/2);
  options.global_batch = 11;  // three micro-steps of two ranks
  const auto without = run_world(2, options, steps(5));
  require_success(without);
  check_follows(run_stages(options, 6, 3), without);
}

TEST_CASE("pipeline: a run goes on with more stages, with fewer, and with none") {
  const Folder folder;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    auto one = deep_options(folder, 1), two = deep_options(folder, 2);
    config_of(one).tied_embeddings = config_of(two).tied_embeddings = tied;
    const auto alone = run_world(1, one, steps(8));
    require_success(alone);
    RunOptions run = steps(2);
    run.checkpoint_directory = folder.path() + (tied ? "/tied" : "/checkpoints");
    const struct { int stages, world_size; } parts[] = {{2, 4}, {4, 4}, {1, 2}, {3, 3}};
    for (const auto& part : parts) {
      CAPTURE(part.stages);
      const auto runs =
          run_stages(part.world_size == part.stages ? one : two, part.world_size, part.stages, run);
      require_success(runs);
      REQUIRE(runs[0].losses.size() == 2);
      const double expected = alone[0].losses[static_cast<size_t>(run.loop.steps) - 1];
      CHECK(std::abs(runs[0].losses.back() - expected) <= 1e-5 * expected);
      run.loop.steps += 2;
    }
  }
}

TEST_CASE("pipeline: a stage that goes on with another micro-batch leaves the curve") {
  const Folder folder;
  const auto options = deep_options(folder, 1);
  const auto alone = run_world(1, options, steps(5));
  const auto spoiled = run_stages(options, 2, 2, steps(5), [](Group group, comm::Communicator& inner) {
    return group == Group::kStages ? std::make_unique<LateByOne>(inner) : nullptr;
  });
  require_success(spoiled);
  CHECK(largest_difference(spoiled[0].losses, alone[0].losses) > 1e-3);
}

TEST_CASE("pipeline: when a rank of a stage is lost, all others end and say so") {
  const Folder folder;
  const auto runs = run_stages(deep_options(folder, 1), 4, 4, steps(5), one_lost_link());
  for (const RankRun& run : runs) CHECK(run.error_code == base::Code::kPeerLost);
}

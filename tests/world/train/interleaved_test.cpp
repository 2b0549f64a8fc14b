// Interleaved stages of a pipeline, each with several chunks of layers, follow the curve of one rank that has all layers.
#include <doctest/doctest.h>

#include "tests/support/prose.h"
#include "tests/support/token_files.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

// Thirteen layers, of which no number of chunks gets equal parts, for `readers` data-parallel ranks.
train::SessionOptions deeper_options(const Folder& folder, int readers, int64_t micro_batch = 1) {
  auto options = tiny_options(folder, readers, micro_batch);
  config_of(options).layers = 13;
  return options;
}

std::vector<RankRun> run_chunks(const train::SessionOptions& options, int world_size, int stages, int chunks,
                                const RunOptions& run = steps(4), const Decorate& decorate = {}) {
  RunOptions staged = run;
  staged.pipeline_parallel = stages;
  staged.virtual_stages = chunks;
  return run_world(world_size, options, staged, decorate);
}

}  // namespace

TEST_CASE(
    "interleaved: 2 and 4 stages of 2 and 3 chunks, with shards and copies in each, give one rank's curve") {
  const Folder folder;
  const auto alone = run_world(1, deeper_options(folder, 1), steps(4));
  require_success(alone);
  for (const int stages : {2, 4}) {
    for (const int chunks : {2, 3}) {
      CAPTURE(stages);
      CAPTURE(chunks);
      check_follows(run_chunks(deeper_options(folder, 1), stages, stages, chunks), alone);
      check_follows(run_chunks(deeper_options(folder, 2), 2 * stages, stages, chunks), alone);
      RunOptions copies = steps(4);
      copies.shard_degree = 1;
      check_follows(run_chunks(deeper_options(folder, 2), 2 * stages, stages, chunks, copies), alone);
    }
  }
  RunOptions hybrid = steps(4);
  hybrid.shard_degree = 2;
  check_follows(run_chunks(deeper_options(folder, 4), 8, 2, 3, hybrid), alone);
}

TEST_CASE(
    "interleaved: micro-steps that are no multiple of the stages, and fewer than those, keep the curve") {
  const Folder folder;
  const auto alone = run_world(1, deeper_options(folder, 1), steps(4));
  require_success(alone);
  for (const int64_t micro_batch : {12, 6, 4, 2}) {  // 1, 2, 3 and 6 micro-steps
    CAPTURE(micro_batch);
    check_follows(run_chunks(deeper_options(folder, 1, micro_batch), 4, 4, 2), alone);
    check_follows(run_chunks(deeper_options(folder, 1, micro_batch), 2, 2, 3), alone);
  }
  auto uneven = deeper_options(folder, 2, /*micro_batch=*/2);
  uneven.global_batch = 11;  // three micro-steps of two ranks
  const auto without = run_world(2, uneven, steps(4));
  require_success(without);
  check_follows(run_chunks(uneven, 4, 2, 2), without);
}

TEST_CASE("interleaved: parameters that stay gathered, and units of several layers, keep the curve") {
  const Folder folder;
  const auto alone = run_world(1, deeper_options(folder, 1), steps(4));
  require_success(alone);
  auto options = deeper_options(folder, 2);
  options.wrap = 2;
  check_follows(run_chunks(options, 4, 2, 2), alone);
  options.keeps_parameters = true;
  check_follows(run_chunks(options, 4, 2, 3), alone);
  options.wrap = 1;
  options.prefetch = 3;
  check_follows(run_chunks(options, 8, 4, 2), alone);
}

TEST_CASE("interleaved: tied embeddings, tensor groups, shared sequences and recomputation keep the curve") {
  const Folder folder;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    auto options = deeper_options(folder, 1), on_two = deeper_options(folder, 2);
    config_of(options).tied_embeddings = config_of(on_two).tied_embeddings = tied;
    const auto alone = run_world(1, options, steps(4));
    require_success(alone);
    check_follows(run_chunks(options, 2, 2, 2), alone);
    check_follows(run_chunks(on_two, 6, 3, 2), alone);
    RunOptions beside = steps(4);
    beside.tensor_parallel = 2;
    check_follows(run_chunks(options, 4, 2, 3, beside), alone);
    beside.tensor_parallel = 1;
    beside.context_parallel = 2;
    check_follows(run_chunks(options, 6, 3, 2, beside), alone);
    for (const auto level : {plan::Checkpointing::kSelective, plan::Checkpointing::kFull}) {
      options.checkpointing = level;
      check_follows(run_chunks(options, 2, 2, 3), alone);
    }
    options.activation_offload = true;
    options.offload_directory = folder.path();
    check_follows(run_chunks(options, 4, 4, 2), alone);
  }
}

TEST_CASE("interleaved: documents that are packed into sequences see only themselves") {
  const Folder folder;
  auto options = deeper_options(folder, 1);
  options.training_files = {tests::token_file(folder, "packed.tokens", tests::bert_facts(256),
                                              tests::worded_documents(40, 1, 200))};
  options.validation_files = options.training_files;
  options.sequence_length = 64;
  const auto alone = run_world(1, options, steps(4));
  require_success(alone);
  check_follows(run_chunks(options, 2, 2, 3), alone);
  check_follows(run_chunks(options, 4, 4, 2), alone);
}

TEST_CASE("interleaved: the same stages have the same bits every time") {
  const Folder folder;
  auto options = deeper_options(folder, 2);
  for (const auto compute : {base::DType::kFp32, base::DType::kBf16}) {
    options.compute = compute;
    const auto once = run_chunks(options, 4, 2, 3), again = run_chunks(options, 4, 2, 3);
    require_success(once);
    require_success(again);
    CHECK(once[0].losses == again[0].losses);
  }
}

TEST_CASE("interleaved: a run goes on with other stages, other chunks, and without any") {
  const Folder folder;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    auto one = deeper_options(folder, 1), two = deeper_options(folder, 2);
    config_of(one).tied_embeddings = config_of(two).tied_embeddings = tied;
    const auto alone = run_world(1, one, steps(10));
    require_success(alone);
    RunOptions run = steps(2);
    run.checkpoint_directory = folder.path() + (tied ? "/tied" : "/checkpoints");
    const struct {
      int stages, chunks, world_size;
    } parts[] = {{2, 2, 4}, {4, 3, 4}, {2, 1, 2}, {1, 1, 2}, {3, 2, 3}};
    for (const auto& part : parts) {
      CAPTURE(part.stages);
      CAPTURE(part.chunks);
      const auto runs = run_chunks(part.world_size == part.stages ? one : two, part.world_size, part.stages,
                                   part.chunks, run);
      require_success(runs);
      REQUIRE(runs[0].losses.size() == 2);
      const double expected = alone[0].losses[static_cast<size_t>(run.loop.steps) - 1];
      CHECK(std::abs(runs[0].losses.back() - expected) <= 1e-5 * expected);
      run.loop.steps += 2;
    }
  }
}

TEST_CASE(
    "interleaved: the first message round to the first stage in the place of all later ones leaves the "
    "curve") {
  const Folder folder;
  const auto alone = run_world(1, deeper_options(folder, 1), steps(4));
  class Repeats : public ForwardingCommunicator {
   public:
    explicit Repeats(comm::Communicator& inner) : ForwardingCommunicator(inner) {}
    base::Result<comm::Pending> all_to_all(const Parts& parts) override {
      if (parts.send.empty()) return inner_.all_to_all(parts);
      if (first_.empty()) first_.assign(parts.send.begin(), parts.send.end());
      Parts spoiled = parts;
      spoiled.send = first_;
      return inner_.all_to_all(spoiled);
    }

   private:
    std::vector<std::byte> first_;
  };
  const auto repeating = [](int from, int to) {
    return [=](Group group, comm::Communicator& inner) {
      thread_local int links =
          0;  // of this rank: four between neighbours, then two between the last stage and the first
      const int number = group == Group::kStages ? links++ : -1;
      return std::unique_ptr<comm::Communicator>(
          number >= from && number < to ? std::make_unique<Repeats>(inner) : nullptr);
    };
  };
  const auto spoiled = run_chunks(deeper_options(folder, 1), 3, 3, 2, steps(4), repeating(4, 6));
  require_success(spoiled);
  CHECK(largest_difference(spoiled[0].losses, alone[0].losses) > 1e-3);
  check_follows(run_chunks(deeper_options(folder, 1), 3, 3, 2, steps(4), repeating(6, 8)), alone);
}

TEST_CASE("interleaved: when a rank of a stage is lost, all others end and say so") {
  const Folder folder;
  const auto runs = run_chunks(deeper_options(folder, 1), 4, 4, 2, steps(4), one_lost_link());
  for (const RankRun& run : runs) CHECK(run.error_code == base::Code::kPeerLost);
}

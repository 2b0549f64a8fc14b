// Ranks that share sequences follow the curve of one that has them whole.
#include <doctest/doctest.h>

#include "tests/support/prose.h"
#include "tests/support/token_files.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

std::vector<RankRun> run_sharing(const train::SessionOptions& options, int world_size, int context_parallel,
                                 const RunOptions& run = steps(6), const Decorate& decorate = {}) {
  RunOptions sharing = run;
  sharing.context_parallel = context_parallel;
  return run_world(world_size, options, sharing, decorate);
}

// Adds ten to the first value that every all-gather, or every sum, brings.
class OffByTen : public ForwardingCommunicator {
 public:
  OffByTen(comm::Communicator& inner, bool sums) : ForwardingCommunicator(inner), sums_(sums) {}
  base::Result<comm::Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    ASSIGN_OR_RETURN(auto pending, inner_.all_gather(mine, all));
    if (!sums_) {
      RETURN_IF_ERROR(inner_.wait(pending));
      *reinterpret_cast<float*>(all.data()) += 10.0F;
      return inner_.barrier();
    }
    return pending;
  }
  base::Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    ASSIGN_OR_RETURN(auto pending, inner_.reduce_scatter(full, mine));
    if (sums_) {
      RETURN_IF_ERROR(inner_.wait(pending));
      mine[0] += 10.0F;
      return inner_.barrier();
    }
    return pending;
  }

 private:
  bool sums_;
};

}  // namespace

TEST_CASE("context: sequences over 2 and 4 ranks give one rank's curve, under every strategy") {
  const Folder folder;
  for (const int64_t micro_batch : {1, 3}) {
    CAPTURE(micro_batch);
    const auto alone = run_sharing(tiny_options(folder, 1, micro_batch), 1, 1);
    require_success(alone);
    for (const int sharers : {2, 4}) {
      CAPTURE(sharers);
      check_follows(run_sharing(tiny_options(folder, 1, micro_batch), sharers, sharers), alone);
      RunOptions replicated = steps(6);
      replicated.shard_degree = 1;
      check_follows(run_sharing(tiny_options(folder, 1, micro_batch), sharers, sharers, replicated), alone);
    }
    // Two readers of two ranks each: shards over a context group, and across two.
    for (const int shard_degree : {2, 4}) {
      RunOptions hybrid = steps(6);
      hybrid.shard_degree = shard_degree;
      check_follows(run_sharing(tiny_options(folder, 2, micro_batch), 4, 2, hybrid), alone);
    }
  }
}

TEST_CASE("context: a shared sequence has the same bits every time") {
  const Folder folder;
  auto options = tiny_options(folder, 1);
  for (const auto compute : {base::DType::kFp32, base::DType::kBf16}) {
    options.compute = compute;
    const auto once = run_sharing(options, 4, 4), again = run_sharing(options, 4, 4);
    require_success(once);
    require_success(again);
    CHECK(once[0].losses == again[0].losses);
    CHECK(once[3].losses == again[0].losses);
  }
}

TEST_CASE("context: matrices cut for a tensor group, windows, head norms and recomputation keep the curve") {
  const Folder folder;
  auto options = tiny_options(folder, 1);
  const auto alone = run_sharing(options, 1, 1);
  require_success(alone);
  RunOptions cut = steps(6);
  cut.tensor_parallel = 2;
  check_follows(run_sharing(options, 4, 2, cut), alone);
  options.checkpointing = plan::Checkpointing::kFull;
  check_follows(run_sharing(options, 2, 2), alone);
  options.checkpointing = plan::Checkpointing::kSelective;
  check_follows(run_sharing(options, 4, 4), alone);
  options.checkpointing = plan::Checkpointing::kNone;

  auto windowed = options, normed = options;
  config_of(windowed).window = 5;
  config_of(normed).head_norms = true;
  for (const auto& family : {windowed, normed})
    check_follows(run_sharing(family, 4, 4), run_sharing(family, 1, 1));
}

TEST_CASE("context: documents that are packed into shared sequences see only themselves") {
  const Folder folder;
  auto options = tiny_options(folder, 1);
  const auto documents = tests::worded_documents(40, 1, 200);
  options.training_files = {tests::token_file(folder, "packed.tokens", tests::bert_facts(256), documents)};
  options.validation_files = options.training_files;
  options.sequence_length = 64;
  const auto alone = run_sharing(options, 1, 1);
  require_success(alone);
  for (const int sharers : {2, 4}) check_follows(run_sharing(options, sharers, sharers), alone);
}

TEST_CASE("context: a sequence of 8192 tokens over 2 and 4 ranks gives one rank's curve") {
  const Folder folder;
  auto options = tiny_options(folder, 1);
  options.training_files = {folder.file("long.txt", tests::prose(4000, 3))};
  options.sequence_length = 8192;
  config_of(options).layers = config_of(options).heads = config_of(options).kv_heads = 1;
  options.gradient_accumulation = 1;
  options.validation_files = {};
  const RunOptions run = steps(2);
  const auto alone = run_sharing(options, 1, 1, run);
  require_success(alone);
  for (const int sharers : {2, 4}) {
    const auto shared = run_sharing(options, sharers, sharers, run);
    require_success(shared);
    CHECK(largest_difference(shared[0].losses, alone[0].losses) <= 1e-5 * alone[0].losses.back());
  }
}

TEST_CASE("context: a run goes on with its sequences shared by more ranks, or by fewer") {
  const Folder folder;
  const auto options = tiny_options(folder, 1);
  RunOptions run = steps(3);
  run.checkpoint_directory = folder.path() + "/checkpoints";
  require_success(run_sharing(options, 2, 2, run));
  run.loop.steps = 6;
  const auto resumed = run_sharing(options, 4, 4, run);
  require_success(resumed);
  REQUIRE(resumed[0].losses.size() == 3);
  const auto alone = run_sharing(options, 1, 1);
  CHECK(std::abs(resumed[0].losses.back() - alone[0].losses.back()) <= 1e-5 * alone[0].losses.back());
}

TEST_CASE("context: a planted fault in what the ranks exchange leaves the curve") {
  const Folder folder;
  const auto options = tiny_options(folder, 1);
  const auto alone = run_sharing(options, 1, 1);
  for (const bool sums : {false, true}) {
    const auto spoiled =
        run_sharing(options, 2, 2, steps(6),
                    [sums](Group group, comm::Communicator& inner) -> std::unique_ptr<comm::Communicator> {
                      if (group != Group::kContext) return nullptr;
                      return std::make_unique<OffByTen>(inner, sums);
                    });
    require_success(spoiled);
    CHECK(largest_difference(spoiled[0].losses, alone[0].losses) > 1e-3);
  }
}

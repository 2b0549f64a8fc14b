#include <doctest/doctest.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <fmt/format.h>

#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

// Loses the gradient of the last rank but one in every third reduce-scatter.
class ForgetfulCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  base::Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    const bool forgets = rank() == 0 && ++count_ % 3 == 0;
    if (!forgets) return inner_.reduce_scatter(full, mine);
    zeros_.assign(full.size(), 0.0F);
    return inner_.reduce_scatter(zeros_, mine);
  }

 private:
  int count_ = 0;
  std::vector<float> zeros_;
};

}  // namespace

TEST_CASE("training: one, two, three and four ranks follow the same loss curve") {
  const Folder folder;
  const RunOptions run{.loop = {.steps = 12}};
  const auto alone = run_world(1, tiny_options(folder, 1), run);
  require_success(alone);
  REQUIRE(alone[0].losses.size() == 12);
  CHECK(alone[0].losses[0] == doctest::Approx(std::log(256.0)).epsilon(0.02));
  for (int world_size : {2, 3, 4}) {
    CAPTURE(world_size);
    const auto ranks = run_world(world_size, tiny_options(folder, world_size), run);
    require_success(ranks);
    CHECK(largest_difference(ranks[0].losses, alone[0].losses) < 1e-5);
    CHECK(*ranks[0].validation_loss == doctest::Approx(*alone[0].validation_loss).epsilon(1e-5));
    for (const RankRun& rank : ranks) CHECK(rank.losses == ranks[0].losses);
  }
}

TEST_CASE("training: a lost gradient does not pass for the right curve") {
  const Folder folder;
  const RunOptions run{.loop = {.steps = 12}};
  const auto alone = run_world(1, tiny_options(folder, 1), run);

  const auto forgetful =
      run_world(2, tiny_options(folder, 2), run, [](Group group, comm::Communicator& inner) {
        return group == Group::kReduce ? std::make_unique<ForgetfulCommunicator>(inner) : nullptr;
      });

  require_success(forgetful);
  CHECK(largest_difference(forgetful[0].losses, alone[0].losses) > 1e-3);
}

TEST_CASE("training: every strategy follows the curve of one rank, and repeats it bit for bit") {
  const Folder folder;
  const auto alone = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 12}});
  require_success(alone);
  struct Case {
    const char* name;
    int world_size, shard_degree;
    bool keeps_parameters;
    int prefetch;
  };
  for (const Case& strategy : {Case{"no_shard", 4, 1, false, 1}, Case{"hybrid_shard", 4, 2, false, 1},
                               Case{"hybrid_shard, prefetch 3", 4, 2, false, 3},
                               Case{"shard_grad_op", 4, 4, true, 1}, Case{"hybrid_shard", 6, 3, false, 2}}) {
    CAPTURE(strategy.name);
    auto options = tiny_options(folder, strategy.world_size);
    options.keeps_parameters = strategy.keeps_parameters;
    options.prefetch = strategy.prefetch;
    const RunOptions run{.loop = {.steps = 12}, .shard_degree = strategy.shard_degree};
    const auto ranks = run_world(strategy.world_size, options, run);
    require_success(ranks);
    CHECK(largest_difference(ranks[0].losses, alone[0].losses) < 1e-5);
    CHECK(*ranks[0].validation_loss == doctest::Approx(*alone[0].validation_loss).epsilon(1e-5));
    const auto again = run_world(strategy.world_size, options, run);
    for (const RankRun& rank : again) CHECK(rank.losses == ranks[0].losses);
  }
}

TEST_CASE("training: tensor parallelism, alone and with every way to shard, follows the curve of one rank") {
  const Folder folder;
  const auto alone = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 12}});
  require_success(alone);
  struct Case {
    const char* name;
    int world_size, tensor_parallel, shard_degree;
    bool keeps_parameters;
  };
  for (const Case& mesh : {Case{"tp 2", 2, 2, 1, false}, Case{"tp 2 × full 2", 4, 2, 2, false},
                           Case{"tp 2 × replicas 2", 4, 2, 1, false}, Case{"tp 2 × grad_op 3", 6, 2, 3, true},
                           Case{"tp 2 × hybrid 2 × 2", 8, 2, 2, false}}) {
    CAPTURE(mesh.name);
    const int data_parallel = mesh.world_size / mesh.tensor_parallel;
    auto options = tiny_options(folder, data_parallel);
    REQUIRE(12 % data_parallel == 0);  // the batch of the rank alone
    options.keeps_parameters = mesh.keeps_parameters;
    const RunOptions run{
        .loop = {.steps = 12}, .shard_degree = mesh.shard_degree, .tensor_parallel = mesh.tensor_parallel};
    const auto ranks = run_world(mesh.world_size, options, run);
    require_success(ranks);
    CHECK(largest_difference(ranks[0].losses, alone[0].losses) < 1e-5);
    CHECK(*ranks[0].validation_loss == doctest::Approx(*alone[0].validation_loss).epsilon(1e-5));
    const auto again = run_world(mesh.world_size, options, run);
    for (const RankRun& rank : again) CHECK(rank.losses == ranks[0].losses);
  }
}

TEST_CASE("training: what backward computes again or finds in a file changes no bit") {
  const Folder folder;
  for (const kernels::DType compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
    auto options = tiny_options(folder, 2);
    options.compute = compute;
    const auto plain = run_world(2, options, {.loop = {.steps = 6}});
    require_success(plain);
    for (const auto level :
         {model::Checkpointing::kNone, model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
      for (const bool offloads : {false, true}) {
        options.checkpointing = level;
        options.activation_offload = offloads;
        options.offload_directory = folder.path();
        const auto again = run_world(2, options, {.loop = {.steps = 6}});
        require_success(again);
        CHECK(again[0].losses == plain[0].losses);
      }
    }
  }
}

TEST_CASE("training: tied embeddings follow one curve on every mesh, which is not that of untied ones") {
  const Folder folder;
  const auto untied = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 12}});
  auto options = tiny_options(folder, 1);
  std::get<model::LlamaConfig>(options.model).tied_embeddings = true;
  const auto alone = run_world(1, options, {.loop = {.steps = 12}});
  require_success(alone);
  CHECK(largest_difference(alone[0].losses, untied[0].losses) > 1e-3);
  CHECK(alone[0].losses.back() < alone[0].losses.front());
  struct Case {
    int world_size, tensor_parallel, shard_degree;
  };
  for (const Case& mesh : {Case{3, 1, 3}, Case{4, 1, 2}, Case{4, 1, 1}, Case{4, 2, 2}}) {
    CAPTURE(mesh.world_size);
    CAPTURE(mesh.shard_degree);
    auto sharded = tiny_options(folder, mesh.world_size / mesh.tensor_parallel);
    std::get<model::LlamaConfig>(sharded.model).tied_embeddings = true;
    const auto ranks = run_world(
        mesh.world_size, sharded,
        {.loop = {.steps = 12}, .shard_degree = mesh.shard_degree, .tensor_parallel = mesh.tensor_parallel});
    require_success(ranks);
    CHECK(largest_difference(ranks[0].losses, alone[0].losses) < 1e-5);
  }
}

// Skips the sum over replicas of every fifth block: each replica goes on with its own gradient.
class SkippingCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  base::Result<comm::Pending> all_reduce(std::span<float> buffer) override {
    if (++count_ % 5 != 0) return inner_.all_reduce(buffer);
    return inner_.barrier();
  }

 private:
  int count_ = 0;
};

TEST_CASE("training: one skipped sum over replicas does not pass for the right curve") {
  const Folder folder;
  const auto alone = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 12}});
  for (const int shard_degree : {1, 2}) {
    const auto skipping =
        run_world(4, tiny_options(folder, 4), {.loop = {.steps = 12}, .shard_degree = shard_degree},
                  [](Group group, comm::Communicator& inner) {
                    return group == Group::kReplica ? std::make_unique<SkippingCommunicator>(inner) : nullptr;
                  });
    require_success(skipping);
    CHECK(largest_difference(skipping[0].losses, alone[0].losses) > 1e-4);
  }
}

TEST_CASE("training: micro-batches and accumulation only change the order of sums") {
  const Folder folder;
  const RunOptions run{.loop = {.steps = 8}};
  const auto accumulated = run_world(2, tiny_options(folder, 2, /*micro_batch=*/1), run);
  const auto at_once = run_world(2, tiny_options(folder, 2, /*micro_batch=*/6), run);
  require_success(accumulated);
  require_success(at_once);

  CHECK(largest_difference(accumulated[0].losses, at_once[0].losses) < 1e-5);
}

TEST_CASE("training: prefetch changes when blocks are gathered, never a bit of the result") {
  const Folder folder;
  const RunOptions run{.loop = {.steps = 6}};
  auto options = tiny_options(folder, 3);
  const auto with_prefetch = run_world(3, options, run);
  options.prefetch = 0;
  const auto without = run_world(3, options, run);
  require_success(with_prefetch);
  require_success(without);

  CHECK(with_prefetch[0].losses == without[0].losses);
}

TEST_CASE("training: the same run twice gives the same bits, in fp32 and in bf16") {
  const Folder folder;
  const RunOptions run{.loop = {.steps = 8}};
  for (kernels::DType compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
    auto options = tiny_options(folder, 2);
    options.compute = compute;
    const auto first = run_world(2, options, run);
    const auto second = run_world(2, options, run);
    require_success(first);
    require_success(second);
    CHECK(first[0].losses == second[0].losses);
    CHECK(first[0].validation_loss == second[0].validation_loss);
  }
}

TEST_CASE("training: the model learns the text, better than any model that ignores context") {
  const Folder folder;
  const auto ranks = run_world(2, tiny_options(folder, 2), {.loop = {.steps = 40}});
  require_success(ranks);

  CHECK(ranks[0].losses.back() < 0.6 * ranks[0].losses.front());
  CHECK(*ranks[0].validation_loss < 2.7);
}

TEST_CASE("training: a diverging run stops with the step and a mend on every rank") {
  const Folder folder;
  auto options = tiny_options(folder, 2);
  options.schedule = {optim::Schedule::kConstant, 1e30, 0.0, 0, 40};

  const auto ranks = run_world(2, options, {.loop = {.steps = 40}});

  for (const RankRun& rank : ranks) {
    CHECK(rank.error.find("are not finite; lower [optimizer] learning_rate") != std::string::npos);
    CHECK(rank.error_code == base::Code::kRefused);
  }
}

TEST_CASE("stopping: when one rank is asked, all stop after the same step with a checkpoint") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";

  const auto ranks = run_world(3, tiny_options(folder, 3),
                               {.loop = {.steps = 20}, .checkpoint_directory = directory, .stop_at_step = 5});

  require_success(ranks);
  for (const RankRun& rank : ranks) {
    CHECK(rank.stopped);
    CHECK(rank.losses.size() == 5);
    CHECK(rank.checkpoint == directory + "/step_00000005");
  }
}

TEST_CASE(
    "stopping: a run that wants no checkpoint at its end writes those between, and one when it is stopped") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const auto options = tiny_options(folder, 2);
  const train::LoopOptions loop{.steps = 5, .checkpoint_every_steps = 4, .checkpoint_at_end = false};

  const auto whole = run_world(2, options, {.loop = loop, .checkpoint_directory = directory});
  const auto stopped =
      run_world(2, options, {.loop = loop, .checkpoint_directory = directory + "_2", .stop_at_step = 2});

  require_success(whole);
  require_success(stopped);
  CHECK(whole[0].losses.size() == 5);
  CHECK(whole[0].checkpoint == directory + "/step_00000004");
  CHECK(stopped[0].checkpoint == directory + "_2/step_00000002");
}

TEST_CASE("resuming: N + M steps equal N steps, a checkpoint and M steps, bit for bit") {
  const Folder folder;
  for (kernels::DType compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
    auto options = tiny_options(folder, 2);
    options.compute = compute;
    const std::string directory =
        folder.path() + (compute == kernels::DType::kFp32 ? "/checkpoints-fp32" : "/checkpoints-bf16");
    const auto whole = run_world(2, options, {.loop = {.steps = 14}});
    const auto head =
        run_world(2, options, {.loop = {.steps = 14}, .checkpoint_directory = directory, .stop_at_step = 6});
    const auto tail = run_world(2, options, {.loop = {.steps = 14}, .checkpoint_directory = directory});
    require_success(whole);
    require_success(head);
    require_success(tail);

    auto joined = head[0].losses;
    joined.insert(joined.end(), tail[0].losses.begin(), tail[0].losses.end());
    CHECK(*tail[0].resumed_from == directory + "/step_00000006");
    CHECK(joined == whole[0].losses);
    CHECK(tail[0].validation_loss == whole[0].validation_loss);
  }
}

TEST_CASE(
    "resuming: checkpoints written beside the next steps hold their own step, in every strategy, for any "
    "other") {
  const Folder folder;
  struct Mesh {
    int world_size, shard_degree;
  };
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{2, 2}, Mesh{2, 1}, Mesh{4, 2}}) {
    CAPTURE(mesh.world_size);
    CAPTURE(mesh.shard_degree);
    const auto options = tiny_options(folder, mesh.world_size);
    const std::string directory =
        fmt::format("{}/checkpoints-{}-{}", folder.path(), mesh.world_size, mesh.shard_degree);
    RunOptions run{.loop = {.steps = 10, .checkpoint_every_steps = 3},
                   .checkpoint_directory = directory,
                   .shard_degree = mesh.shard_degree};
    const auto whole = run_world(mesh.world_size, options, run);
    require_success(whole);
    for (const RankRun& rank : whole) CHECK(rank.saved_steps == std::vector<int64_t>{3, 6, 9, 10});
    for (const int64_t step : {10, 9})
      std::filesystem::remove_all(directory + "/" + checkpoint::step_name(step));
    const std::string other = directory + "-other";
    std::filesystem::copy(directory, other, std::filesystem::copy_options::recursive);

    run.loop.checkpoint_every_steps = 0;
    const auto tail = run_world(mesh.world_size, options, run);
    const auto elsewhere =
        run_world(3, tiny_options(folder, 3), {.loop = run.loop, .checkpoint_directory = other});

    require_success(tail);
    require_success(elsewhere);
    CHECK(*tail[0].resumed_from == directory + "/step_00000006");
    const std::vector<double> wanted(whole[0].losses.begin() + 6, whole[0].losses.end());
    CHECK(tail[0].losses == wanted);
    CHECK(largest_difference(elsewhere[0].losses, wanted) < 1e-5);
  }
}

// How a world of four is cut.
struct Cut {
  const char* name;
  int world_size, tensor_parallel, shard_degree;
  bool keeps_parameters;
};
constexpr Cut kCuts[] = {{"no_shard", 4, 1, 1, false},
                         {"full_shard", 4, 1, 4, false},
                         {"hybrid_shard", 4, 1, 2, false},
                         {"shard_grad_op", 4, 1, 4, true},
                         {"tp 2 × full 2", 4, 2, 2, false}};

train::SessionOptions options_of(const Folder& folder, const Cut& cut) {
  auto options = tiny_options(folder, cut.world_size / cut.tensor_parallel);
  options.keeps_parameters = cut.keeps_parameters;
  return options;
}

RunOptions run_of(const Cut& cut, const std::string& directory = "", int64_t stop_at_step = -1) {
  return {.loop = {.steps = 12},
          .checkpoint_directory = directory,
          .stop_at_step = stop_at_step,
          .shard_degree = cut.shard_degree,
          .tensor_parallel = cut.tensor_parallel};
}

TEST_CASE("resuming: with every strategy, N + M steps equal N steps, a checkpoint and M steps, bit for bit") {
  const Folder folder;
  for (const Cut& cut : kCuts) {
    CAPTURE(cut.name);
    const auto options = options_of(folder, cut);
    const std::string directory = folder.path() + "/" + std::to_string(&cut - kCuts);
    const auto whole = run_world(cut.world_size, options, run_of(cut));
    const auto head = run_world(cut.world_size, options, run_of(cut, directory, 5));
    const auto tail = run_world(cut.world_size, options, run_of(cut, directory));
    require_success(whole);
    require_success(head);
    require_success(tail);
    auto joined = head[0].losses;
    joined.insert(joined.end(), tail[0].losses.begin(), tail[0].losses.end());
    CHECK(joined == whole[0].losses);
    CHECK(tail[0].validation_loss == whole[0].validation_loss);
  }
}

TEST_CASE("resuming: every strategy continues what every other began, on one curve") {
  const Folder folder;
  const auto whole = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 12}});
  require_success(whole);
  for (const Cut& from : kCuts) {
    for (const Cut& to : kCuts) {
      CAPTURE(from.name);
      CAPTURE(to.name);
      const std::string directory =
          folder.path() + "/" + std::to_string(&from - kCuts) + "-" + std::to_string(&to - kCuts);
      const auto head = run_world(from.world_size, options_of(folder, from), run_of(from, directory, 5));
      const auto tail = run_world(to.world_size, options_of(folder, to), run_of(to, directory));
      require_success(head);
      require_success(tail);
      auto joined = head[0].losses;
      joined.insert(joined.end(), tail[0].losses.begin(), tail[0].losses.end());
      CHECK(largest_difference(joined, whole[0].losses) < 1e-5);
    }
  }
}

TEST_CASE("resuming: four, then two, then three ranks continue the same curve") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const auto whole = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 12}});
  std::vector<double> joined;
  int64_t stop_at_step = 4;
  for (const int world_size : {4, 2, 3}) {
    const auto part = run_world(world_size, tiny_options(folder, world_size),
                                {.loop = {.steps = 12},
                                 .checkpoint_directory = directory,
                                 .stop_at_step = std::exchange(stop_at_step, stop_at_step + 4)});
    require_success(part);
    joined.insert(joined.end(), part[0].losses.begin(), part[0].losses.end());
  }
  REQUIRE(joined.size() == 12);
  CHECK(largest_difference(joined, whole[0].losses) < 1e-5);
}

TEST_CASE("resuming: another world size continues the same curve") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const auto whole = run_world(1, tiny_options(folder, 1), {.loop = {.steps = 12}});
  const auto head = run_world(3, tiny_options(folder, 3),
                              {.loop = {.steps = 12}, .checkpoint_directory = directory, .stop_at_step = 5});
  const auto tail =
      run_world(2, tiny_options(folder, 2), {.loop = {.steps = 12}, .checkpoint_directory = directory});
  require_success(head);
  require_success(tail);

  auto joined = head[0].losses;
  joined.insert(joined.end(), tail[0].losses.begin(), tail[0].losses.end());
  CHECK(largest_difference(joined, whole[0].losses) < 1e-5);
}

TEST_CASE("resuming: when no checkpoint can be read the run does not quietly start anew") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const auto options = tiny_options(folder, 2);
  require_success(
      run_world(2, options, {.loop = {.steps = 8}, .checkpoint_directory = directory, .stop_at_step = 2}));
  std::filesystem::resize_file(directory + "/step_00000002/shard_00000.bin", 100);

  const auto ranks = run_world(2, options, {.loop = {.steps = 8}, .checkpoint_directory = directory});

  for (const RankRun& rank : ranks) {
    CHECK(rank.error_code == base::Code::kCorrupt);
    CHECK(rank.error.find("move the folder away to start anew") != std::string::npos);
  }
}

TEST_CASE("resuming: a checkpoint of another model or other data is refused, not passed over") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const auto options = tiny_options(folder, 2);
  require_success(
      run_world(2, options, {.loop = {.steps = 8}, .checkpoint_directory = directory, .stop_at_step = 2}));
  auto other_model = options, other_data = options;
  std::get<model::LlamaConfig>(other_model.model).heads = 2;
  other_data.seed = 6;

  const auto from_model =
      run_world(2, other_model, {.loop = {.steps = 8}, .checkpoint_directory = directory});
  const auto from_data = run_world(2, other_data, {.loop = {.steps = 8}, .checkpoint_directory = directory});

  for (const RankRun& rank : from_model) {
    CHECK(rank.error_code == base::Code::kInvalid);
    CHECK(rank.error.find("it is of another model ({\"architectures\":") != std::string::npos);
  }
  for (const RankRun& rank : from_data) {
    CHECK(rank.error_code == base::Code::kInvalid);
    CHECK(rank.error.find("was trained on other data") != std::string::npos);
  }
}

TEST_CASE(
    "saving: a checkpoint that one rank cannot write is reported, and the training goes on to the next") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const std::string in_the_way = directory + "/step_00000004.tmp/shard_00001.bin";
  std::filesystem::create_directories(in_the_way);
  // A publish removes temporary folders: the lost save has to be the first.
  const auto ranks =
      run_world(2, tiny_options(folder, 2),
                {.loop = {.steps = 10, .checkpoint_every_steps = 4}, .checkpoint_directory = directory});

  require_success(ranks);
  for (const RankRun& rank : ranks) {
    CHECK(rank.losses.size() == 10);
    CHECK(rank.saved_steps == std::vector<int64_t>{8, 10});
    REQUIRE(rank.lost_saves.size() == 1);
  }
  CHECK(ranks[0].lost_saves[0] == "4: another rank could not save " + directory + "/step_00000004");
  CHECK(ranks[1].lost_saves[0].find(in_the_way + ": Is a directory") != std::string::npos);
}

TEST_CASE("saving: a rank that waits for a slow disk says so, and no longer when it steps again") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  // The first checkpoint's file is a pipe that nobody reads yet: its writer waits as for a disk that does not answer.
  const std::string pipe = directory + "/step_00000002.tmp/shard_00000.bin";
  std::filesystem::create_directories(directory + "/step_00000002.tmp");
  REQUIRE_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  contract::ProgressPage page;
  const auto phase = [&] { return static_cast<contract::RankPhase>(page.phase.load()); };
  page.phase = static_cast<uint32_t>(contract::RankPhase::kStepping);

  bool was_told = false;
  std::thread disk([&] {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (phase() != contract::RankPhase::kSaving && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    was_told = phase() == contract::RankPhase::kSaving;
    std::ifstream answers(pipe, std::ios::binary);
    answers.ignore(std::numeric_limits<std::streamsize>::max());
  });
  const auto ranks = run_world(
      2, tiny_options(folder, 2),
      {.loop = {.steps = 8, .checkpoint_every_steps = 2}, .checkpoint_directory = directory, .page = &page});
  disk.join();

  require_success(ranks);
  CHECK(was_told);
  CHECK(phase() == contract::RankPhase::kStepping);
  for (const RankRun& rank : ranks) CHECK(rank.saved_steps == std::vector<int64_t>{4, 6, 8});
}

TEST_CASE("saving: a rank that cannot write says why, and the others say that another could not") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  std::filesystem::create_directories(directory + "/step_00000002.tmp/shard_00001.bin");

  const auto ranks = run_world(2, tiny_options(folder, 2),
                               {.loop = {.steps = 8}, .checkpoint_directory = directory, .stop_at_step = 2});

  CHECK(ranks[1].error_code == base::Code::kIo);
  CHECK(ranks[1].error.find("shard_00001.bin: Is a directory") != std::string::npos);
  CHECK(ranks[0].error_code == base::Code::kPeerLost);
  CHECK(!std::filesystem::exists(directory + "/step_00000002"));
}

TEST_CASE(
    "resuming: a finished run that is started again trains nothing and reports the same validation loss") {
  const Folder folder;
  const RunOptions run{.loop = {.steps = 6, .checkpoint_every_steps = 2},
                       .checkpoint_directory = folder.path() + "/checkpoints",
                       .keep = 2};
  const auto options = tiny_options(folder, 2);
  const auto first = run_world(2, options, run);
  const auto again = run_world(2, options, run);
  require_success(first);
  require_success(again);

  CHECK(again[0].losses.empty());
  CHECK(!again[0].stopped);
  CHECK(again[0].validation_loss == first[0].validation_loss);
  CHECK(*checkpoint::Store(run.checkpoint_directory, 2).steps() == std::vector<int64_t>{6, 4});
}

TEST_CASE("input: what only a rank can check is refused by name on every rank") {
  const Folder folder;
  auto no_file = tiny_options(folder, 2), small_vocabulary = no_file;
  no_file.training_files = {folder.path() + "/nowhere.txt"};
  std::get<model::LlamaConfig>(small_vocabulary.model).vocab = 128;

  for (const RankRun& rank : run_world(2, no_file, {})) {
    CHECK(rank.error_code == base::Code::kNotFound);
    CHECK(rank.error.find("nowhere.txt does not exist on this node") != std::string::npos);
  }
  for (const RankRun& rank : run_world(2, small_vocabulary, {})) {
    CHECK(rank.error_code == base::Code::kInvalid);
    CHECK(rank.error == "[model] vocab = 128 is too small for the byte tokenizer; use at least 256");
  }
}

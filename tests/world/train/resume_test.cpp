// Resuming from checkpoints that are damaged, unreadable, or another run's.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/io.h"
#include "runtime/trainer/checkpoint/store.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

TEST_CASE("resuming: a damaged newest checkpoint is named and the one before it is used") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const RunOptions run{.loop = {.steps = 12, .checkpoint_every_steps = 3},
                       .checkpoint_directory = directory,
                       .stop_at_step = 7};
  const auto options = tiny_options(folder, 2);
  require_success(run_world(2, options, run));
  std::fstream shard(directory + "/step_00000007/shard_00001.bin",
                     std::ios::in | std::ios::out | std::ios::binary);
  shard.seekp(4096);
  shard.write("damaged!", 8);
  shard.close();

  const auto ranks = run_world(2, options, {.loop = {.steps = 12}, .checkpoint_directory = directory});

  require_success(ranks);
  CHECK(*ranks[0].resumed_from == directory + "/step_00000006");
  CHECK(*ranks[1].resumed_from == directory + "/step_00000006");
  CHECK(ranks[0].notices.empty());
  REQUIRE(ranks[1].notices.size() == 1);
  CHECK(ranks[1].notices[0].find("step_00000007 is damaged and passed over") != std::string::npos);
  CHECK(ranks[1].notices[0].find("shard_00001.bin: block 0 does not match its checksum") !=
        std::string::npos);
  CHECK(ranks[0].losses.size() == 6);
}

TEST_CASE("resuming: a checkpoint that cannot be read for a moment is neither passed over nor lost") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const std::string shard = directory + "/step_00000007/shard_00001.bin";
  const auto options = tiny_options(folder, 2);
  require_success(run_world(2, options,
                            {.loop = {.steps = 12, .checkpoint_every_steps = 3},
                             .checkpoint_directory = directory,
                             .stop_at_step = 7}));
  const RunOptions rest{.loop = {.steps = 12}, .checkpoint_directory = directory};
  const auto refuses = [&](const char* reason) {
    const auto ranks = run_world(2, options, rest);
    CHECK(ranks[1].error_code == base::Code::kIo);
    CHECK(ranks[1].error.find(shard) != std::string::npos);
    CHECK(ranks[1].error.find(reason) != std::string::npos);
    CHECK(!ranks[0].error.empty());
    CHECK(std::filesystem::exists(directory + "/step_00000007/manifest.json"));
  };
  std::filesystem::rename(shard, shard + ".aside");
  refuses("errno 2");
  std::filesystem::create_directory(shard);  // which nobody can read as a file, root included
  refuses("is a folder, not a file");
  std::filesystem::remove(shard);
  std::filesystem::rename(shard + ".aside", shard);

  const auto ranks = run_world(2, options, rest);

  require_success(ranks);
  CHECK(*ranks[1].resumed_from == directory + "/step_00000007");
}

TEST_CASE(
    "resuming: another text of the same length is refused, and a checkpoint that knows no digest is taken") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  const auto options = tiny_options(folder, 2);
  require_success(
      run_world(2, options, {.loop = {.steps = 12}, .checkpoint_directory = directory, .stop_at_step = 4}));
  const std::string text = options.training_files.at(0);
  const std::string before = *base::read_file(text);
  std::string other = before;
  other[other.size() / 2] ^= 1;
  REQUIRE(base::write_file_atomically(text, other));

  const auto refused = run_world(2, options, {.loop = {.steps = 12}, .checkpoint_directory = directory});

  CHECK(refused[0].error_code == base::Code::kInvalid);
  CHECK(refused[0].error.find("was trained on other data") != std::string::npos);
  const checkpoint::Store store(directory, 10);
  auto manifest = store.read_manifest(4);
  REQUIRE(manifest);
  CHECK(manifest->data.digest.size() == 8);
  manifest->data.digest.clear();
  REQUIRE(base::write_file_atomically(store.path_of(4) + "/manifest.json", to_json(*manifest)));
  require_success(run_world(2, options, {.loop = {.steps = 12}, .checkpoint_directory = directory}));
}

TEST_CASE(
    "resuming: another run's checkpoint in this run's folder is refused, and in a shared one gone on with") {
  const Folder folder;
  const std::string directory = folder.path() + "/checkpoints";
  auto options = tiny_options(folder, 2);
  options.run = {"first", "17", "00000000000000000000000000000001"};
  const RunOptions rest{.loop = {.steps = 12}, .checkpoint_directory = directory};
  require_success(
      run_world(2, options, {.loop = {.steps = 12}, .checkpoint_directory = directory, .stop_at_step = 4}));
  options.run = {"second", "17", "00000000000000000000000000000002"};

  for (const RankRun& rank : run_world(2, options, rest)) {
    CHECK(rank.error_code == base::Code::kInvalid);
    CHECK(rank.error.find("step_00000004 was written by another run, first 17") != std::string::npos);
  }

  options.shares_checkpoints = true;
  const auto ranks = run_world(2, options, rest);
  require_success(ranks);
  CHECK(ranks[0].notices == std::vector<std::string>{"goes on from a checkpoint of run first 17"});
  CHECK(ranks[1].notices.empty());
  CHECK(*ranks[0].resumed_from == directory + "/step_00000004");
}

TEST_CASE("resuming: weights that a job names and that are none are bad input on every rank") {
  const Folder folder;
  auto options = tiny_options(folder, 2);
  options.initial_weights = folder.path() + "/hf";
  std::filesystem::create_directory(options.initial_weights);
  std::ofstream(options.initial_weights + "/model.safetensors") << "no header";

  const auto ranks = run_world(2, options, {.loop = {.steps = 1}});

  for (const RankRun& rank : ranks) {
    CHECK(rank.error_code == base::Code::kInvalid);
    CHECK(rank.error.find("[model] init: ") == 0);
  }
}

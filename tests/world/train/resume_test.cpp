// Resuming from checkpoints that are damaged, unreadable, or another run's.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

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
  shard.put('\x55');
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
  std::filesystem::create_directory(shard);  // it opens, but reading it fails for everybody, root included
  refuses("errno 21");
  std::filesystem::remove(shard);
  std::filesystem::rename(shard + ".aside", shard);

  const auto ranks = run_world(2, options, rest);

  require_success(ranks);
  CHECK(*ranks[1].resumed_from == directory + "/step_00000007");
}

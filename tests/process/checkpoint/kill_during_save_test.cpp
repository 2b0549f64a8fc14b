// A saver that is killed at any moment leaves only whole checkpoints behind. (Power loss is another matter:
// fsync cannot be tested by killing a process.)
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/base/io.h"
#include "runtime/checkpoint/store.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
namespace fs = std::filesystem;

namespace {

const std::vector<int64_t> kBlocks{40000, 130};

struct Shards {
  explicit Shards(float value)
      : layout(shard::make_layout(kBlocks, 1)),
        master(static_cast<size_t>(layout.flat_shard_elements), value),
        moment1(master.size(), value + 0.25F),
        moment2(master.size(), value + 0.5F) {}
  ShardState state() { return {master, moment1, moment2}; }

  shard::ShardLayout layout;
  std::vector<float> master, moment1, moment2;
};

bool save(const Store& store, int64_t step) {
  Shards shards(static_cast<float>(step));
  Manifest manifest;
  manifest.step = step;
  manifest.block_elements = kBlocks;
  return store.write_shard(step, shards.layout, 0, shards.state()) && store.publish(manifest);
}

// Saves steps from `first` on until it is killed. Runs in the child.
[[noreturn]] void save_forever(const Store& store, int64_t first) {
  for (int64_t step = first; save(store, step); ++step) {
  }
  ::_exit(1);
}

// Every complete checkpoint holds what was saved as its step; returns the newest, or 0.
int64_t check_all(const Store& store) {
  const auto steps = store.steps();
  REQUIRE(steps);
  for (int64_t step : *steps) {
    CAPTURE(step);
    Shards shards(-1.0F);
    const auto manifest = store.read_manifest(step);
    REQUIRE(manifest);
    const auto loaded = store.read_shard(*manifest, shards.layout, 0, shards.state());
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().to_string()));
    CHECK(shards.master[39999] == static_cast<float>(step));
    CHECK(shards.moment2[0] == static_cast<float>(step) + 0.5F);
  }
  return steps->empty() ? 0 : steps->front();
}

}  // namespace

TEST_CASE(
    "store: a saver killed at any moment leaves whole checkpoints, and latest names one that is there") {
  std::string folder = (fs::temp_directory_path() / "shardrun-kill-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const Store store(folder, 2);
  const auto started = std::chrono::steady_clock::now();
  REQUIRE(save(store, 1));
  const auto one_save =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - started);
  int64_t newest = 1;
  for (uint64_t round = 0; round < 40; ++round) {
    const pid_t saver = ::fork();
    REQUIRE(saver >= 0);
    if (saver == 0) save_forever(store, newest + 1);
    std::this_thread::sleep_for(one_save * static_cast<int>(base::random_bits(11, round) % 300) / 100);
    ::kill(saver, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(saver, &status, 0) == saver);
    REQUIRE(WIFSIGNALED(status));

    const int64_t now = check_all(store);

    CHECK(now >= newest);
    newest = now;
    if (const auto latest = base::read_file(folder + "/latest")) {
      const int64_t named = parse_step_name(latest->substr(0, latest->size() - 1));
      CHECK(fs::exists(store.path_of(named) + "/manifest.json"));
    }
  }
  CHECK(newest > 10);
  fs::remove_all(folder);
}

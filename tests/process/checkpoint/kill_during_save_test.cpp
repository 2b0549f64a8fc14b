// A saver that is killed at any moment leaves only whole checkpoints behind. (Power loss is another matter:
// fsync cannot be tested by killing a process.)
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/base/io.h"
#include "runtime/trainer/checkpoint/background_saver.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
namespace fs = std::filesystem;

namespace {

constexpr Place kPlace{{1, 1, 1}, 0, 0, 0};

// Returns 480 KB of state, so that a save takes long enough to be hit in each of its parts.
std::vector<model::BlockLayout> blocks() {
  std::vector<model::BlockLayout> result;
  for (const int64_t elements : {40000, 130}) {
    model::ParameterInfo info;
    info.name = "tensor " + std::to_string(elements);
    info.shape = {elements};
    result.push_back({"block", {info}, elements});
  }
  return result;
}

struct Shards {
  explicit Shards(float value)
      : layout(plan::make_layout(std::vector<int64_t>{40000, 130}, 1)),
        master(static_cast<size_t>(layout.flat_shard_elements), value),
        moment1(master.size(), value + 0.25F),
        moment2(master.size(), value + 0.5F) {}
  ShardState state() { return {master, moment1, moment2}; }

  plan::ShardLayout layout;
  std::vector<float> master, moment1, moment2;
};

Manifest manifest_of(int64_t step) {
  Manifest manifest;
  manifest.step = step;
  manifest.model = "{}";
  const auto layouts = blocks();
  manifest.blocks = describe_blocks({&layouts, 1});
  return manifest;
}

// Does what a trainer of one rank does, without the training: saves in the background, changes the state while it
// is being written, agrees, until it is killed. Runs in the child.
[[noreturn]] void save_forever(const Store& store, int64_t first) {
  std::vector<float> staging(static_cast<size_t>(plan::staging_elements(Shards(0.0F).layout, 1)));
  BackgroundSaver saver(store, /*publishes=*/true, /*ranks=*/1, staging);
  for (int64_t step = first;; ++step) {
    Shards shards(static_cast<float>(step));
    saver.start(manifest_of(step), kPlace, shards.layout, shards.state());
    saver.before_update();
    for (auto* tensor : {&shards.master, &shards.moment1, &shards.moment2}) {
      for (float& value : *tensor) value = -1.0F;
    }
    while (saver.in_flight()) {
      saver.wait();
      const auto outcome = saver.agree(saver.votes());
      if (outcome && !*outcome) ::_exit(1);
    }
  }
}

bool all_are(const std::vector<float>& values, size_t count, float wanted) {
  return std::all_of(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count),
                     [=](float value) { return value == wanted; });
}

// Checks that every complete checkpoint holds what was saved as its step; returns the newest, or 0.
int64_t check_all(const Store& store) {
  const auto steps = store.steps();
  REQUIRE(steps);
  const auto layouts = blocks();
  for (int64_t step : *steps) {
    CAPTURE(step);
    Shards shards(-2.0F);
    const auto manifest = store.read_manifest(step);
    REQUIRE(manifest);
    const auto loaded = store.read_shard(*manifest, {layouts, shards.layout, 0}, shards.state());
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().to_string()));
    CHECK(all_are(shards.master, 40000, static_cast<float>(step)));
    CHECK(all_are(shards.moment1, 40000, static_cast<float>(step) + 0.25F));
    CHECK(all_are(shards.moment2, 40000, static_cast<float>(step) + 0.5F));
  }
  return steps->empty() ? 0 : steps->front();
}

pid_t start_saver(const Store& store, int64_t first) {
  const pid_t saver = ::fork();
  REQUIRE(saver >= 0);
  if (saver == 0) save_forever(store, first);
  return saver;
}

void kill_saver(pid_t saver) {
  ::kill(saver, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(saver, &status, 0) == saver);
  REQUIRE(WIFSIGNALED(status));
}

// Measures the time from the start of a saver to its first complete checkpoint, on this machine as it is now.
std::chrono::microseconds time_of_first_save(const Store& store) {
  const auto started = std::chrono::steady_clock::now();
  const pid_t saver = start_saver(store, 1);
  while (store.steps()->empty()) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    REQUIRE(std::chrono::steady_clock::now() - started < std::chrono::seconds(30));
  }
  const auto now = std::chrono::steady_clock::now();
  kill_saver(saver);
  return std::chrono::duration_cast<std::chrono::microseconds>(now - started);
}

}  // namespace

TEST_CASE(
    "saving: killed at 200 random moments, the newest complete checkpoint loads, none is damaged, none is "
    "lost") {
  std::string folder = (fs::temp_directory_path() / "shardrun-kill-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const Store store(folder, 2);
  // How late a kill may come, in µs: it follows what saves take meanwhile.
  auto window = 3 * static_cast<uint64_t>(time_of_first_save(store).count());
  int64_t newest = check_all(store), unfinished = 0, unpublished = 0;
  for (uint64_t round = 0; round < 200; ++round) {
    const pid_t saver = start_saver(store, newest + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(base::random_bits(11, round) % window));
    kill_saver(saver);
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".tmp") continue;
      ++unfinished;
      unpublished += fs::exists(entry.path() / "manifest.json") ? 1 : 0;
    }

    const int64_t now = check_all(store);

    CHECK(now >= newest);
    window = now > newest ? window - window / 8 : window + window / 8;
    newest = now;
    if (const auto latest = base::read_file(folder + "/latest")) {
      const int64_t named = parse_step_name(latest->substr(0, latest->size() - 1));
      CHECK(fs::exists(store.path_of(named) + "/manifest.json"));
    }
  }
  MESSAGE("newest step " << newest << ", " << unfinished << " saves were hit, " << unpublished
                         << " of them with a manifest");
  CHECK(newest > 10);
  CHECK(unfinished > 20);  // otherwise the kills missed what they were to hit
  fs::remove_all(folder);
}

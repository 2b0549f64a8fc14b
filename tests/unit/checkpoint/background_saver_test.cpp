#include "runtime/trainer/checkpoint/background_saver.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "tests/unit/checkpoint/state.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
namespace fs = std::filesystem;

namespace {

using Outcome = std::optional<Result<std::string>>;

// The ranks of a world, driven one after another by one thread, with the sum that their trainers would make.
class World {
 public:
  World(const Store& store, const Spread& spread) {
    for (const Place& place : all_places(spread)) {
      places_.push_back(place);
      states_.push_back(std::make_unique<RankState>(place, /*fill=*/true));
      staging_.emplace_back(
          static_cast<size_t>(plan::staging_elements(states_.back()->layout, spread.replicas)));
      savers_.push_back(
          std::make_unique<BackgroundSaver>(store, place.file() == 0, spread.files(), staging_.back()));
    }
  }
  void start(int64_t step) {
    for (size_t i = 0; i < savers_.size(); ++i) {
      savers_[i]->start(manifest_of(step, places_[i].spread), places_[i], states_[i]->layout,
                        states_[i]->view());
    }
  }
  // Makes one agreement; returns the outcome of every rank.
  std::vector<Outcome> agree() {
    BackgroundSaver::Votes sums{0.0, 0.0};
    for (auto& saver : savers_) {
      const auto votes = saver->votes();
      sums[0] += votes[0];
      sums[1] += votes[1];
    }
    std::vector<Outcome> outcomes;
    for (auto& saver : savers_) outcomes.push_back(saver->agree(sums));
    return outcomes;
  }
  std::vector<Outcome> finish() {
    while (true) {
      for (auto& saver : savers_) saver->wait();
      auto outcomes = agree();
      if (outcomes[0]) return outcomes;
    }
  }
  BackgroundSaver& saver(size_t i) { return *savers_[i]; }
  RankState& state(size_t i) { return *states_[i]; }
  size_t size() const { return savers_.size(); }

 private:
  std::vector<Place> places_;
  std::vector<std::unique_ptr<RankState>> states_;
  std::vector<std::vector<float>> staging_;
  std::vector<std::unique_ptr<BackgroundSaver>> savers_;
};

}  // namespace

TEST_CASE(
    "background saver: it is complete when every rank has written and rank 0 has published, and not before") {
  const Folder folder;
  const Store store(folder.path(), 2);
  World world(store, {1, 2, 1});

  world.start(10);
  for (size_t i = 0; i < world.size(); ++i) world.saver(i).wait();
  CHECK(store.steps()->empty());
  const auto written = world.agree();
  const auto published = world.finish();

  CHECK(!written[0]);
  CHECK(!written[1]);
  for (const Outcome& outcome : published) {
    REQUIRE(outcome);
    REQUIRE(*outcome);
    CHECK(**outcome == store.path_of(10));
  }
  CHECK(!world.saver(0).in_flight());
  CHECK(load_rank(store, 10, place_of({1, 1, 1}, 0)));
}

TEST_CASE("background saver: all that a stuck writer has not taken is copied, without waiting for it") {
  const Folder folder;
  const Store store(folder.path(), 2);
  World world(store, {1, 1, 1});
  fs::create_directories(store.unpublished_path_of(10));
  const std::string pipe = store.unpublished_path_of(10) + "/" + shard_file_name(0);
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);  // opening it for writing hangs until somebody reads
  uint64_t elements = 0;
  for (const auto& block : world.state(0).layout.blocks) elements += static_cast<uint64_t>(block.elements);

  world.start(10);
  world.saver(0).before_update();
  const uint64_t staged = world.saver(0).bytes_staged();
  world.saver(0).before_update();
  const auto votes = world.saver(0).votes();
  const std::ifstream reader(pipe);
  const auto outcomes = world.finish();

  CHECK(staged == 3 * sizeof(float) * elements);
  CHECK(world.saver(0).bytes_staged() == staged);
  CHECK(votes == BackgroundSaver::Votes{0.0, 0.0});
  CHECK(!*outcomes[0]);  // a pipe is no file
}

TEST_CASE("background saver: a change at any moment after before_update() leaves the checkpoint as it was") {
  const Folder folder;
  const Store store(folder.path(), 2);
  for (int round = 0; round < 30; ++round) {
    World world(store, {1, 2, 1});
    std::vector<std::vector<float>> before;
    for (size_t i = 0; i < 2; ++i) before.push_back(world.state(i).master);

    world.start(round);
    std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
    for (size_t i = 0; i < 2; ++i) {
      world.saver(i).before_update();
      for (auto* tensor : {&world.state(i).master, &world.state(i).moment1, &world.state(i).moment2}) {
        for (float& value : *tensor) value += 100000.0F;
      }
    }
    const auto outcomes = world.finish();

    REQUIRE(*outcomes[0]);
    for (int rank = 0; rank < 2; ++rank) {
      RankState loaded(place_of({1, 2, 1}, rank), /*fill=*/false);
      REQUIRE(store.read_shard(*store.read_manifest(round), loaded.target(), loaded.view()));
      CHECK(loaded.master == before[static_cast<size_t>(rank)]);
    }
  }
}

TEST_CASE(
    "background saver: one rank's failure is every rank's, names the file there, and the next save works") {
  const Folder folder;
  const Store store(folder.path(), 2);
  World world(store, {1, 3, 1});
  const std::string in_the_way = store.unpublished_path_of(10) + "/" + shard_file_name(1);
  fs::create_directories(in_the_way);  // a folder where rank 1's file should go

  world.start(10);
  const auto failed = world.finish();
  world.start(20);
  const auto saved = world.finish();

  REQUIRE(failed[1]);
  CHECK(failed[1]->error().code() == base::Code::kIo);
  CHECK(failed[1]->error().to_string().find(in_the_way) != std::string::npos);
  for (const size_t other : {0, 2}) {
    REQUIRE(failed[other]);
    CHECK(failed[other]->error().code() == base::Code::kPeerLost);
    CHECK(failed[other]->error().message() == "another rank could not save " + store.path_of(10));
  }
  REQUIRE(*saved[0]);
  CHECK(*store.steps() == std::vector<int64_t>{20});
  CHECK(!fs::exists(store.unpublished_path_of(10)));
}

TEST_CASE("background saver: a failure to publish is every rank's too") {
  const Folder folder;
  const Store store(folder.path(), 2);
  World world(store, {1, 2, 1});

  world.start(10);
  for (size_t i = 0; i < 2; ++i) world.saver(i).wait();
  fs::remove(store.unpublished_path_of(10) + "/" + shard_file_name(1));
  const auto outcomes = world.finish();

  CHECK(outcomes[0]->error().code() == base::Code::kNotFound);
  CHECK(outcomes[1]->error().code() == base::Code::kPeerLost);
  CHECK(!world.saver(1).in_flight());
}

TEST_CASE("background saver: destroyed in the middle of a save it ends, and leaves no complete checkpoint") {
  const Folder folder;
  const Store store(folder.path(), 2);
  {
    World world(store, {1, 1, 1});
    world.start(10);
  }
  CHECK(store.steps()->empty());
}

TEST_CASE("background saver: without a save in flight nothing is voted, agreed or waited for") {
  const Folder folder;
  BackgroundSaver saver(Store(folder.path(), 1), /*publishes=*/true, 1, {});

  saver.before_update();
  saver.wait();

  CHECK(saver.votes() == BackgroundSaver::Votes{0.0, 0.0});
  CHECK(!saver.agree({1.0, 0.0}));
  CHECK(saver.bytes_staged() == 0);
}

TEST_CASE(
    "background saver: a save that fails leaves nothing on the disk, and closes no descriptor but its own") {
  const Folder folder;
  const Store store(folder.path(), 2);
  World world(store, {1, 2, 1});
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit little { 256, before.rlim_max };
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &little);
  world.start(10);
  for (size_t i = 0; i < world.size(); ++i) world.saver(i).wait();
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  std::vector<base::UniqueFd> of_others;  // some have the numbers that the writers' files had
  while (of_others.size() < 64) of_others.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));

  const auto outcomes = world.agree();

  for (const Outcome& outcome : outcomes) {
    REQUIRE(outcome);
    CHECK(!*outcome);
  }
  for (const base::UniqueFd& fd : of_others) CHECK(::fcntl(fd.get(), F_GETFD) >= 0);
  CHECK(!fs::exists(store.unpublished_path_of(10)));
  world.start(20);
  CHECK(*world.finish()[0]);
}

TEST_CASE("background saver: a process that has no descriptors left saves all the same") {
  const Folder folder;
  const Store store(folder.path(), 2);
  World world(store, {1, 2, 1});
  struct rlimit before {};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const struct rlimit few { 64, before.rlim_max };
  ::setrlimit(RLIMIT_NOFILE, &few);
  std::vector<base::UniqueFd> strangers;
  do strangers.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  while (strangers.back());

  world.start(10);
  const auto outcomes = world.finish();

  strangers.clear();
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE(outcomes[0]);
  if (!*outcomes[0] && ::unshare(CLONE_FILES) != 0) {
    MESSAGE("not tested: the kernel gives no thread descriptors of its own here");
    return;
  }
  CHECK_MESSAGE(*outcomes[0], (*outcomes[0] ? "" : outcomes[0]->error().to_string()));
  CHECK(*store.steps() == std::vector<int64_t>{10});
}

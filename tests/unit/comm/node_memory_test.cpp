#include "plugins/ofi/node_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/small_shm.h"

using namespace shardrun::ofi;

namespace {

constexpr uint64_t kCache = 1 << 20;  // what one CPU of a server keeps to itself

// Two ranks of a node, as one process, and their parts of one region.
struct Pair {
  std::array<std::unique_ptr<NodeMemory>, 2> memory;
  std::array<std::unique_ptr<NodeRegion>, 2> region;

  explicit Pair(uint64_t number) {
    const std::array<uint64_t, 2> cookies = {uint64_t(getpid()) << 20 | number,
                                             uint64_t(getpid()) << 20 | (number + 1)};
    for (uint32_t rank = 0; rank < 2; ++rank) REQUIRE(NodeMemory::open(cookies[rank], &memory[rank]).ok());
    for (uint32_t rank = 0; rank < 2; ++rank) {
      REQUIRE(memory[rank]->connect(cookies, rank, /*crowd=*/2).ok());
      region[rank] =
          std::make_unique<NodeRegion>(memory[rank].get(), 0, 0, std::vector<uint32_t>{0, 1}, /*group=*/7);
    }
  }
  bool attach(uint32_t rank) {
    bool ready = false;
    REQUIRE(region[rank]->attach(/*writes_to_all=*/true, /*writes_to_one=*/true, &ready).ok());
    return ready;
  }
  void attach_both() {
    for (bool ready = false; !ready;) {
      ready = attach(0);
      ready &= attach(1);
    }
  }
};

}  // namespace

TEST_CASE(
    "memory of a node: what a rank reads before a slot is written again is larger than a CPU's own cache") {
  for (const uint32_t ranks : {2u, 4u, 8u, 16u}) {
    const NodeGeometry geometry(ranks);
    constexpr uint64_t kRegions = 2;
    CHECK(kRegions * geometry.slots_to_all() * geometry.chunk_to_all() * (ranks - 1) >= kCache);
    CHECK(kRegions * geometry.slots_to_one() * geometry.chunk_to_one() * (ranks - 1) >= kCache);
    CHECK(geometry.region_bytes() <= uint64_t{4} << 20);  // SHARDRUN_COMM_V1_NODE_BYTES
  }
  Pair pair(0);
  pair.attach_both();
  std::set<std::byte*> places;
  for (int chunk = 0; chunk < 8; ++chunk) {
    std::byte* const room = pair.region[0]->room_to_one(1);
    places.insert(room);
    pair.region[0]->publish_to_one(1, {});
    REQUIRE(pair.region[1]->next_from_one(0) != nullptr);
    pair.region[1]->release_from_one(0);
  }

  CHECK(places.size() == 8);
}

TEST_CASE("memory of a node: a lent chunk is read where it is, until its writer withdraws it") {
  Pair pair(10);
  pair.attach_both();
  REQUIRE(pair.region[0]->may_lend());
  std::vector<std::byte> lent(100'000, std::byte{7}), read(lent.size());
  REQUIRE(pair.region[0]->room_to_all() != nullptr);
  ChunkHead head{.bytes = lent.size()};
  head.lent = lent.data();
  pair.region[0]->publish_to_all(head);

  const ChunkHead* const there = pair.region[1]->next_from_all(0);
  REQUIRE(there != nullptr);
  CHECK(pair.region[1]->copy_from_all(0, *there, read.data()));
  CHECK(read == lent);
  CHECK_FALSE(pair.region[0]->is_returned());

  pair.memory[0]->withdraw();
  CHECK_FALSE(pair.region[1]->copy_from_all(0, *there, read.data()));

  pair.region[1]->release_from_all(0);
  CHECK(pair.region[0]->is_returned());
}

TEST_CASE("memory of a node: who waits for what it has lent is told when that is returned") {
  Pair pair(20);
  pair.attach_both();
  REQUIRE(pair.region[0]->room_to_all() != nullptr);
  pair.region[0]->publish_to_all({});
  std::vector<uint32_t> told;
  pair.region[1]->take_news(&told);
  told.clear();
  CHECK_FALSE(pair.region[0]->is_returned());

  pair.region[1]->release_from_all(0);

  pair.region[1]->take_news(&told);
  CHECK(told == std::vector<uint32_t>{0});
}

TEST_CASE("memory of a node: nothing is lent where a rank cannot read in another's memory") {
  Pair pair(30);
  pair.attach(0);
  pair.memory[0]->withdraw();  // as where the kernel refuses: what rank 1 tries fails

  pair.attach_both();

  CHECK_FALSE(pair.region[0]->may_lend());
  CHECK_FALSE(pair.region[1]->may_lend());
}

TEST_CASE("memory of a node: a rank for whose part a full /dev/shm has no page is waited for" *
          doctest::skip(!shardrun::tests::may_shrink_shm())) {
  shardrun::tests::with_small_shm("16m", [] {
    Pair pair(700);
    const auto reserve = [](const std::string& name, uint64_t bytes) {
      const int descriptor = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      REQUIRE(descriptor >= 0);
      REQUIRE(::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes)) == 0);
      ::close(descriptor);
    };
    char own[64];
    std::snprintf(own, sizeof(own), "/dev/shm/shardrun-%016llx",
                  static_cast<unsigned long long>(uint64_t(getpid()) << 20 | 700));
    reserve(own, NodeGeometry(2).region_bytes() + (64 << 10));  // with the board before it
    struct statvfs about {};
    REQUIRE(::statvfs("/dev/shm", &about) == 0);
    reserve("/dev/shm/fills", about.f_bavail * about.f_bsize);

    CHECK_FALSE(pair.attach(0));
    std::filesystem::remove("/dev/shm/fills");
    pair.attach_both();
    CHECK(pair.region[0]->room_to_all() != nullptr);
  });
}

TEST_CASE("memory of a node: files of ranks that were killed are removed, once they are old") {
  const auto made = [](uint64_t number, bool is_old) {
    char name[64];
    std::snprintf(name, sizeof(name), "/dev/shm/shardrun-%016llx",
                  static_cast<unsigned long long>(uint64_t(getpid()) << 20 | number));
    const int descriptor = ::open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(descriptor >= 0);
    const timespec long_ago[2] = {{1'600'000'000, 0}, {1'600'000'000, 0}};
    if (is_old) REQUIRE(::futimens(descriptor, long_ago) == 0);
    return std::pair(std::string(name), descriptor);
  };
  const auto [left, left_fd] = made(900, true);
  const auto [held, held_fd] = made(901, true);
  const auto [fresh, fresh_fd] = made(902, false);
  REQUIRE(::flock(held_fd, LOCK_SH) == 0);

  NodeMemory::remove_left_behind();

  CHECK(!std::filesystem::exists(left));
  CHECK(std::filesystem::exists(held));
  CHECK(std::filesystem::exists(fresh));
  for (const std::string& name : {held, fresh}) std::filesystem::remove(name);
  for (const int descriptor : {left_fd, held_fd, fresh_fd}) ::close(descriptor);
}

TEST_CASE(
    "memory of a node: a rank whose next group waits for the last one's readers is told when they have "
    "read") {
  Pair pair(800);
  pair.attach_both();
  NodeRegion& writer = *pair.region[0];
  REQUIRE(writer.room_to_all() != nullptr);
  writer.publish_to_all({.ticket = 1, .total = 8, .bytes = 8});
  NodeRegion next(pair.memory[0].get(), 0, 0, {0, 1}, /*group=*/8);
  bool ready = false;
  REQUIRE(next.attach(true, true, &ready).ok());
  REQUIRE(!ready);
  std::vector<uint32_t> news;
  pair.region[1]->take_news(&news);
  news.clear();

  REQUIRE(pair.region[1]->next_from_all(0) != nullptr);
  pair.region[1]->release_from_all(0);

  pair.region[1]->take_news(&news);
  CHECK(news == std::vector<uint32_t>{0});
}

TEST_CASE("memory of a node: who has not read what a rank gave lags behind it") {
  Pair pair(850);
  pair.attach_both();
  NodeRegion& writer = *pair.region[0];
  REQUIRE(writer.room_to_all() != nullptr);
  CHECK(!writer.lags_to_all(1));
  writer.publish_to_all({.ticket = 1, .total = 8, .bytes = 8});
  REQUIRE(writer.room_to_one(1) != nullptr);
  writer.publish_to_one(1, {.ticket = 1, .total = 8, .bytes = 8});

  CHECK(writer.lags_to_all(1));
  CHECK(writer.lags_to_one(1));
  CHECK(!writer.lags_to_all(0));
  pair.region[1]->release_from_all(0);
  pair.region[1]->release_from_one(0);
  CHECK(!writer.lags_to_all(1));
  CHECK(!writer.lags_to_one(1));
}

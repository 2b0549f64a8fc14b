#include "runtime/trainer/optim/host_moments.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "tests/fakes/watched_link.h"

using namespace shardrun;
using namespace shardrun::optim;
using fakes::WatchedStreams;
using Access = WatchedStreams::Access;
using Stream = WatchedStreams::Stream;

namespace {

constexpr int64_t kPiece = 256;

std::span<const std::byte> bytes_of(std::span<const float> values) {
  return std::as_bytes(values);
}

// Moments over watched streams, whose slots the compute stream has cleared.
struct Bench {
  explicit Bench(int64_t elements) {
    auto gpu = base::Memory::create(HostMoments::gpu_bytes(elements, kPiece));
    REQUIRE(gpu);
    streams.touch(Stream::kCompute, Access::kWrite, {gpu->data(), static_cast<size_t>(gpu->bytes())});
    auto made = HostMoments::create(elements, streams.link(), std::move(gpu).value(), kPiece);
    REQUIRE(made);
    moments = std::move(made).value();
  }

  // Turns element i into 2·m1 + i, and m2 + m1: with pieces that come again, or not at all, the values are others.
  base::Result<void> pass() {
    return moments->pass([&](int64_t first, std::span<float> moment1, std::span<float> moment2) {
      REQUIRE_EQ(moment1.size(), moment2.size());
      pieces.emplace_back(first, static_cast<int64_t>(moment1.size()));
      slots.push_back(moment1.data());
      if (first > 0) comes_beside_update &= !streams.comes_after(Stream::kIn, Stream::kCompute);
      streams.touch(Stream::kCompute, Access::kWrite, bytes_of(moment1));
      streams.touch(Stream::kCompute, Access::kWrite, bytes_of(moment2));
      for (size_t i = 0; i < moment1.size(); ++i) {
        moment1[i] = 2.0F * moment1[i] + static_cast<float>(first + static_cast<int64_t>(i));
        moment2[i] += moment1[i];
      }
    });
  }

  // Checks what two passes make of zeros.
  void check_after_two_passes() {
    REQUIRE(moments->finish());
    for (const std::span<float> moment : {moments->moment1(), moments->moment2()})
      streams.touch_from_host(Access::kRead, bytes_of(moment));
    int64_t wrong = 0;
    for (size_t i = 0; i < moments->moment1().size(); ++i) {
      const auto at = static_cast<float>(i);
      wrong += moments->moment1()[i] != 3.0F * at || moments->moment2()[i] != 4.0F * at;
    }
    CHECK_EQ(wrong, 0);
  }

  WatchedStreams streams;
  std::unique_ptr<HostMoments> moments;
  std::vector<std::pair<int64_t, int64_t>> pieces;  // first, count
  std::vector<const float*> slots;                  // where each piece was
  bool comes_beside_update = true;
};

using Pieces = std::vector<std::pair<int64_t, int64_t>>;

}  // namespace

TEST_CASE(
    "host moments: of any number of elements each is updated once a pass, and no order is left to chance") {
  for (const int64_t elements : {1, 63, 64, 65, 255, 256, 257, 512, 768, 769, 1024, 1025, 1535, 2000}) {
    CAPTURE(elements);
    Bench bench(elements);
    REQUIRE(bench.pass());
    REQUIRE(bench.pass());
    bench.check_after_two_passes();
    CHECK(bench.streams.races() == std::vector<std::string>{});
  }
}

TEST_CASE("host moments: pieces go through three slots in turn, from the first one on in every pass") {
  Bench bench(1000);
  REQUIRE(bench.pass());
  CHECK(bench.pieces == Pieces{{0, 256}, {256, 256}, {512, 256}, {768, 232}});
  const auto slots = bench.slots;
  CHECK_EQ(slots[1], slots[0] + 512);  // each has both moments
  CHECK_EQ(slots[2], slots[1] + 512);
  CHECK_EQ(slots[3], slots[0]);
  // Each copy has both moments of a piece, and no more of the last one than there is.
  const std::vector<int64_t> copies{256, 256, 256, 256, 256, 256, 232, 232};
  CHECK(bench.streams.copies_in() == copies);
  CHECK(bench.streams.copies_out() == copies);
  bench.slots.clear();
  REQUIRE(bench.pass());
  CHECK(bench.slots == slots);
}

TEST_CASE("host moments: a shard smaller than a slot has slots of its own size, a larger one of a piece's") {
  struct Case {
    int64_t elements, slot;
  };
  for (const Case& one : {Case{5, 64}, Case{64, 64}, Case{65, 128}, Case{256, 256}, Case{9999, 256}}) {
    CAPTURE(one.elements);
    CHECK_EQ(HostMoments::gpu_bytes(one.elements, kPiece), 3 * 2 * one.slot * 4);
    CHECK_EQ(HostMoments::host_bytes(one.elements), 2 * one.elements * 4);
    const Bench bench(one.elements);
    CHECK_EQ(bench.streams.pinned_bytes(), 2 * one.elements * 4);
  }
  Bench small(5);
  REQUIRE(small.pass());
  CHECK(small.pieces == Pieces{{0, 5}});
}

TEST_CASE("host moments: the way there and the way back run beside each other and beside updates") {
  Bench bench(5 * kPiece);
  REQUIRE(bench.pass());
  // A piece comes without waiting for the update of the one before, and goes without holding up the next.
  CHECK(bench.comes_beside_update);
  CHECK_FALSE(bench.streams.comes_after(Stream::kIn, Stream::kOut));
  CHECK_FALSE(bench.streams.comes_after(Stream::kCompute, Stream::kOut));
  CHECK_FALSE(bench.streams.comes_after(Stream::kIn, Stream::kCompute));
}

TEST_CASE(
    "host moments: what the host reads without finish() is left to chance, which the watch would tell") {
  Bench bench(300);
  REQUIRE(bench.pass());
  bench.streams.touch_from_host(Access::kRead, bytes_of(bench.moments->moment1()));
  CHECK_FALSE(bench.streams.races().empty());
}

TEST_CASE("host moments: values that the host wrote between two passes are those that the next one updates") {
  Bench bench(600);
  REQUIRE(bench.pass());
  REQUIRE(bench.moments->finish());
  for (float& value : bench.moments->moment1()) value = 1.0F;
  bench.streams.touch_from_host(Access::kWrite, bytes_of(bench.moments->moment1()));
  REQUIRE(bench.pass());
  REQUIRE(bench.moments->finish());
  CHECK_EQ(bench.moments->moment1()[0], 2.0F);
  CHECK_EQ(bench.moments->moment1()[599], 601.0F);
  CHECK(bench.streams.races() == std::vector<std::string>{});
}

TEST_CASE(
    "host moments: a fault of any copy ends the pass with its words, and no piece is updated after it") {
  constexpr int kCopies = 4 * 3;  // two copies each way, of three pieces
  for (int copy = 0; copy < kCopies; ++copy) {
    CAPTURE(copy);
    Bench bench(3 * kPiece);
    bench.streams.fail_copy(copy);
    const auto done = bench.pass();
    REQUIRE_FALSE(done);
    CHECK_EQ(done.error().code(), base::Code::kIo);
    CHECK_EQ(bench.pieces.size(), static_cast<size_t>((copy + 2) / 4));
  }
}

#include "plugins/ofi/ring_writer.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>

using shardrun::ofi::WayToRing;
using std::chrono::microseconds;

namespace {

constexpr uint64_t kChunk = 64 << 10;
constexpr microseconds kNear{6}, kFar{28}, kPast{5};

}  // namespace

TEST_CASE(
    "ring writer: chunks that go fast through the caches stay there, and one that was interrupted changes "
    "nothing") {
  WayToRing way;
  for (int chunk = 0; chunk < 1000; ++chunk) {
    CHECK_FALSE(way.passes_caches());
    way.took(kChunk, chunk % 2 == 0 ? kNear : microseconds{4000});
  }
}

TEST_CASE("ring writer: far from its reader it passes the caches by, but for a trial now and then") {
  WayToRing way;
  int through = 0;
  for (int chunk = 0; chunk < 10 * WayToRing::kMostTrusted; ++chunk) {
    through += way.passes_caches() ? 0 : 1;
    way.took(kChunk, way.passes_caches() ? kPast : kFar);
  }
  CHECK(through >= 2);
  CHECK(through <= 20);
}

TEST_CASE("ring writer: once the reader is near again, so are its caches") {
  WayToRing way;
  for (int chunk = 0; chunk < 5; ++chunk) way.took(kChunk, way.passes_caches() ? kPast : kFar);
  CHECK(way.passes_caches());
  for (int chunk = 0; chunk < 2 * WayToRing::kMostTrusted; ++chunk)
    way.took(kChunk, way.passes_caches() ? kPast : kNear);
  CHECK_FALSE(way.passes_caches());
}

TEST_CASE("ring writer: first chunks, whose pages are new, send few others past the caches") {
  WayToRing way;
  for (int chunk = 0; chunk < 2; ++chunk) way.took(kChunk, kFar);
  int past = 0;
  for (int chunk = 0; chunk < 100; ++chunk) {
    past += way.passes_caches() ? 1 : 0;
    way.took(kChunk, way.passes_caches() ? kPast : kNear);
  }
  CHECK(past == WayToRing::kFirstTrusted);
}

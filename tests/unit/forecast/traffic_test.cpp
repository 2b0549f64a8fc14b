// What crosses the network in a collective, against literal counts.
#include <doctest/doctest.h>

#include "launcher/forecast/traffic.h"

using namespace shardrun::launcher;

namespace {

constexpr double kMega = 1e6;

void check(CollectiveKind kind, const OnNodes& spread, double bytes, int64_t messages, double sent) {
  const Traffic traffic = traffic_of(kind, spread, bytes);
  CHECK(traffic.messages == messages);
  CHECK(traffic.bytes == doctest::Approx(sent));
}

}  // namespace

TEST_CASE("traffic: inside of a node nothing crosses the network") {
  check(CollectiveKind::kAllGather, {8, 1}, 8 * kMega, 0, 0.0);
  check(CollectiveKind::kAllReduce, {8, 1}, 8 * kMega, 0, 0.0);
}

TEST_CASE("traffic: each part of an all-gather enters every other node once") {
  // Two ranks a node each send their part of 1 MB to one rank of each of three nodes.
  check(CollectiveKind::kAllGather, {8, 4}, 8 * kMega, 6, 6 * kMega);
  check(CollectiveKind::kAllGather, {16, 2}, 16 * kMega, 8, 8 * kMega);
  check(CollectiveKind::kAllGather, {4, 4}, 4 * kMega, 3, 3 * kMega);
}

TEST_CASE(
    "traffic: a node sends its sum of each slice that others own, once where its ranks are a whole subtree") {
  check(CollectiveKind::kReduceScatter, {8, 4}, 8 * kMega, 6, 6 * kMega);
  check(CollectiveKind::kReduceScatter, {16, 2}, 16 * kMega, 8, 8 * kMega);
  // Ranks 0 to 2 are two subtrees, and so are ranks 3 to 5: each node sends two sums of three slices.
  check(CollectiveKind::kReduceScatter, {6, 2}, 6 * kMega, 6, 6 * kMega);
  // Three nodes of two: six ranks are whole subtrees of two.
  check(CollectiveKind::kReduceScatter, {6, 3}, 6 * kMega, 4, 4 * kMega);
}

TEST_CASE("traffic: an all-reduce sends the sums and then gives them to all") {
  check(CollectiveKind::kAllReduce, {8, 4}, 8 * kMega, 12, 12 * kMega);
}

TEST_CASE("traffic: of few bytes one rank speaks for its node, above eight nodes in log2 rounds") {
  check(CollectiveKind::kAllGather, {8, 4}, 8000.0, 3, 3 * 2000.0);
  check(CollectiveKind::kAllReduce, {8, 4}, 64.0, 3, 3 * 64.0);
  // 16 nodes: 1, 2, 4 and 8 blocks, of which some go around the end of the table in two messages.
  const Traffic traffic = traffic_of(CollectiveKind::kAllReduce, {16, 16}, 64.0);
  CHECK(traffic.bytes == doctest::Approx(15 * 64.0));
  CHECK(traffic.messages == 4);
}

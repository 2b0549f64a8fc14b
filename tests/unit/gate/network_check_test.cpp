#include "runtime/gate/network_check.h"

#include <doctest/doctest.h>

#include <set>

TEST_CASE("network check: pairs that are timed at once share no node, and every pair has its round") {
  for (int nodes = 3; nodes <= 64; ++nodes) {
    CAPTURE(nodes);
    const int rounds = 2 + nodes % 2;
    for (int round = 0; round < rounds; ++round) {
      std::set<int> busy;
      for (int edge = 0; edge < nodes; ++edge) {
        const int in = shardrun::gate::pair_round(edge, nodes);
        REQUIRE(in < rounds);
        if (in != round) continue;
        CHECK(busy.insert(edge).second);
        CHECK(busy.insert((edge + 1) % nodes).second);
      }
    }
  }
}

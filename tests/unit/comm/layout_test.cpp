// Who does what for whom in a collective, as literal plans.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "plugins/common/layout.h"
#include "plugins/common/sum_tree.h"
#include "plugins/ofi/chunk_walk.h"
#include "tests/support/bf16_number.h"
#include "tests/support/tree_sum.h"

using namespace shardrun;
using namespace shardrun::common;
using shardrun::ofi::ChunkWalk;
using shardrun::ofi::Piece;

namespace {

using Ranks = std::vector<uint32_t>;
using Trees = std::vector<Subtree>;

Layout layout_of(const std::string& nodes) {  // a letter for each rank
  return make_layout(std::vector<uint64_t>(nodes.begin(), nodes.end()), 8);
}

// Sums one number of each rank as nodes do it: their subtrees first, and then those.
template <typename T>
T sum_by_nodes(const std::vector<T>& numbers, const std::string& nodes) {
  const Layout layout = layout_of(nodes);
  std::map<uint32_t, std::pair<Subtree, T>> sums;
  for (uint32_t node = 0; node < layout.nodes(); ++node) {
    for (const Subtree& root : layout.roots[node]) {
      Trees leaves;
      std::vector<const T*> inputs;
      for (uint32_t rank = root.begin; rank < root.end; ++rank) {
        leaves.push_back({rank, rank + 1});
        inputs.push_back(&numbers[rank]);
      }
      T sum{};
      run_sum<T>(plan_sum(leaves, root), inputs, &sum, 1);
      sums[root.begin] = {root, sum};
    }
  }
  Trees trees;
  std::vector<const T*> inputs;
  for (const auto& [begin, sum] : sums) {
    trees.push_back(sum.first);
    inputs.push_back(&sum.second);
  }
  T total{};
  run_sum<T>(plan_sum(trees, {0, layout.size()}), inputs, &total, 1);
  return total;
}

}  // namespace

TEST_CASE(
    "layout: a part is received by the rank of equal place on every other node, and by its owner at home") {
  const Layout layout = layout_of("aabbcc");

  CHECK(layout.nodes() == 3);
  CHECK(layout.leader(/*node=*/0, /*part=*/0) == 0);
  CHECK(layout.leader(1, 0) == 2);
  CHECK(layout.leader(2, 1) == 5);
  CHECK(layout.led_by(0) == Ranks{2, 4});
  CHECK(layout.led_by(3) == Ranks{5, 1});
}

TEST_CASE("layout: nodes of different size share the parts out, and each part has one leader a node") {
  for (const std::string nodes : {"aaabbbbb", "abababab", "abbbbbbb", "abcdefgh", "aaaaaaaa", "aabbbcdddd"}) {
    const Layout layout = layout_of(nodes);
    std::map<uint32_t, std::set<uint32_t>> nodes_of_part;
    for (uint32_t rank = 0; rank < layout.size(); ++rank) {
      for (const uint32_t part : layout.led_by(rank)) {
        CHECK(layout.leader(layout.node_of[rank], part) == rank);
        CHECK(nodes_of_part[part].insert(layout.node_of[rank]).second);
      }
    }
    for (uint32_t part = 0; part < layout.size(); ++part)
      CHECK(nodes_of_part[part].size() == layout.nodes() - 1);
  }
  CHECK(layout_of("aaabbbbb").led_by(0) == Ranks{3, 6});
  CHECK(layout_of("aaabbbbb").led_by(7) == Ranks{});
}

TEST_CASE("sum tree: a node sends the largest complete subtrees that its ranks form") {
  CHECK(largest_subtrees(Ranks{0, 1, 2, 3}, 8) == Trees{{0, 4}});
  CHECK(largest_subtrees(Ranks{0, 1, 2}, 8) == Trees{{0, 2}, {2, 3}});
  CHECK(largest_subtrees(Ranks{3, 4, 5, 6, 7}, 8) == Trees{{3, 4}, {4, 8}});
  CHECK(largest_subtrees(Ranks{0, 2, 4, 6}, 8) == Trees{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK(largest_subtrees(Ranks{4, 5}, 6) == Trees{{4, 6}});  // there are no ranks 6 and 7
  CHECK(largest_subtrees(Ranks{0, 1, 2, 3, 4}, 5) == Trees{{0, 5}});
}

TEST_CASE("sum tree: neighbours are added first, and who has no neighbour joins later") {
  CHECK(plan_sum(Trees{{0, 1}, {1, 2}, {2, 3}, {3, 4}}, {0, 4}).adds ==
        std::vector<Add>{{0, 1, 4}, {2, 3, 5}, {4, 5, 4}});
  CHECK(plan_sum(Trees{{0, 1}, {1, 2}, {2, 3}}, {0, 3}).adds == std::vector<Add>{{0, 1, 3}, {3, 2, 3}});
  CHECK(plan_sum(Trees{{0, 2}, {2, 3}, {3, 4}, {4, 8}}, {0, 8}).adds ==
        std::vector<Add>{{1, 2, 4}, {0, 4, 4}, {4, 3, 4}});
  CHECK(plan_sum(Trees{{0, 6}}, {0, 6}).adds.empty());
}

TEST_CASE("sum tree: every placement of the ranks on nodes gives the same bits, which show the order") {
  std::vector<float> numbers;
  for (int rank = 0; rank < 8; ++rank)
    numbers.push_back((rank % 3 == 0 ? 1e8f : -3e7f) + 1.37f * static_cast<float>(rank));
  const float expected = tests::tree_sum(8, [&](int rank) { return numbers[static_cast<size_t>(rank)]; });
  float in_a_row = 0;
  for (const float number : numbers) in_a_row += number;
  REQUIRE(in_a_row != expected);

  for (const char* nodes :
       {"aaaaaaaa", "aaaabbbb", "aabbccdd", "abcdefgh", "aaabbbbb", "abababab", "abbbccca"})
    CHECK(sum_by_nodes(numbers, nodes) == expected);
}

TEST_CASE("sum tree: in bf16, too, no placement changes a bit, for every sum of two is rounded") {
  std::vector<Bf16> numbers;
  std::vector<tests::Bf16Number> same;
  float exact = 0;
  for (const float number : {256.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f}) {
    same.push_back(tests::Bf16Number::nearest(number));
    numbers.push_back({same.back().bits});
    exact += number;
  }
  const auto expected = tests::tree_sum(8, [&](int rank) { return same[static_cast<size_t>(rank)]; });
  REQUIRE(expected.value() == 262.0f);  // 256 + 1 stays 256
  REQUIRE(tests::Bf16Number::nearest(exact).value() == 264.0f);

  for (const char* nodes :
       {"aaaaaaaa", "aaaabbbb", "aabbccdd", "abcdefgh", "aaabbbbb", "abababab", "abbbccca"})
    CHECK(sum_by_nodes(numbers, nodes).bits == expected.bits);
}

TEST_CASE("sum tree: bf16 sums go to the nearest number, ties to the even one, and keep what is no number") {
  const auto sum = [](float a, float b) {
    const Bf16 left{tests::Bf16Number::nearest(a).bits}, right{tests::Bf16Number::nearest(b).bits};
    const std::vector<const Bf16*> inputs{&left, &right};
    Bf16 total{};
    run_sum<Bf16>(plan_sum(Trees{{0, 1}, {1, 2}}, {0, 2}), inputs, &total, 1);
    return tests::Bf16Number{total.bits}.value();
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();

  CHECK(sum(256.0f, 1.0f) == 256.0f);  // 257 lies between 256 and 258
  CHECK(sum(258.0f, 1.0f) == 260.0f);
  CHECK(sum(256.0f, 1.0078125f) == 258.0f);
  CHECK(sum(-256.0f, -1.0f) == -256.0f);
  CHECK(sum(0x1p-133f, 0x1p-133f) == 0x1p-132f);
  CHECK(sum(0x1.fep127f, 0x1.fep127f) == kInfinity);
  CHECK(sum(kInfinity, 1.0f) == kInfinity);
  CHECK(std::isnan(sum(kInfinity, -kInfinity)));
}

TEST_CASE("sum tree: long sums equal the sums of their elements, also into one of their inputs") {
  constexpr uint64_t kCount = 5003;
  std::vector<std::vector<double>> parts(5, std::vector<double>(kCount));
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (uint64_t i = 0; i < kCount; ++i) parts[rank][i] = 1.0 / static_cast<double>(3 + 7 * rank + i);
  }
  std::vector<double> expected(kCount);
  for (uint64_t i = 0; i < kCount; ++i)
    expected[i] = tests::tree_sum(5, [&](int rank) { return parts[static_cast<size_t>(rank)][i]; });
  std::vector<const double*> inputs;
  for (const auto& part : parts) inputs.push_back(part.data());

  run_sum<double>(plan_sum(Trees{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}}, {0, 5}), inputs, parts[2].data(),
                  kCount);

  CHECK(parts[2] == expected);
}

TEST_CASE(
    "exchange: few nodes send to each other at once, many in log2 rounds that carry all that is known") {
  const auto few = plan_exchange(4, /*mine=*/1);
  CHECK(few.size() == 6);
  CHECK((few[1].is_send && few[1].node == 0 && few[1].step == 0 && few[1].first_block == 1));

  for (const uint32_t nodes : {2u, 3u, 8u, 9u, 16u, 31u, 100u}) {
    std::vector<std::set<uint32_t>> known(nodes);
    for (uint32_t node = 0; node < nodes; ++node) known[node] = {node};
    uint32_t last_step = 0;
    for (uint32_t step = 0; step <= last_step; ++step) {
      const auto before = known;
      for (uint32_t node = 0; node < nodes; ++node) {
        for (const NodeMessage& message : plan_exchange(nodes, node)) {
          last_step = std::max(last_step, message.step);
          if (message.step != step) continue;
          for (uint32_t i = 0; i < message.blocks; ++i) {
            const uint32_t block = message.first_block + i;
            if (message.is_send) {
              CHECK(before[node].count(block) == 1);
            } else {
              CHECK(before[message.node].count(block) == 1);
              CHECK(known[node].insert(block).second);
            }
          }
        }
      }
    }
    for (const auto& blocks : known) CHECK(blocks.size() == nodes);
    if (nodes == 100) CHECK(last_step == 6);
  }
}

TEST_CASE("chunk walk: first segments of all parts, then second ones, packed as they come") {
  ChunkWalk walk({100, 0, 60}, /*segment_bytes=*/64, /*chunk_bytes=*/128);
  std::vector<Piece> pieces;
  for (; !walk.at_end(); walk.next()) pieces.push_back(walk.piece());

  CHECK(pieces ==
        std::vector<Piece>{
            {.part = 0, .segment = 0, .offset = 0, .bytes = 64, .in_chunk = 0},
            {.part = 2, .segment = 0, .offset = 0, .bytes = 60, .in_chunk = 64, .ends_chunk = true},
            {.part = 0, .segment = 1, .offset = 64, .bytes = 36, .in_chunk = 0, .ends_chunk = true}});
  CHECK(ChunkWalk({}, 64, 128).at_end());
  CHECK(ChunkWalk({0, 0}, 64, 128).at_end());
}

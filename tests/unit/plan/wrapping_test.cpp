#include "runtime/plan/wrapping.h"

#include <doctest/doctest.h>

#include <vector>

#include "runtime/plan/rank_memory.h"
#include "runtime/plan/sharded_state.h"

using namespace shardrun::plan;

TEST_CASE("wrapping: layers are taken together from the first on, and what is no layer stays alone") {
  CHECK(wrap_blocks(7, {{1, 6}}, 2).begins == std::vector<int>{0, 1, 3, 5, 6, 7});
  CHECK(wrap_blocks(7, {{1, 6}}, 64).begins == std::vector<int>{0, 1, 6, 7});
  CHECK(wrap_blocks(7, {{3, 6}}, 2).begins == std::vector<int>{0, 1, 2, 3, 5, 6, 7});  // a stage's
  CHECK(wrap_blocks(9, {{1, 4}, {5, 8}}, 2).begins ==
        std::vector<int>{0, 1, 3, 4, 5, 7, 8, 9});  // of two chunks
  CHECK(wrap_blocks(7, {{1, 6}}, 1).begins.empty());
  CHECK(Wrapping{}.units(7) == 7);
  CHECK(wrap_blocks(7, {{1, 6}}, 2).units(7) == 5);
}

TEST_CASE("wrapping: a unit has the shards of its blocks, one behind the other, and a block keeps its own") {
  const ShardLayout blocks = make_layout(std::vector<int64_t>{70, 200, 33, 64}, 2);

  const ShardLayout units = layout_of_units(blocks, wrap_blocks(4, {{1, 3}}, 2));

  REQUIRE(units.block_count() == 3);
  CHECK(units.block(0).elements == 70);
  CHECK(units.block(1).shard_elements == 128 + 32);
  CHECK(units.block(1).shard_offset == blocks.block(1).shard_offset);
  CHECK(units.block(1).padded_elements == 256 + 64);
  CHECK(units.block(2).shard_offset == blocks.block(3).shard_offset);
  CHECK(units.flat_shard_elements == blocks.flat_shard_elements);
  CHECK(units.largest_padded_elements == 256 + 64);
}

TEST_CASE("wrapping: a unit is visited where its first block is, also beside a block that comes twice") {
  const Wrapping wrapping = wrap_blocks(5, {{1, 4}}, 2);

  const UnitVisits visits = unit_visits(wrapping, {0, 1, 2, 3, 4, 0});

  CHECK(visits.units == std::vector<int>{0, 1, 2, 3, 0});
  CHECK(visits.numbers == std::vector<int>{0, 1, 3, 4, 5});
}

TEST_CASE("wrapping: buffers are of units, and there is one more for a block and one for its gradient") {
  const ShardLayout blocks = make_layout(std::vector<int64_t>{7000, 200, 33, 64}, 2);
  const StateOptions options{
      .compute_bytes = 2, .accumulates = true, .wrapping = wrap_blocks(4, {{1, 4}}, 3)};

  const ShardedState state = sharded_state(blocks, options);

  CHECK(state.gathered == std::vector<Buffer>{{7040, 2}, {384, 2}});
  CHECK(state.unit_block == Buffer{256, 2});
  CHECK(state.unit_gradient == Buffer{256, 4});
  CHECK(state.scratches == std::vector<Buffer>(2, {3520, 4}));
  CHECK(sharded_state(make_layout(std::vector<int64_t>{7000, 200, 33, 64}, 1), options).block_bytes() == 0);
}

TEST_CASE("wrapping: the plan of memory counts of a buffer what any unit ever fills") {
  RankOptions options;
  options.model = LlamaConfig{.layers = 6, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 256};
  options.wrap = 6;
  const int64_t layer = 41'088, unit = 6 * layer, head = 16'448;
  const auto gathered = [&] { return rank_memory(options, {2, 1, 1}, {}).memory.gathered; };
  // Embedding and head take turns in one buffer, and the unit of all layers has the other to itself.
  CHECK(gathered() == 4 * (2 * (unit + head) + 2 * layer));
  // Three reductions in a micro-step: in the second one the other buffer is the unit's turn, and in the third the other scratch.
  options.gradient_accumulation = 2;
  CHECK(gathered() == 4 * (unit + head + 2 * unit + unit / 2 + head / 2 + 2 * layer));
  options.gradient_accumulation = 30;
  CHECK(gathered() == 4 * (unit + head + 2 * unit + 2 * unit / 2 + 2 * layer));
  options.wrap = 2;
  options.gradient_accumulation = 1;
  CHECK(gathered() == 4 * (4 * 2 * layer + head + 2 * layer));
}

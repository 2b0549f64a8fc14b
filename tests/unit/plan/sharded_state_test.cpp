#include "runtime/plan/sharded_state.h"

#include <doctest/doctest.h>

#include <vector>

using namespace shardrun::plan;

namespace {

// Blocks of 70 and 200 elements on two ranks: padded to 128 and 256, shards of 64 and 128.
ShardedState state_of_two_ranks(const StateOptions& options) {
  return sharded_state(make_layout(std::vector<int64_t>{70, 200}, 2), options);
}

using Buffers = std::vector<Buffer>;

}  // namespace

TEST_CASE("sharded state: of a rank alone in fp32 there are masters and gradients") {
  const ShardedState state =
      sharded_state(make_layout(std::vector<int64_t>{70, 200}, 1), {.accumulates = true, .revisits = true});

  CHECK(state.masters == Buffer{96 + 224, 4});
  CHECK(state.gradients == Buffer{96 + 224, 4});
  CHECK(state.bytes() == 2 * (96 + 224) * 4);
}

TEST_CASE(
    "sharded state: two ranks gather into prefetch + 1 buffers of the largest layer, or into one of its own "
    "for each") {
  const auto gathered = [](const StateOptions& options) {
    return sharded_state(make_layout(std::vector<int64_t>{70, 200, 10}, 2), options).gathered;
  };
  CHECK(gathered({.prefetch = 0}) == Buffers(1, {256, 4}));
  CHECK(gathered({.prefetch = 1}) == Buffers(2, {256, 4}));
  CHECK(gathered({.compute_bytes = 2, .prefetch = 1}) == Buffers(2, {256, 2}));
  CHECK(gathered({.prefetch = 7}) == Buffers{{128, 4}, {256, 4}, {64, 4}});
}

TEST_CASE(
    "sharded state: embedding and head share a buffer beside those of layers, and tied ones have one each") {
  const auto layout = make_layout(std::vector<int64_t>{6400, 200, 10, 200, 7000}, 2);
  const auto gathered = [&](const StateOptions& options) { return sharded_state(layout, options).gathered; };

  CHECK(gathered({.prefetch = 1, .layers = {1, 4}}) == Buffers{{256, 4}, {256, 4}, {7040, 4}});
  CHECK(gathered({.prefetch = 1, .layers = {1, 4}, .tied = true}) ==
        Buffers{{256, 4}, {256, 4}, {6400, 4}, {7040, 4}});
  CHECK(gathered({.prefetch = 2, .layers = {1, 4}}) == Buffers{{256, 4}, {64, 4}, {256, 4}, {7040, 4}});
  const Buffers one_each{{256, 4}, {64, 4}, {256, 4}, {6400, 4}, {7040, 4}};
  CHECK(gathered({.prefetch = 1, .keeps_parameters = true, .layers = {1, 4}}) == one_each);
  CHECK(gathered({.prefetch = 4, .layers = {1, 4}}) == one_each);
}

TEST_CASE("sharded state: a block that stays is a shard and no more") {
  const auto state = [](const StateOptions& options) {
    return sharded_state(make_layout(std::vector<int64_t>{70, 6400, 200}, 2, {false, true, false}), options);
  };

  CHECK(state({}).masters == Buffer{64 + 3200 + 128, 4});
  CHECK(state({}).gathered == Buffers(2, {256, 4}));
  CHECK(state({.accumulates = true}).whole_gradients == Buffers(2, {256, 4}));
  CHECK(state({.accumulates = true}).scratches == Buffers(2, {128, 4}));
  CHECK(state({.keeps_parameters = true}).gathered == Buffers{{128, 4}, {0, 4}, {256, 4}});
}

TEST_CASE("sharded state: parameters that are kept have a buffer of their own size for each block") {
  const ShardedState state = state_of_two_ranks({.compute_bytes = 2, .keeps_parameters = true});

  CHECK(state.gathered == Buffers{{128, 2}, {256, 2}});
  CHECK(state.whole_gradients == Buffers(2, {256, 4}));
}

TEST_CASE("sharded state: masters have a copy in bf16, or a rank alone a buffer to convert them into") {
  const auto layout = make_layout(std::vector<int64_t>{70, 200}, 1);

  const ShardedState kept = sharded_state(layout, {.compute_bytes = 2});
  const ShardedState converted = sharded_state(layout, {.compute_bytes = 2, .keeps_compute_copy = false});

  CHECK(kept.compute_copy == Buffer{320, 2});
  CHECK(kept.gathered.empty());
  CHECK(converted.compute_copy == Buffer{0, 4});
  CHECK(converted.gathered == Buffers{{224, 2}});
}

TEST_CASE(
    "sharded state: what is added to earlier contributions arrives in two scratches, in one when only a "
    "block is revisited") {
  CHECK(state_of_two_ranks({}).scratches.empty());
  CHECK(state_of_two_ranks({.revisits = true}).scratches == Buffers(1, {128, 4}));
  CHECK(state_of_two_ranks({.accumulates = true}).scratches == Buffers(2, {128, 4}));
  CHECK(state_of_two_ranks({.accumulates = true, .revisits = true}).scratches == Buffers(2, {128, 4}));
}

TEST_CASE("sharded state: its bytes are those of every buffer, each rounded up to a cache line") {
  const ShardedState state = state_of_two_ranks({.compute_bytes = 2, .accumulates = true});

  CHECK(Buffer{3, 2}.bytes() == 64);
  CHECK(state.block_bytes() == (128 + 256) * 2 + 2 * 256 * 4 + 2 * 128 * 4);
  CHECK(state.bytes() == 2 * 192 * 4 + 192 * 2 + state.block_bytes());
}

#include "runtime/plan/shard_layout.h"

#include <doctest/doctest.h>

#include <vector>

using namespace shardrun::plan;

TEST_CASE("layout: ten elements on two ranks are padded to two cache lines each") {
  const std::vector<int64_t> elements{10};

  const ShardLayout layout = make_layout(elements, 2);

  CHECK(layout.block(0).padded_elements == 64);
  CHECK(layout.block(0).shard_elements == 32);
  CHECK(layout.owned(0, 0) == ElementRange{0, 10});
  CHECK(layout.owned(0, 1) == ElementRange{10, 10});
}

TEST_CASE("layout: the ranks' ranges cover every element of every block exactly once, in rank order") {
  const std::vector<int64_t> elements{1, 31, 32, 33, 100, 4096, 100003};
  for (int group_size : {1, 2, 3, 4, 7, 16, 200}) {
    const ShardLayout layout = make_layout(elements, group_size);
    int64_t flat_elements = 0;
    for (int block = 0; block < layout.block_count(); ++block) {
      CAPTURE(group_size);
      CAPTURE(block);
      const BlockShards& shards = layout.block(block);
      CHECK(shards.shard_offset == flat_elements);
      CHECK(shards.shard_elements % kShardAlignment == 0);
      CHECK(shards.padded_elements == shards.shard_elements * group_size);
      CHECK(shards.padded_elements >= shards.elements);
      CHECK(shards.padded_elements - shards.elements < group_size * kShardAlignment);
      int64_t next = 0;
      for (int rank = 0; rank < group_size; ++rank) {
        const ElementRange range = layout.owned(block, rank);
        CHECK(range.begin == next);
        CHECK(range.count() >= 0);
        CHECK(range.count() <= shards.shard_elements);
        next = range.end;
      }
      CHECK(next == elements[static_cast<size_t>(block)]);
      flat_elements += shards.shard_elements;
    }
    CHECK(layout.flat_shard_elements == flat_elements);
  }
}

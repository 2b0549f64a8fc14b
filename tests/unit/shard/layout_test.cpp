#include "runtime/trainer/shard/layout.h"

#include <doctest/doctest.h>

#include <vector>

#include "runtime/trainer/shard/arena.h"

using namespace shardrun::shard;

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

TEST_CASE("arena: takes are aligned, zero, disjoint and add up to the plan") {
  const int64_t planned =
      Arena::bytes_of<float>(3) + Arena::bytes_of<double>(9) + Arena::bytes_of<std::byte>(64);
  auto arena = Arena::create(planned);
  REQUIRE(arena);

  const auto floats = arena->take<float>(3);
  const auto doubles = arena->take<double>(9);
  const auto bytes = arena->take<std::byte>(64);

  CHECK(planned == 64 + 128 + 64);
  CHECK(arena->used_bytes() == arena->planned_bytes());
  CHECK(reinterpret_cast<uintptr_t>(doubles.data()) % 64 == 0);
  CHECK(reinterpret_cast<std::byte*>(doubles.data()) - reinterpret_cast<std::byte*>(floats.data()) == 64);
  CHECK(bytes.data() - reinterpret_cast<std::byte*>(doubles.data()) == 128);
  CHECK(floats[2] == 0.0F);
  CHECK(doubles[8] == 0.0);
}

TEST_CASE("arena: more memory than the machine has is an error that says how much") {
  const auto arena = Arena::create(int64_t{1} << 62);

  REQUIRE(!arena);
  CHECK(arena.error().message().find("4611686018427387904 bytes") != std::string::npos);
}

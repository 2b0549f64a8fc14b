#include "runtime/trainer/shard/arena.h"

#include <doctest/doctest.h>

using namespace shardrun::shard;

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

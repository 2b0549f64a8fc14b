#include "runtime/trainer/checkpoint/format.h"

#include <doctest/doctest.h>

#include <string>

using namespace shardrun;
using namespace shardrun::checkpoint;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

ShardHeader two_blocks() {
  ShardHeader header;
  header.file = 1;
  header.files = 2;
  header.step = 120;
  header.blocks = {{100, 64, 100, 0, {1, 2, 3}}, {10, 10, 10, 0, {}}};
  place_blocks(header);
  return header;
}

}  // namespace

TEST_CASE("shard header: the worked example of the format has its data at byte 128 and 164 bytes in all") {
  ShardHeader header;
  header.blocks = {{3, 0, 3, 0, {}}};

  place_blocks(header);

  CHECK(header.header_bytes() == 88);
  CHECK(header.blocks[0].file_offset == 128);
  CHECK(header.blocks[0].file_offset + header.blocks[0].bytes() == 164);
}

TEST_CASE("shard header: what was encoded is parsed") {
  const ShardHeader header = two_blocks();

  const auto parsed = parse_shard_header(bytes_of(encode(header) + "data follows"));

  REQUIRE(parsed);
  CHECK(parsed->file == 1);
  CHECK(parsed->files == 2);
  CHECK(parsed->step == 120);
  REQUIRE(parsed->blocks.size() == 2);
  CHECK(parsed->blocks[0].begin == 64);
  CHECK(parsed->blocks[0].end == 100);
  CHECK(parsed->blocks[0].checksums[2] == 3);
  CHECK(parsed->blocks[0].file_offset == header.blocks[0].file_offset);
}

TEST_CASE("shard header: every single flipped bit is found") {
  const std::string good = encode(two_blocks());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    CAPTURE(bit);
    CHECK(!parse_shard_header(bytes_of(bad)));
  }
}

TEST_CASE("shard header: every truncation is found") {
  const std::string good = encode(two_blocks());
  for (size_t length = 0; length < good.size(); ++length) {
    CHECK(!parse_shard_header(bytes_of(good).first(length)));
  }
}

TEST_CASE("shard header: a newer version and the other byte order are told apart from damage") {
  std::string newer = encode(two_blocks()), swapped = newer;
  newer[8] = 3;
  std::swap(swapped[12], swapped[15]);
  std::swap(swapped[13], swapped[14]);

  const auto from_newer = parse_shard_header(bytes_of(newer));
  const auto from_swapped = parse_shard_header(bytes_of(swapped));

  REQUIRE(!from_newer);
  CHECK(from_newer.error().code() == base::Code::kUnsupported);
  CHECK(from_newer.error().message() == "shard format version 3, this program reads 2");
  REQUIRE(!from_swapped);
  CHECK(from_swapped.error().code() == base::Code::kUnsupported);
}

TEST_CASE("shard header: a record whose range leaves its block is refused though its checksum holds") {
  ShardHeader header = two_blocks();
  header.blocks[0].end = 101;
  place_blocks(header);

  const auto parsed = parse_shard_header(bytes_of(encode(header)));

  REQUIRE(!parsed);
  CHECK(parsed.error().message() == "record of block 0 is impossible");
}

TEST_CASE("names: a step's folder name is parsed back and nothing else is") {
  CHECK(step_name(120) == "step_00000120");
  CHECK(parse_step_name("step_00000120") == 120);
  CHECK(parse_step_name(step_name(123456789012)) == 123456789012);
  CHECK(parse_step_name("step_00000120.tmp") == -1);
  CHECK(parse_step_name("step_120") == -1);
  CHECK(parse_step_name("step_") == -1);
  CHECK(parse_step_name("latest") == -1);
  CHECK(parse_step_name("step_-0000001") == -1);
}

#include "runtime/trainer/checkpoint/format.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::checkpoint {
namespace {

using base::Code;
using base::Error;

constexpr std::string_view kMagic = "SHRDCKPT";
constexpr uint32_t kByteOrderMark = 0x01020304;
constexpr uint64_t kDataAlignment = 64;
constexpr uint64_t kLargestBlockElements = uint64_t{1} << 48;
constexpr uint32_t kMostBlocks = 1U << 20;
constexpr size_t kCrcOffset = 36;

template <typename T>
void append(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

template <typename T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

uint64_t aligned(uint64_t offset) {
  return (offset + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
}

uint32_t header_crc(std::span<const std::byte> header) {
  return base::crc32c(header.subspan(ShardHeader::kFixedBytes), base::crc32c(header.first(kCrcOffset)));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

void place_blocks(ShardHeader& header) {
  uint64_t offset = header.header_bytes();
  for (BlockRecord& block : header.blocks) {
    block.file_offset = aligned(offset);
    if (block.count() > 0) offset = block.file_offset + block.bytes();
  }
}

std::string encode(const ShardHeader& header) {
  std::string bytes(kMagic);
  append(bytes, ShardHeader::kFormatVersion);
  append(bytes, kByteOrderMark);
  append(bytes, header.file);
  append(bytes, header.files);
  append(bytes, header.step);
  append(bytes, static_cast<uint32_t>(header.blocks.size()));
  append(bytes, uint32_t{0});
  for (const BlockRecord& block : header.blocks) {
    append(bytes, block.elements);
    append(bytes, block.begin);
    append(bytes, block.end);
    append(bytes, block.file_offset);
    for (const uint32_t checksum : block.checksums) append(bytes, checksum);
    append(bytes, uint32_t{0});
  }
  const uint32_t crc = header_crc(bytes_of(bytes));
  std::memcpy(bytes.data() + kCrcOffset, &crc, sizeof(crc));
  return bytes;
}

Result<uint64_t> header_bytes_of(std::span<const std::byte> fixed) {
  if (fixed.size() < ShardHeader::kFixedBytes) return Error(Code::kCorrupt, "shorter than a shard header");
  if (std::memcmp(fixed.data(), kMagic.data(), kMagic.size()) != 0) {
    return Error(Code::kCorrupt, "not a shard file (wrong magic)");
  }
  const auto version = load<uint32_t>(fixed, 8);
  const auto order = load<uint32_t>(fixed, 12);
  if (order == __builtin_bswap32(kByteOrderMark)) {
    return Error(Code::kUnsupported, "written on a machine of the other byte order");
  }
  if (order != kByteOrderMark) return Error(Code::kCorrupt, "byte order mark is damaged");
  if (version != ShardHeader::kFormatVersion) {
    return Error(Code::kUnsupported, fmt::format("shard format version {}, this program reads {}", version,
                                                 ShardHeader::kFormatVersion));
  }
  const auto blocks = load<uint32_t>(fixed, 32);
  if (blocks > kMostBlocks)
    return Error(Code::kCorrupt, fmt::format("impossible number of blocks {}", blocks));
  return ShardHeader::kFixedBytes + ShardHeader::kRecordBytes * blocks;
}

Result<ShardHeader> parse_shard_header(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const auto length, header_bytes_of(bytes));
  if (bytes.size() < length) return Error(Code::kCorrupt, "shard header is cut off");
  bytes = bytes.first(length);
  if (load<uint32_t>(bytes, kCrcOffset) != header_crc(bytes))
    return Error(Code::kCorrupt, "header checksum mismatch");
  ShardHeader header;
  header.file = load<uint32_t>(bytes, 16);
  header.files = load<uint32_t>(bytes, 20);
  header.step = load<uint64_t>(bytes, 24);
  header.blocks.resize(load<uint32_t>(bytes, 32));
  uint64_t end_of_data = length;
  for (size_t b = 0; b < header.blocks.size(); ++b) {
    const size_t at = ShardHeader::kFixedBytes + ShardHeader::kRecordBytes * b;
    BlockRecord& block = header.blocks[b];
    block.elements = load<uint64_t>(bytes, at);
    block.begin = load<uint64_t>(bytes, at + 8);
    block.end = load<uint64_t>(bytes, at + 16);
    block.file_offset = load<uint64_t>(bytes, at + 24);
    for (size_t i = 0; i < 3; ++i) block.checksums[i] = load<uint32_t>(bytes, at + 32 + 4 * i);
    const bool ranges_hold =
        block.begin <= block.end && block.end <= block.elements && block.elements <= kLargestBlockElements;
    if (!ranges_hold || block.file_offset != aligned(end_of_data)) {
      return Error(Code::kCorrupt, fmt::format("record of block {} is impossible", b));
    }
    if (block.count() > 0) end_of_data = block.file_offset + block.bytes();
  }
  return header;
}

std::string step_name(int64_t step) {
  return fmt::format("step_{:08}", step);
}

std::string shard_file_name(int file) {
  return fmt::format("shard_{:05}.bin", file);
}

int64_t parse_step_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step_";
  if (name.substr(0, kPrefix.size()) != kPrefix) return -1;
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = -1;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) return -1;
  return step_name(step) == name ? step : -1;
}

}  // namespace shardrun::checkpoint

#include "runtime/checkpoint/format.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/io.h"

namespace shardrun::checkpoint {
namespace {

using base::Code;
using base::Error;
using nlohmann::json;

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

uint64_t ShardHeader::file_bytes() const {
  uint64_t end = header_bytes();
  for (const BlockRecord& block : blocks) {
    if (block.count() > 0) end = block.file_offset + block.bytes();
  }
  return end;
}

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
  append(bytes, header.rank);
  append(bytes, header.world_size);
  append(bytes, header.step);
  append(bytes, static_cast<uint32_t>(header.blocks.size()));
  append(bytes, uint32_t{0});
  for (const BlockRecord& block : header.blocks) {
    append(bytes, block.elements);
    append(bytes, block.begin);
    append(bytes, block.end);
    append(bytes, block.file_offset);
    append(bytes, block.master_crc);
    append(bytes, block.moment1_crc);
    append(bytes, block.moment2_crc);
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
  const auto length = header_bytes_of(bytes);
  if (!length) return length.error();
  if (bytes.size() < *length) return Error(Code::kCorrupt, "shard header is cut off");
  bytes = bytes.first(*length);
  if (load<uint32_t>(bytes, kCrcOffset) != header_crc(bytes))
    return Error(Code::kCorrupt, "header checksum mismatch");
  ShardHeader header;
  header.rank = load<uint32_t>(bytes, 16);
  header.world_size = load<uint32_t>(bytes, 20);
  header.step = load<uint64_t>(bytes, 24);
  header.blocks.resize(load<uint32_t>(bytes, 32));
  uint64_t end_of_data = *length;
  for (size_t i = 0; i < header.blocks.size(); ++i) {
    const size_t at = ShardHeader::kFixedBytes + ShardHeader::kRecordBytes * i;
    BlockRecord& block = header.blocks[i];
    block.elements = load<uint64_t>(bytes, at);
    block.begin = load<uint64_t>(bytes, at + 8);
    block.end = load<uint64_t>(bytes, at + 16);
    block.file_offset = load<uint64_t>(bytes, at + 24);
    block.master_crc = load<uint32_t>(bytes, at + 32);
    block.moment1_crc = load<uint32_t>(bytes, at + 36);
    block.moment2_crc = load<uint32_t>(bytes, at + 40);
    const bool ranges_hold =
        block.begin <= block.end && block.end <= block.elements && block.elements <= kLargestBlockElements;
    if (!ranges_hold || block.file_offset != aligned(end_of_data)) {
      return Error(Code::kCorrupt, fmt::format("record of block {} is impossible", i));
    }
    if (block.count() > 0) end_of_data = block.file_offset + block.bytes();
  }
  return header;
}

std::string to_json(const Manifest& manifest) {
  json object = {{"format_version", Manifest::kFormatVersion},
                 {"step", manifest.step},
                 {"data_position", manifest.data_position},
                 {"world_size", manifest.world_size},
                 {"corpus_tokens", manifest.data.corpus_tokens},
                 {"sequence_length", manifest.data.sequence_length},
                 {"seed", manifest.data.seed},
                 {"model", manifest.model},
                 {"block_elements", manifest.block_elements}};
  object["crc32c"] = base::crc32c(bytes_of(object.dump()));
  return object.dump(/*indent=*/1) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text) {
  json object = json::parse(text, /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("crc32c") || !object["crc32c"].is_number_unsigned()) {
    return Error(Code::kCorrupt, "not a checkpoint manifest");
  }
  const auto crc = object["crc32c"].get<uint64_t>();
  object.erase("crc32c");
  if (crc != base::crc32c(bytes_of(object.dump(-1, ' ', false, json::error_handler_t::replace)))) {
    return Error(Code::kCorrupt, "manifest checksum mismatch");
  }
  // The checksum held, so only another version can lack a member; the library's exceptions end here.
  try {
    const int version = object.at("format_version").get<int>();
    if (version != Manifest::kFormatVersion) {
      return Error(Code::kUnsupported, fmt::format("manifest format version {}, this program reads {}",
                                                   version, Manifest::kFormatVersion));
    }
    Manifest manifest;
    manifest.step = object.at("step").get<int64_t>();
    manifest.data_position = object.at("data_position").get<int64_t>();
    manifest.world_size = object.at("world_size").get<int>();
    manifest.data = {object.at("corpus_tokens").get<int64_t>(), object.at("sequence_length").get<int64_t>(),
                     object.at("seed").get<uint64_t>()};
    manifest.model = object.at("model").get<std::string>();
    manifest.block_elements = object.at("block_elements").get<std::vector<int64_t>>();
    const auto impossible_size = [](int64_t elements) {
      return elements < 1 || elements > static_cast<int64_t>(kLargestBlockElements);
    };
    if (manifest.step < 0 || manifest.data_position < 0 || manifest.world_size < 1 ||
        std::any_of(manifest.block_elements.begin(), manifest.block_elements.end(), impossible_size)) {
      return Error(Code::kCorrupt, "manifest holds an impossible number");
    }
    return manifest;
  } catch (const json::exception& failure) {
    return Error(Code::kCorrupt, fmt::format("manifest: {}", failure.what()));
  }
}

std::string step_name(int64_t step) {
  return fmt::format("step_{:08}", step);
}

std::string shard_file_name(int rank) {
  return fmt::format("shard_{:05}.bin", rank);
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

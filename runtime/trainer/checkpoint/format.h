// The bytes of a checkpoint's files ↔ structs. No I/O. manifest.h has the manifest.
//
//   <directory>/latest                    text: "step_00000120\n"
//   <directory>/step_00000120/            complete if and only if it has this name (without .tmp)
//     manifest.json                       Manifest: what the checkpoint is of
//     shard_00000.bin … one per writer    ShardHeader, then the tensors
//
// shard_<file>.bin, all integers in the writer's byte order (byte_order tells a reader of the other kind):
//   offset  bytes  field
//   0       8      magic "SHRDCKPT"
//   8       4      format version, 2
//   12      4      byte order mark 0x01020304
//   16      4      number of the file (manifest.h: Place)
//   20      4      number of files of the checkpoint
//   24      8      step: optimizer steps done
//   32      4      number of blocks, k
//   36      4      CRC-32C of bytes [0, 36) and of the k records
//   40      48·k   one record a block: u64 elements of the writer's local block (no padding), u64 begin and u64
//                  end of the elements in this file, u64 file offset of the data, u32 CRC-32C of master, of first
//                  moment, of second moment, u32 zero
//   …              per block at its offset, a multiple of 64: master, first moment, second moment, each
//                  (end - begin) fp32 without gaps. Bytes between are zero.
//
// A worked example: one rank, one block of 3 elements: records end at 88, so the data is at 128, master
// [128,140), first moment [140,152), second moment [152,164), which is also the size of the file.
//
// Because ranges are in elements of unpadded blocks, any number of ranks can read what any other wrote.
// Trade-offs: fp32 everywhere (12 bytes a parameter); the compute-dtype copy is derived, never stored.
//
// Thread rule: pure functions and values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::checkpoint {

using base::Result;

struct BlockRecord {
  uint64_t elements = 0;
  uint64_t begin = 0, end = 0;
  uint64_t file_offset = 0;
  std::array<uint32_t, 3> checksums{};  // of the master weights, the first moment and the second moment

  uint64_t count() const { return end - begin; }
  uint64_t bytes() const { return 3 * count() * sizeof(float); }
};

struct ShardHeader {
  static constexpr uint32_t kFormatVersion = 2;
  uint32_t file = 0, files = 1;
  uint64_t step = 0;
  std::vector<BlockRecord> blocks;

  uint64_t header_bytes() const { return kFixedBytes + kRecordBytes * blocks.size(); }
  static constexpr uint64_t kFixedBytes = 40, kRecordBytes = 48;
};

// Sets every file_offset.
void place_blocks(ShardHeader& header);

std::string encode(const ShardHeader& header);
// `bytes` starts at the start of the file and may be longer than the header. kCorrupt says what is wrong;
// kUnsupported for a newer version or the other byte order. Ranges and offsets of the result are consistent.
Result<ShardHeader> parse_shard_header(std::span<const std::byte> bytes);
// Returns the length of the header whose first kFixedBytes are given, after checking magic, version and byte order.
Result<uint64_t> header_bytes_of(std::span<const std::byte> fixed);

std::string step_name(int64_t step);    // "step_00000120"
std::string shard_file_name(int file);  // "shard_00003.bin"
// Returns the step in the name of a complete checkpoint's folder, or -1.
int64_t parse_step_name(std::string_view name);

}  // namespace shardrun::checkpoint

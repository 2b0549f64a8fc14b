// Spread: gives blocks of a buffer, as they become ready, to the other ranks of the node, and takes theirs.
//
// Thread rule: owned by an operation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugins/ofi/copy.h"
#include "plugins/ofi/node_memory.h"

namespace shardrun::ofi {

class Spread {
 public:
  // A block that this rank gives, by its place in the buffer. If `from` is not null its bytes are still there, and come to
  // their place when they are given: they are read once.
  void add_block(uint64_t offset, uint64_t bytes, const std::byte* from = nullptr) {
    blocks_.push_back({offset, bytes, from});
  }
  // Lets large blocks be read where they are. The operation does not end then before all others have done so.
  void lend() { lends_ = true; }
  // Bytes that come from a member of the node.
  void expect(uint32_t member, uint64_t bytes);
  // Says how much of block number `index` may be given.
  void set_ready(size_t index, uint64_t bytes) { blocks_[index].ready = bytes; }

  // Gives a chunk of what is ready, if there is room, and puts in place what was given first. make_head(offset, bytes) makes the
  // heads of chunks.
  template <typename MakeHead>
  bool give(NodeRegion& region, std::byte* buffer, MakeHead make_head);
  // Takes a chunk of each member, as far as some have come. is_ours(head, member) says whether a chunk may be used; the first that
  // may not ends it.
  template <typename IsOurs>
  bool take(NodeRegion& region, std::byte* buffer, IsOurs is_ours);

  bool finished() const;
  // Adds the members from which bytes are missing, and those that have to read what they were given before this can end. `region`
  // may be null: it is not there yet.
  void add_awaited(const NodeRegion* region, std::vector<uint32_t>* members) const;

 private:
  struct Block {
    uint64_t offset = 0, bytes = 0;
    const std::byte* from = nullptr;
    uint64_t ready = 0, given = 0, placed = 0;
    bool is_over() const { return given == bytes && (from == nullptr || placed == bytes); }
  };
  static constexpr uint64_t kLentBytes = 256 << 10;      // of a chunk
  static constexpr uint64_t kLeastLentBytes = 32 << 10;  // of a block: less is copied sooner than waited for
  template <typename MakeHead>
  bool give_chunk(NodeRegion& region, std::byte* buffer, Block& block, MakeHead make_head);
  bool place_chunk(std::byte* buffer);

  std::vector<Block> blocks_;
  std::vector<uint64_t> missing_;  // by member
  bool lends_ = false, has_lent_ = false;
};

inline void Spread::expect(uint32_t member, uint64_t bytes) {
  if (missing_.size() <= member) missing_.resize(member + 1);
  missing_[member] += bytes;
}

template <typename MakeHead>
bool Spread::give(NodeRegion& region, std::byte* buffer, MakeHead make_head) {
  for (Block& block : blocks_) {
    if (give_chunk(region, buffer, block, make_head)) return true;
  }
  if (place_chunk(buffer)) return true;
  const bool is_given =
      std::all_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.is_over(); });
  if (!is_given || !has_lent_ || !region.is_returned()) return false;
  has_lent_ = false;
  return true;
}

template <typename MakeHead>
bool Spread::give_chunk(NodeRegion& region, std::byte* buffer, Block& block, MakeHead make_head) {
  const bool is_lent = lends_ && region.may_lend() && block.bytes >= kLeastLentBytes;
  const uint64_t chunk = is_lent ? kLentBytes : region.chunk_to_all();
  // Whole chunks only, but for a block's last.
  const uint64_t waiting = block.ready - block.given;
  if (block.given == block.bytes || (waiting < chunk && block.ready < block.bytes)) return false;
  std::byte* const room = region.room_to_all();
  if (room == nullptr) return false;
  const uint64_t bytes = std::min(chunk, waiting);
  std::byte* const place = buffer + block.offset + block.given;
  ChunkHead head = make_head(block.offset + block.given, bytes);
  if (is_lent) {
    head.lent = block.from != nullptr ? block.from + block.given : place;
    has_lent_ = true;
  } else {
    if (block.from != nullptr) {
      copy_bytes(place, block.from + block.given, bytes);
      block.placed += bytes;
    }
    region.fill(room, place, bytes);
  }
  region.publish_to_all(head);
  block.given += bytes;
  return true;
}

// Puts a chunk in place that was lent from elsewhere. The others read it meanwhile.
inline bool Spread::place_chunk(std::byte* buffer) {
  for (Block& block : blocks_) {
    if (block.from == nullptr || block.placed == block.given) continue;
    const uint64_t bytes = std::min(kLentBytes, block.given - block.placed);
    copy_bytes(buffer + block.offset + block.placed, block.from + block.placed, bytes);
    block.placed += bytes;
    return true;
  }
  return false;
}

template <typename IsOurs>
bool Spread::take(NodeRegion& region, std::byte* buffer, IsOurs is_ours) {
  bool moved = false;
  for (uint32_t member = 0; member < missing_.size(); ++member) {
    const ChunkHead* head = missing_[member] > 0 ? region.next_from_all(member) : nullptr;
    if (head == nullptr) continue;
    if (!is_ours(*head, member)) return moved;
    if (!region.copy_from_all(member, *head, buffer + head->offset)) continue;  // the links will say why
    missing_[member] -= std::min(missing_[member], head->bytes);
    region.release_from_all(member);
    moved = true;
  }
  return moved;
}

inline bool Spread::finished() const {
  for (const Block& block : blocks_) {
    if (!block.is_over()) return false;
  }
  if (has_lent_) return false;
  for (const uint64_t bytes : missing_) {
    if (bytes > 0) return false;
  }
  return true;
}

inline void Spread::add_awaited(const NodeRegion* region, std::vector<uint32_t>* members) const {
  bool gives = has_lent_;
  for (const Block& block : blocks_) gives = gives || !block.is_over();
  const auto count = std::max(static_cast<uint32_t>(missing_.size()), region != nullptr ? region->size() : 0);
  for (uint32_t member = 0; member < count; ++member) {
    const bool lacks = member < missing_.size() && missing_[member] > 0;
    if (lacks || (gives && region != nullptr && region->lags_to_all(member))) members->push_back(member);
  }
}

}  // namespace shardrun::ofi

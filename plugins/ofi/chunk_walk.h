// ChunkWalk: the order in which the ranks of a node hand a leader their pieces of the parts that it sums.
//
// The pieces are the first segments of all parts, then the second ones, and so on, packed into chunks as they come.
// Writers and reader walk the same way, so that chunk number n of every writer holds the same pieces.
//
// Thread rule: a value.
#pragma once

#include <cstdint>
#include <vector>

namespace shardrun::ofi {

struct Piece {
  uint32_t part = 0;     // which of the parts
  uint64_t segment = 0;  // of the part
  uint64_t offset = 0;   // of the piece in its part, bytes
  uint64_t bytes = 0;
  uint64_t in_chunk = 0;  // its offset in its chunk
  bool ends_chunk = false;
  bool operator==(const Piece&) const = default;
};

class ChunkWalk {
 public:
  ChunkWalk() = default;
  // `part_bytes` are the sizes of the parts; a segment fits into a chunk.
  ChunkWalk(std::vector<uint64_t> part_bytes, uint64_t segment_bytes, uint64_t chunk_bytes);

  bool at_end() const { return at_end_; }
  const Piece& piece() const { return piece_; }
  void next();

 private:
  bool find(Piece* piece) const;

  std::vector<uint64_t> part_bytes_;
  uint64_t segment_bytes_ = 1, chunk_bytes_ = 1;
  Piece piece_;
  bool at_end_ = true;
};

}  // namespace shardrun::ofi

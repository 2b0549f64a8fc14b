#include "plugins/ofi/chunk_walk.h"

#include <algorithm>
#include <utility>

namespace shardrun::ofi {

ChunkWalk::ChunkWalk(std::vector<uint64_t> part_bytes, uint64_t segment_bytes, uint64_t chunk_bytes)
    : part_bytes_(std::move(part_bytes)), segment_bytes_(segment_bytes), chunk_bytes_(chunk_bytes) {
  at_end_ = false;
  if (!find(&piece_)) {
    at_end_ = true;
    return;
  }
  Piece after = piece_;
  ++after.part;
  piece_.ends_chunk = !find(&after) || piece_.bytes + after.bytes > chunk_bytes_;
}

// Moves `piece` on, if it must, to the first one at or after its place that has bytes. False if there is none.
bool ChunkWalk::find(Piece* piece) const {
  const uint64_t longest =
      part_bytes_.empty() ? 0 : *std::max_element(part_bytes_.begin(), part_bytes_.end());
  for (;;) {
    if (piece->part >= part_bytes_.size()) {
      piece->part = 0;
      ++piece->segment;
    }
    piece->offset = piece->segment * segment_bytes_;
    if (piece->offset >= longest) return false;
    if (piece->offset < part_bytes_[piece->part]) {
      piece->bytes = std::min(segment_bytes_, part_bytes_[piece->part] - piece->offset);
      return true;
    }
    ++piece->part;
  }
}

void ChunkWalk::next() {
  const uint64_t in_chunk = piece_.ends_chunk ? 0 : piece_.in_chunk + piece_.bytes;
  ++piece_.part;
  if (!find(&piece_)) {
    at_end_ = true;
    return;
  }
  piece_.in_chunk = in_chunk;
  Piece after = piece_;
  ++after.part;
  piece_.ends_chunk = !find(&after) || in_chunk + piece_.bytes + after.bytes > chunk_bytes_;
}

}  // namespace shardrun::ofi

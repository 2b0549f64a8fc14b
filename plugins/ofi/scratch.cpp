#include "plugins/ofi/scratch.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

namespace shardrun::ofi {

Scratch::~Scratch() {
  for (const Piece& piece : pieces_) {
    if (piece.memory != nullptr) munmap(piece.memory, piece.bytes);
  }
}

Status Scratch::take(uint64_t bytes, std::byte** memory) {
  *memory = nullptr;
  if (bytes == 0) return {};
  // The largest free piece is taken, so a channel that runs one operation at a time keeps one piece.
  Piece* best = nullptr;
  for (Piece& piece : pieces_) {
    if (!piece.is_taken && (best == nullptr || piece.bytes > best->bytes)) best = &piece;
  }
  if (best == nullptr) best = &pieces_.emplace_back();
  if (best->bytes < bytes) {
    if (best->memory != nullptr) munmap(best->memory, best->bytes);
    *best = {};
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return {SHARDRUN_COMM_IO, fmt::format("no {} bytes of memory for sums", bytes)};
    *best = {static_cast<std::byte*>(mapped), bytes, false};
  }
  best->is_taken = true;
  *memory = best->memory;
  return {};
}

void Scratch::give_back(const std::byte* memory) {
  const auto taken = std::find_if(pieces_.begin(), pieces_.end(),
                                  [=](const Piece& piece) { return piece.memory == memory; });
  if (memory != nullptr && taken != pieces_.end()) taken->is_taken = false;
}

}  // namespace shardrun::ofi

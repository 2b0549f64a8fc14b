// What a rank holds of its optimizer: two moments for each element of its flat shard, in fp32 or packed in 8 bits
// (kernels/packed_moments.h).
//
// They lie in the memory that the rank computes in, or wait elsewhere: a CPU's in a file, updated a window at a time; a
// GPU's in pinned memory of the host, from which pieces pass through the GPU in turn.
// Units: elements of one moment, bytes of both. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/compute.h"

namespace shardrun::plan {

inline constexpr int64_t kMomentPage = 4096;                // bytes; each moment fills whole ones
inline constexpr int64_t kMomentWindow = int64_t{1} << 20;  // elements: 4 MiB of one in a file
// Elements: 32 MiB are enough for the full rate of PCIe.
inline constexpr int64_t kMomentPiece = int64_t{8} << 20;
inline constexpr int64_t kMomentPieceUnit = 64;  // elements that pieces begin at a multiple of
inline constexpr int64_t kMomentSlots = 3;       // pieces of each moment in a GPU's memory

inline constexpr int64_t kMomentBlock = 256;  // elements of a packed moment that share a scale

struct MomentBytes {
  int64_t resident = 0;   // where the rank computes
  int64_t elsewhere = 0;  // in a file, or pinned on the host
};

// Returns the bytes of one moment, in memory or in a file.
constexpr int64_t moment_bytes(int64_t elements) {
  return (elements * 4 + kMomentPage - 1) / kMomentPage * kMomentPage;
}

// Returns the bytes of the codes of one packed moment, and of its scales.
constexpr int64_t packed_code_bytes(int64_t elements) {
  return (elements + kMomentPage - 1) / kMomentPage * kMomentPage;
}
constexpr int64_t packed_scale_bytes(int64_t elements) {
  return moment_bytes((elements + kMomentBlock - 1) / kMomentBlock);
}

// Returns the elements of one moment in each slot of a GPU's memory.
constexpr int64_t moment_slot(int64_t elements, int64_t piece) {
  return std::min(piece, (elements + kMomentPieceUnit - 1) / kMomentPieceUnit * kMomentPieceUnit);
}

// Returns what a flat shard of so many elements takes. `piece`: of one moment, that comes to a GPU at once. `packed`: on a CPU, in
// memory.
constexpr MomentBytes moments(int64_t elements, bool offload, base::DeviceKind device,
                              int64_t piece = kMomentPiece, bool packed = false) {
  if (packed) return {2 * (packed_code_bytes(elements) + packed_scale_bytes(elements)), 0};
  if (!offload) return {2 * moment_bytes(elements), 0};
  if (device == base::DeviceKind::kGpu)
    return {kMomentSlots * 2 * moment_slot(elements, piece) * 4, 2 * elements * 4};
  return {2 * moment_bytes(std::min(kMomentWindow, elements)), 2 * moment_bytes(elements)};
}

}  // namespace shardrun::plan

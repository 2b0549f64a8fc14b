// What a test may ask of the emulated GPU beyond CUDA's own calls.
//
// Thread rule: as CUDA's calls.
#pragma once

#include <cstdint>
#include <string>

namespace shardrun::emulation {

// Waits for all work; then what was found since the last call, one finding a line, "" if nothing was. Errors that came of
// it are forgotten, which no real GPU does without a new process.
std::string forget_findings();

// Bytes that were asked for and not freed yet.
struct HeldMemory {
  int64_t gpu = 0, pinned = 0;
};
HeldMemory held_memory();

}  // namespace shardrun::emulation

// What a test may ask of the emulated GPU beyond CUDA's own calls.
//
// Thread rule: as for CUDA's calls.
#pragma once

#include <cstdint>
#include <string>

namespace shardrun::emulation {

// Waits for all work, then returns what was found since the last call, one finding a line, "" if nothing was.
// Errors that resulted from it are forgotten, which no real GPU does without a new process.
std::string forget_findings();

// Bytes that were asked for and are not freed yet.
struct HeldMemory {
  int64_t gpu = 0, pinned = 0;
};
HeldMemory held_memory();

// From now on kernels, products and sorts are checked when they are started, as launches are, but not run: so a
// test may name any sizes, and memory that does not exist. Copies, memsets, events and allocations go on as before.
void skip_computing(bool skips);

}  // namespace shardrun::emulation

// Runs a kernel's blocks, one after the other, their threads as fibers.
//
// A warp runs until each of its threads waits or has ended, and then the next one runs, in the order of
// tests/emulation/settings.h, so a missing barrier shows as rubbish or old values. Findings, each of which ends the
// kernel, are: a barrier or a warp-level step that not every thread reaches, lanes at different steps, copies that
// nobody waited for, writes beside the dynamic shared memory, more shared memory than was asked for. Reads beside
// it end the process (tests/emulation/memory.h).
//
// Thread rule: one kernel at a time, which the queues ensure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "tests/emulation/device_code.h"

namespace shardrun::emulation {

// The most that a block can have at compute capability 9.0.
constexpr size_t kMostSharedBytes = size_t{227} << 10;
constexpr size_t kUsualSharedBytes = size_t{48} << 10;  // what it has without asking for more

struct Kernel {
  dim3 grid, block;
  size_t shared_bytes = 0;
  bool may_have_more = false;  // more shared memory than usual: its attribute was set
  std::function<void()> body;
};

// Returns false after a finding, which was printed.
bool run_kernel(const Kernel& kernel);

// note_finding prints a finding; take_findings returns what was found since the last call, "" if nothing was.
void note_finding(const std::string& text);
std::string take_findings();
bool has_findings();

// Returns "thread (1,0,0) of block (0,0,0)", or "the host" outside of kernels.
std::string who_runs();
bool stack_overflown_to(const void* address);

}  // namespace shardrun::emulation

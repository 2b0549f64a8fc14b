// Runs a kernel's blocks, one after the other, their threads as fibers.
//
// A warp runs until each of its threads waits or has ended, then the next one, in the order of tests/emulation/settings.h:
// so a missing barrier shows as rubbish or old values. Findings, each of which ends the kernel: a barrier or a warp's step
// that not every thread comes to, lanes at different steps, copies that nobody waited for, writes beside the dynamic
// shared memory, more shared memory than was asked for. Reads beside it end the process (tests/emulation/memory.h).
// Thread rule: one kernel at a time, which the queues see to.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "tests/emulation/device_code.h"

namespace shardrun::emulation {

constexpr size_t kMostSharedBytes = size_t{227} << 10;  // of a block, as compute capability 9.0 has it
constexpr size_t kUsualSharedBytes = size_t{48} << 10;  // without being asked for more

struct Kernel {
  dim3 grid, block;
  size_t shared_bytes = 0;
  bool may_have_more = false;  // shared memory than usual: its attribute was set
  std::function<void()> body;
};

// False after a finding, which was printed.
bool run_kernel(const Kernel& kernel);

// Prints it. What was found since the last call; "" if nothing was.
void note_finding(const std::string& text);
std::string take_findings();
bool has_findings();

// "thread (1,0,0) of block (0,0,0)", or "the host" outside of kernels.
std::string who_runs();
bool stack_overflown_to(const void* address);

}  // namespace shardrun::emulation

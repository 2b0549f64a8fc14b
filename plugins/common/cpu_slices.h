// How long a thread keeps its CPU where others wait for it. Linux gives the next turn to whoever would be done with its slice first:
// a thread with short slices runs soon after it wakes, one with long slices is not interrupted by its like. Shares stay what they are.
//
// Thread rule: of the calling thread, and of those that it starts afterwards.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

namespace shardrun::common {

// sched_attr, which glibc has from 2.41 on.
struct SchedulingAttributes {
  uint32_t size = 48, policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;  // nanoseconds; runtime: the slice
};
static_assert(sizeof(SchedulingAttributes) == 48);

// Asks for slices of that length, 0.1 to 100 ms (Linux 6.12 and newer; older kernels ignore it). Does nothing where somebody has chosen
// another policy.
inline void ask_for_slices(std::chrono::nanoseconds length) {
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  SchedulingAttributes attributes;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime = static_cast<uint64_t>(length.count());
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

// Returns the slices of the calling thread; 0 where the kernel does not tell.
inline std::chrono::nanoseconds slices() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return {};
  return std::chrono::nanoseconds(attributes.runtime);
}

}  // namespace shardrun::common

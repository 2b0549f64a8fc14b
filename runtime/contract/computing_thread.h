// What a thread that computes asks of the kernel.
//
// Thread rule: thread-safe.
#pragma once

namespace shardrun::contract {

// Asks for long slices of the CPU for this thread and those that it starts, but for those that ask for others: where more threads
// compute than there are CPUs, each keeps for 20 ms what it has in the caches (docs/decisions/0142).
void ask_for_long_slices();

}  // namespace shardrun::contract

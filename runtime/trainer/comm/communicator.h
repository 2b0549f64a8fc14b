// Communicator: collectives among a fixed group of ranks; the trainer's only way to talk to its peers.
//
// Implementations: PluginCommunicator (plugins/abi/comm_v1.h behind dlopen), Staged (a device's buffers over a
// communicator of the host) and ThreadWorld (tests/fakes).
//
// Every operation is asynchronous: it returns a Pending at once and must be waited for before any buffer that it
// names is touched again. All ranks of the group call the same operations in the same order on one communicator
// ("op order rule"). Use two communicators to let gathers and reductions overlap.
// Sums run in fp32 in ascending group-rank order: same world, same bits, whatever the node layout. A plugin whose
// sums have an order of their own says so (PluginSession::sums_in_rank_order): nccl.
//
// Buffers lie in the host's memory, or all of them in the memory of the device that the communicator was made for.
// Then the order of things is that of the device's compute stream, however far ahead of it the calling thread is:
//   - an operation reads and writes its buffers after all that was put on the stream before the call;
//   - what is put on the stream after wait() has returned comes after the operation;
//   - between the two, nothing that is put on the stream touches the buffers (inputs: writes them).
// wait() then need not mean that the bytes are there, only that the stream will not pass them by: the host sees them
// after wait() and Device::synchronize(). A failure that comes to light only later ends the next call of any
// communicator of the same session; results count once a later wait has succeeded.
//
// Errors of wait(): kTimeout names the ranks that are missing; kPeerLost names the rank whose connection broke;
// after either the communicator is dead and only destruction is allowed.
// Thread rule: thread-compatible; one thread calls. Implementations may own a progress thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace shardrun::comm {

using base::Result;

// Ticket of an operation in flight. Tickets count up from 1 on each communicator.
struct Pending {
  uint64_t ticket = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;

  // Every rank's `mine` (n bytes) to everyone's `all` (size()·n bytes, in rank order). `mine` may be the caller's
  // own slot inside `all`.
  virtual Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // Sum over ranks of `full` (size()·n fp32); rank r keeps the r-th n elements in `mine`. `full` is unchanged;
  // `mine` must not overlap `full`.
  virtual Result<Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) = 0;
  // In-place sum over ranks. fp32 or fp64.
  virtual Result<Pending> all_reduce(std::span<float> buffer) = 0;
  virtual Result<Pending> all_reduce(std::span<double> buffer) = 0;
  virtual Result<Pending> broadcast(std::span<std::byte> buffer, int root) = 0;
  virtual Result<Pending> barrier() = 0;

  // Blocks until the operation is complete (of a device's buffers: until the stream is sure to come after it), or the
  // communicator's timeout has passed without it.
  virtual Result<void> wait(Pending pending) = 0;

  // Ends every operation of this rank's communicators and, where the transport carries the news, of the others' too,
  // with kCancelled and `reason`. From any thread. One that cannot does nothing.
  virtual void abort(const std::string& reason) { static_cast<void>(reason); }
};

}  // namespace shardrun::comm

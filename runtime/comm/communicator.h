// Communicator: collectives among a fixed group of ranks; the trainer's only way to talk to its peers.
//
// Implementations: PluginCommunicator (plugins/abi/comm_v1.h behind dlopen) and ThreadWorld (tests/fakes).
//
// Every operation is asynchronous: it returns a Pending at once and must be waited for before any buffer that it
// names is touched again. All ranks of the group call the same operations in the same order on one communicator
// ("op order rule"). Use two communicators to let gathers and reductions overlap.
// Sums run in fp32 in ascending group-rank order: same world, same bits, whatever the node layout.
// Errors of wait(): kTimeout names the ranks that are missing; kPeerLost names the rank whose connection broke;
// after either the communicator is dead and only destruction is allowed.
// Thread rule: thread-compatible; one thread calls. Implementations may own a progress thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

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

  // Blocks until the operation is complete, or the communicator's timeout has passed without it.
  virtual Result<void> wait(Pending pending) = 0;
};

}  // namespace shardrun::comm

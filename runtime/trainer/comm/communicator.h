// Communicator: collectives among a fixed group of ranks; the trainer's only way to talk to its peers.
//
// Implementations: PluginCommunicator (plugins/abi/comm_v1.h behind dlopen), Staged (device buffers over a host
// communicator) and ThreadWorld (tests/fakes).
//
// Every operation is asynchronous: it returns a Pending at once and must be waited for before any buffer that it
// names is touched again. All ranks of the group call the same operations in the same order on one communicator
// ("op order rule"). Use two communicators to let all-gathers and reductions overlap.
// Sums are made in the buffer's type along a binary tree of group ranks (docs/decisions/0070): the same world gives the same bits,
// whatever the node layout. A plugin whose sums have an order of their own says so (PluginSession::sums_in_rank_order); nccl is one.
//
// Buffers lie in host memory, or all of them in the memory of the device that the communicator was made for. With
// device buffers, operations are ordered with the device's compute stream, however far ahead of it the calling
// thread is:
//   - an operation reads and writes its buffers after all that was put on the stream before the call;
//   - what is put on the stream after wait() has returned comes after the operation;
//   - between the two, nothing that is put on the stream touches the buffers (inputs: writes them).
// With device buffers wait() need not mean that the bytes are there, only that later work on the stream will not
// overtake them: the host sees them after wait() and Device::synchronize(). A failure that comes to light only
// later ends the next call of any communicator of the same session; results count once a later wait has succeeded.
// Errors of wait(): kTimeout names the ranks that are missing; kPeerLost names the rank whose connection broke;
// after either the communicator is dead and only its destruction is allowed.
// Thread rule: thread-compatible; one thread calls. Implementations may own a progress thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/compute.h"
#include "runtime/base/result.h"

namespace shardrun::comm {

using base::Bf16;
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

  // Copies every rank's `mine` (n bytes) to everyone's `all` (size()·n bytes, in rank order). `mine` may be the
  // caller's own slot inside `all`.
  virtual Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // Sums `full` (size()·n fp32) over ranks; rank r keeps the r-th n elements in `mine`. `full` is unchanged; `mine`
  // must not overlap `full`.
  virtual Result<Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) = 0;
  // The same in bf16: each sum of two is rounded. kUnsupported where the plugin is older than that.
  virtual Result<Pending> reduce_scatter(std::span<const Bf16> full, std::span<Bf16> mine) = 0;
  // Sums the buffer over ranks, in place, in its type.
  virtual Result<Pending> all_reduce(std::span<float> buffer) = 0;
  virtual Result<Pending> all_reduce(std::span<double> buffer) = 0;
  virtual Result<Pending> all_reduce(std::span<Bf16> buffer) = 0;  // as reduce_scatter
  virtual Result<Pending> broadcast(std::span<std::byte> buffer, int root) = 0;
  virtual Result<Pending> barrier() = 0;
  // Sends send_bytes[r] bytes to each rank r, one part behind the other in `send`, and receives likewise. What a rank sends to
  // another is what that one expects of it. The sizes are copied. kUnsupported where the transport lacks it.
  struct Parts {
    std::span<const std::byte> send;
    std::span<const int64_t> send_bytes;
    std::span<std::byte> receive;
    std::span<const int64_t> receive_bytes;
  };
  virtual Result<Pending> all_to_all(const Parts& /*parts*/) {
    return base::Error(base::Code::kUnsupported, "this transport has no all-to-all");
  }

  // Blocks until the operation is complete (for device buffers: until the stream is sure to come after it), or
  // until the communicator's timeout has passed.
  virtual Result<void> wait(Pending pending) = 0;

  // Ends every operation of this rank's communicators and, where the transport carries the news, of the others'
  // too, with kCancelled and `reason`. May be called from any thread. An implementation that cannot do this does
  // nothing.
  virtual void abort(const std::string& /*reason*/) {}
};

// Waits for an operation that has just been begun.
inline Result<void> complete(Communicator& group, Result<Pending> pending) {
  RETURN_IF_ERROR(pending);
  return group.wait(*pending);
}

// Brings rank 0's bytes to every rank.
inline Result<void> broadcast(Communicator& group, std::span<std::byte> bytes) {
  return complete(group, group.broadcast(bytes, /*root=*/0));
}

// Returns everybody's values by rank; each rank has equally many, and copying their bytes copies them. In host memory.
template <typename T>
Result<std::vector<T>> gather_values(Communicator& group, const std::vector<T>& mine) {
  std::vector<T> all(mine.size() * static_cast<size_t>(group.size()));
  RETURN_IF_ERROR(complete(
      group, group.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)))));
  return all;
}

}  // namespace shardrun::comm

// ThreadWorld: N ranks as threads of one process, with the promises of runtime/trainer/comm/communicator.h and none of its
// network. It is for tests of everything above the communicator.
//
// Sums are in the buffers' type in the order of the ranks' tree, so results equal those of a real plugin bit for bit. An operation
// completes when every rank has posted it. It is stricter than a plugin: ranks that break the op order rule (different
// operation, size or root under the same ticket), a size that does not fit, or a reduce-scatter whose buffers overlap,
// fail every wait with kCorrupt and both sides' story. A rank can be scripted to fall silent or to die.
//
//   ThreadWorld world(4);
//   world.run([&](int rank, std::span<comm::Communicator* const> channels) { … });
//
// Thread rule: ThreadWorld is thread-safe and must outlive its communicators; each communicator belongs to one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/trainer/comm/communicator.h"

namespace shardrun::fakes {

struct ThreadWorldOptions {
  int channels = 2;
  std::chrono::milliseconds timeout{10000};
};

class ThreadWorld {
 public:
  explicit ThreadWorld(int size, ThreadWorldOptions options = {});
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  // Returns the channel's communicator as `rank` sees it. Ask once per rank and channel: tickets start at 1.
  std::unique_ptr<comm::Communicator> communicator(int rank, int channel);

  // What `rank` posts from operation number `from_ticket` on, on any channel, never reaches the others: their waits
  // (and its own) end with kTimeout naming it.
  void silence(int rank, uint64_t from_ticket = 1);
  // Makes `rank` disappear: operations that are not complete end with kPeerLost naming it, now and later.
  void kill(int rank);

  // Runs `body` once per rank, each in its own thread with its communicators by channel; returns when
  // all have returned.
  void run(const std::function<void(int rank, std::span<comm::Communicator* const> channels)>& body);

 private:
  friend class ThreadCommunicator;
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace shardrun::fakes

// Bell: lets a rank wake another rank of its node that sleeps while messages wait for it in shared memory.
//
// Each rank has an abstract Unix datagram socket that is named by its cookie: nothing of it is on disk, and it is
// gone with the process. A ring that finds the queue full is dropped, because then the sleeper is already awake.
// The name can be read by all on the node, so a ring says nothing but "look", and other users' rings not even that.
//
// Thread rule: open on the opening thread, everything later on the engine's thread.
#pragma once

#include <cstdint>
#include <memory>

#include "plugins/ofi/status.h"

namespace shardrun::ofi {

class Bell {
 public:
  static Status open(uint64_t cookie, std::unique_ptr<Bell>* bell);
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int fd() const { return fd_; }
  void ring(uint64_t cookie) const;
  // Takes rings off the queue, a bounded number of them. Returns whether one came from this user.
  bool clear() const;

 private:
  Bell() = default;
  int fd_ = -1;
};

}  // namespace shardrun::ofi

// Nap: pauses between polls. They grow from 5 µs to 1 ms, because most answers come at once.
//
// Thread rule: a value of one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace shardrun::nccl {

class Nap {
 public:
  void take(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::this_thread::sleep_for(length_);
    lock.lock();
    length_ = std::min(length_ * 2, std::chrono::microseconds(1000));
  }

 private:
  std::chrono::microseconds length_{5};
};

}  // namespace shardrun::nccl

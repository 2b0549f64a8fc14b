// Worker: runs work in order, on a thread of its own, each piece after a random delay; it is a device's
// stream for tests.
//
// Destroying it runs what is left. Thread rule: put from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace shardrun::fakes {

class Worker {
 public:
  Worker(uint64_t seed, std::chrono::microseconds longest)
      : random_(seed), longest_(longest), thread_([this] { run(); }) {}
  ~Worker() {
    put(nullptr);
    thread_.join();
  }

  void put(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!work) return;
      const auto most = static_cast<uint64_t>(longest_.count());
      if (most > 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % (most + 1)));
      work();
    }
  }

  std::mt19937_64 random_;
  const std::chrono::microseconds longest_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace shardrun::fakes

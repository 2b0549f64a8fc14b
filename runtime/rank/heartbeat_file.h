// HeartbeatFile: the file that a program touches to show that it is alive, looked at by a thread, for its file server may not answer
// for a while and the supervisor beats meanwhile.
//
// Only whether the file changed counts: its server may have another clock.
//
// Thread rule: one thread calls. The destructor waits for a look that is under way.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace shardrun::rank {

class HeartbeatFile {
 public:
  // An empty path: there is none, which never changes.
  explicit HeartbeatFile(std::string path) : path_(std::move(path)) {}
  ~HeartbeatFile();
  HeartbeatFile(const HeartbeatFile&) = delete;

  // Returns whether a look since the last call found it new or changed, and asks for another. Does not wait.
  bool has_changed();

 private:
  void look_until_stopped();
  bool look();

  std::string path_;
  std::array<int64_t, 3> seen_{};  // the thread's, once there is one
  std::mutex mutex_;               // guards the three below
  std::condition_variable asked_;
  bool is_asked_ = false, changed_ = false, stops_ = false;
  std::thread thread_;
};

}  // namespace shardrun::rank

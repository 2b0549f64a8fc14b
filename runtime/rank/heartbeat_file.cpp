#include "runtime/rank/heartbeat_file.h"

#include <sys/stat.h>

#include "runtime/base/threads.h"

namespace shardrun::rank {

HeartbeatFile::~HeartbeatFile() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  asked_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool HeartbeatFile::has_changed() {
  if (path_.empty()) return false;
  if (!base::start_thread(thread_, [this] { look_until_stopped(); })) return look();
  const std::lock_guard lock(mutex_);
  is_asked_ = true;
  asked_.notify_all();
  return std::exchange(changed_, false);
}

void HeartbeatFile::look_until_stopped() {
  std::unique_lock lock(mutex_);
  while (true) {
    asked_.wait(lock, [this] { return stops_ || is_asked_; });
    if (stops_) return;
    is_asked_ = false;
    lock.unlock();
    const bool changed = look();
    lock.lock();
    changed_ |= changed;
  }
}

bool HeartbeatFile::look() {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return false;
  const std::array<int64_t, 3> now{status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_size};
  return std::exchange(seen_, now) != now;
}

}  // namespace shardrun::rank

#include "runtime/trainer/checkpoint/background_saver.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/threads.h"

namespace shardrun::checkpoint {
namespace {

using base::Code;
using base::Error;

constexpr int kLowestPriority = 19;

// Gives this thread a table of descriptors of its own, so that whatever fills the process's leaves room for a save. Where it
// is full already, the thread lets go of the sockets, which a save does not use. Costs nothing but a copy of the table;
// where the kernel refuses, the table stays shared.
void take_own_descriptors() {
  if (::unshare(CLONE_FILES) != 0) return;
  const base::UniqueFd probe(::open("/", O_PATH | O_CLOEXEC));
  if (probe || errno != EMFILE) return;
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  for (int fd = 0; fd < static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT_MAX)); ++fd) {
    int type = 0;
    socklen_t length = sizeof type;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0) ::close(fd);
  }
}

}  // namespace

BackgroundSaver::~BackgroundSaver() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  join();
}

void BackgroundSaver::join() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundSaver::start(const Manifest& manifest, const Place& place, const plan::ShardLayout& layout,
                            const ShardState& state) {
  SHARDRUN_CHECK(!in_flight());
  manifest_ = manifest;
  manifest_.spread = place.spread;
  bytes_staged_ = 0;
  join();
  reads_device_ = static_cast<bool>(state.read);
  writer_.emplace(store_.unpublished_path_of(manifest.step), manifest.step, place, layout, state);
  run(Phase::kWriting);
}

void BackgroundSaver::run(Phase phase) {
  join();
  phase_ = phase;
  result_.reset();
  auto started = base::start_thread(thread_, [this, phase] {
    // Linux has priorities per thread. A busy CPU belongs to the training; an idle one is still the writer's.
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowestPriority);
    // A GPU's driver has descriptors that all threads must see.
    if (!reads_device_) take_own_descriptors();
    finish_phase(phase == Phase::kWriting ? write_file() : store_.publish(manifest_));
  });
  if (!started) result_.emplace(std::move(started));
}

// The file is closed by this thread, however its writing ends: its number is another file's, or none's, in the trainer's own
// descriptors.
Result<void> BackgroundSaver::write_file() {
  auto written = write_chunks();
  writer_->close();
  return written;
}

Result<void> BackgroundSaver::write_chunks() {
  RETURN_IF_ERROR(store_.make_unpublished(manifest_.step));
  RETURN_IF_ERROR(writer_->open());
  std::vector<float> buffer(ShardFileWriter::kChunkElements);
  while (true) {
    std::optional<ShardFileWriter::Chunk> chunk;
    {
      const std::lock_guard lock(mutex_);
      if (cancelled_) return Error(Code::kCancelled, "the trainer ended");
      chunk = writer_->take(buffer);
    }
    if (!chunk) return writer_->finish();
    RETURN_IF_ERROR(writer_->write(*chunk, buffer));
  }
}

void BackgroundSaver::finish_phase(Result<void> result) {
  const std::lock_guard lock(mutex_);
  result_.emplace(std::move(result));
  done_.notify_all();
}

void BackgroundSaver::before_update() {
  if (phase_ != Phase::kWriting) return;
  {
    const std::lock_guard lock(mutex_);
    if (result_ || writer_->all_taken()) return;
    if (const auto staged = writer_->stage(staging_)) {
      bytes_staged_ += *staged;
      return;
    }
  }
  wait();  // there is no room for a copy
}

void BackgroundSaver::wait() {
  if (!in_flight()) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return result_.has_value(); });
}

BackgroundSaver::Votes BackgroundSaver::votes() {
  if (!in_flight()) return {0.0, 0.0};
  const std::lock_guard lock(mutex_);
  if (!result_) return {0.0, 0.0};
  return *result_ ? Votes{1.0, 0.0} : Votes{0.0, 1.0};
}

std::optional<Result<std::string>> BackgroundSaver::agree(const Votes& sums) {
  if (!in_flight() || sums[0] + sums[1] < ranks_) return std::nullopt;
  join();
  const std::string path = store_.path_of(manifest_.step);
  if (sums[1] > 0.0) {
    phase_ = Phase::kIdle;
    writer_.reset();
    // No rank writes there any more, and what a full disk has of it would keep the next checkpoint from having room.
    if (publishes_) store_.discard_unpublished(manifest_.step);
    if (!*result_)
      return Result<std::string>(
          std::move(*result_).error().context(fmt::format("saving checkpoint {}", path)));
    return Result<std::string>(Error(Code::kPeerLost, fmt::format("another rank could not save {}", path)));
  }
  if (phase_ == Phase::kPublishing) {
    phase_ = Phase::kIdle;
    return Result<std::string>(path);
  }
  writer_.reset();
  if (publishes_) {
    run(Phase::kPublishing);
  } else {
    phase_ = Phase::kPublishing;
    result_.emplace();
  }
  return std::nullopt;
}

}  // namespace shardrun::checkpoint

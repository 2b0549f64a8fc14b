#include "runtime/rank/epoch_look.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/contract/epoch.h"

namespace shardrun::rank {
namespace {

constexpr char kOursByte = 'o', kTakenByte = 't';

// A run without an epoch has lost its directory. Returns 0 when nobody can tell.
char look_at_epoch(const record::RunDir& run, int attempt) {
  const auto epoch = contract::read_epoch(run);
  if (!epoch) return 0;
  const auto ours = contract::check_epoch(run, attempt);
  if (ours) return kOursByte;
  return ours.error().code() == base::Code::kRefused ? kTakenByte : 0;
}

}  // namespace

std::optional<EpochLook> EpochLook::start(const record::RunDir& run, int attempt) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  base::UniqueFd reads(ends[0]), writes(ends[1]);
  ::fcntl(reads.get(), F_SETFL, O_NONBLOCK);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const char byte = look_at_epoch(run, attempt);
    ::_exit(byte != 0 && ::write(writes.get(), &byte, 1) == 1 ? 0 : 1);
  }
  return EpochLook(std::move(reads));
}

EpochLook::Answer EpochLook::answer() const {
  char byte = 0;
  const ssize_t got = ::read(reads_.get(), &byte, 1);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Answer::kNone;
  if (got == 1) return byte == kOursByte ? Answer::kOurs : Answer::kTaken;
  return Answer::kUnreadable;
}

}  // namespace shardrun::rank

#include "runtime/rank/epoch_look.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <string>

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
    if (byte == 0) ::_exit(1);
    std::string said(1, byte);
    // So much is written, and read, at once.
    if (auto place = base::read_file(run.watch_json(attempt), /*limit_bytes=*/PIPE_BUF - 1); place)
      said += *place;
    ::_exit(::write(writes.get(), said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  return EpochLook(std::move(reads));
}

EpochLook::Answer EpochLook::answer() {
  std::array<char, PIPE_BUF> said;
  const ssize_t got = ::read(reads_.get(), said.data(), said.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Answer::kNone;
  if (got < 1) return Answer::kUnreadable;
  watch_json_.assign(said.data() + 1, static_cast<size_t>(got - 1));
  return said[0] == kOursByte ? Answer::kOurs : Answer::kTaken;
}

}  // namespace shardrun::rank

#include "runtime/rank/epoch_look.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <string>

#include "runtime/base/descendants.h"
#include "runtime/contract/epoch.h"

namespace shardrun::rank {
namespace {

constexpr char kOursByte = 'o', kTakenByte = 't', kTroubleByte = 'e';

// Returns a byte of the answer and the text behind it. A run without an epoch has lost its directory.
std::string look_at_epoch(const record::RunDir& run, int attempt) {
  const auto trouble = [](const base::Error& error) { return kTroubleByte + error.message(); };
  const auto epoch = contract::read_epoch(run);
  if (!epoch) return trouble(epoch.error());
  const auto ours = contract::check_epoch(run, attempt);
  if (!ours && ours.error().code() != base::Code::kRefused) return trouble(ours.error());
  std::string said(1, ours ? kOursByte : kTakenByte);
  // So much is written, and read, at once.
  if (auto place = base::read_file(run.watch_json(attempt), /*limit_bytes=*/PIPE_BUF - 1); place)
    said += *place;
  return said;
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
    const std::string said = look_at_epoch(run, attempt).substr(0, PIPE_BUF);
    ::_exit(::write(writes.get(), said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  return EpochLook(child, std::move(reads));
}

bool EpochLook::wants_cpu() const {
  return base::process_state(reader_) == 'R';
}

EpochLook::Answer EpochLook::answer() {
  std::array<char, PIPE_BUF> said;
  const ssize_t got = ::read(reads_.get(), said.data(), said.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Answer::kNone;
  text_ = got < 1 ? "the process that reads it has ended"
                  : std::string(said.data() + 1, static_cast<size_t>(got - 1));
  if (got < 1 || said[0] == kTroubleByte) return Answer::kUnreadable;
  return said[0] == kOursByte ? Answer::kOurs : Answer::kTaken;
}

}  // namespace shardrun::rank

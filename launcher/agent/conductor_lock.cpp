#include "launcher/agent/conductor_lock.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// The number that Linux gives the namespace of processes that no container has.
constexpr std::string_view kOutsideOfContainers = "pid:[4026531836]";

std::string this_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

std::string this_boot() {
  auto text = base::read_file("/proc/sys/kernel/random/boot_id", /*limit_bytes=*/256);
  if (!text) return "-";
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return *text;
}

std::string this_pid_namespace() {
  std::array<char, 64> name{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name.data(), name.size() - 1);
  return length > 0 ? std::string(name.data(), static_cast<size_t>(length)) : "-";
}

// Returns field 22 of /proc/<pid>/stat: two processes with the same pid never share it. 0 when there is no such
// process; nullopt when nobody can tell.
std::optional<unsigned long long> process_start_time(pid_t pid) {
  const auto text = base::read_file(fmt::format("/proc/{}/stat", pid), /*limit_bytes=*/4096);
  if (!text && text.error().code() == Code::kNotFound) return 0;
  if (!text) return std::nullopt;
  const size_t end = text->rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text->substr(end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::string user_name() {
  const struct passwd* user = ::getpwuid(::geteuid());
  return user != nullptr ? user->pw_name : std::to_string(::geteuid());
}

}  // namespace

LockHolder this_holder(const record::LaunchPlan& plan) {
  const char* job = std::getenv("SLURM_JOB_ID");
  const char* starts = std::getenv("SLURM_RESTART_COUNT");
  LockHolder holder;
  holder.host = this_host();
  holder.pid = ::getpid();
  holder.start_time = process_start_time(holder.pid).value_or(0);
  holder.run_id = plan.id;
  holder.user = user_name();
  holder.slurm_job = job != nullptr ? job : "-";
  holder.slurm_starts = starts != nullptr ? std::strtol(starts, nullptr, 10) : 0;
  holder.boot_id = this_boot();
  holder.pid_namespace = this_pid_namespace();
  return holder;
}

std::string to_text(const LockHolder& holder) {
  return fmt::format("{} {} {} {} {} {} {} {} {}\n", holder.host, holder.pid, holder.start_time,
                     holder.run_id, holder.user, holder.slurm_job, holder.slurm_starts, holder.boot_id,
                     holder.pid_namespace);
}

Result<LockHolder> parse_holder(const std::string& text, const std::string& path) {
  LockHolder holder;
  std::istringstream fields(text);
  fields >> holder.host >> holder.pid >> holder.start_time;
  if (!fields || holder.pid <= 1) {
    return Error(
        Code::kRefused,
        fmt::format("{}: is {}, so nobody can tell who conducts the run; if no conductor runs, remove it",
                    path, text.empty() ? "empty" : "no lock of shardrun"));
  }
  fields >> holder.run_id >> holder.user >> holder.slurm_job >> holder.slurm_starts >> holder.boot_id >>
      holder.pid_namespace;
  return holder;
}

std::string describe(const LockHolder& holder) {
  std::string text = fmt::format("process {} on {}", holder.pid, holder.host);
  if (!holder.user.empty()) text += " of " + holder.user;
  if (!holder.slurm_job.empty() && holder.slurm_job != "-") text += ", Slurm job " + holder.slurm_job;
  return text;
}

Life life_of(const LockHolder& holder) {
  if (holder.host != this_host()) return Life::kUnknown;
  const std::string our_namespace = this_pid_namespace();
  if (!holder.boot_id.empty() && holder.boot_id != this_boot()) {
    // The machine was started again; but containers on two machines may have one host name.
    const bool machines =
        holder.pid_namespace == kOutsideOfContainers && our_namespace == kOutsideOfContainers;
    return machines ? Life::kGone : Life::kUnknown;
  }
  if (!holder.pid_namespace.empty() && holder.pid_namespace != our_namespace) return Life::kUnknown;
  const auto started = process_start_time(holder.pid);
  if (!started) return Life::kUnknown;
  return *started == holder.start_time ? Life::kAlive : Life::kGone;
}

bool may_take_over(const LockHolder& holder, const LockHolder& us) {
  const Life life = life_of(holder);
  if (life != Life::kUnknown) return life == Life::kGone;
  return us.slurm_job != "-" && holder.slurm_job == us.slurm_job && holder.slurm_starts < us.slurm_starts;
}

std::string lock_path(const record::RunDir& run) {
  return run.root + "/conductor.lock";
}

Result<LockHolder> read_holder(const record::RunDir& run) {
  ASSIGN_OR_RETURN(const std::string text, base::read_file(lock_path(run), /*limit_bytes=*/4096));
  return parse_holder(text, lock_path(run));
}

Result<void> place_lock(const std::string& path, const std::string& text) {
  std::string temporary = path + ".XXXXXX";
  base::UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return base::errno_error(Code::kIo, "creating a file beside " + path, errno);
  auto written = base::write_all(fd.get(), text, path);
  if (written && ::fchmod(fd.get(), record::kFileMode) != 0)
    written = base::errno_error(Code::kIo, path, errno);
  // A file server tells only then that it is full.
  if (written && ::close(fd.release()) != 0) written = base::errno_error(Code::kIo, "writing " + path, errno);
  if (written && ::link(temporary.c_str(), path.c_str()) != 0) {
    const int failure = errno;
    // A file server that was asked twice answers that the name is there, when the first answer was lost.
    struct stat status {};
    if (::stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2) {
      written = {};
    } else if (failure == EEXIST) {
      written = Error(Code::kRefused, path + ": is there already");
    } else {
      written = base::errno_error(Code::kIo, "linking " + path, failure);
    }
  }
  ::unlink(temporary.c_str());
  return written;
}

bool remove_lock(const std::string& path, const std::string& text) {
  const std::string aside = fmt::format("{}.stale.{}", path, ::getpid());
  if (::rename(path.c_str(), aside.c_str()) != 0) return false;
  const auto moved = base::read_file(aside, /*limit_bytes=*/4096);
  const bool was_it = moved && *moved == text;
  if (!was_it) (void)::link(aside.c_str(), path.c_str());
  ::unlink(aside.c_str());
  return was_it;
}

Result<void> signal_holder(const LockHolder& holder, int signal) {
  const base::UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, holder.pid, 0)));
  const int failure = errno;
  // Whoever has the number at this moment is whom the descriptor means.
  switch (life_of(holder)) {
    case Life::kUnknown:
      return Error(Code::kRefused,
                   fmt::format("the run is conducted by {}; cancel it there", describe(holder)));
    case Life::kGone:
      return Error(Code::kRefused,
                   fmt::format("{}, which conducted the run, is gone; the run is over", describe(holder)));
    case Life::kAlive:
      break;
  }
  if (!process) return base::errno_error(Code::kIo, describe(holder), failure);
  if (::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) != 0)
    return base::errno_error(Code::kIo, describe(holder) + " cannot be asked to stop", errno);
  return {};
}

}  // namespace shardrun::launcher

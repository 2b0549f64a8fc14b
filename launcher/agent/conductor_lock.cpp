#include "launcher/agent/conductor_lock.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/process_files.h"
#include "runtime/contract/rank_env.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// The number that Linux gives the namespace of processes that no container has.
constexpr std::string_view kOutsideOfContainers = "pid:[4026531836]";

constexpr std::string_view kLockName = "conductor.lock", kHeld = "held", kReleased = "released";

// Returns the word that is all of a file; "-" where there is none.
std::string word_in(const std::string& path) {
  auto text = base::read_file(path, /*limit_bytes=*/256);
  while (text && !text->empty() && text->back() == '\n') text->pop_back();
  return text && !text->empty() && text->find_first_of(" \n") == std::string::npos ? *text : "-";
}

std::string this_boot() {
  return word_in("/proc/sys/kernel/random/boot_id");
}

std::string this_machine() {
  return word_in("/etc/machine-id");
}

std::string this_pid_namespace() {
  std::array<char, 64> name{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name.data(), name.size() - 1);
  return length > 0 ? std::string(name.data(), static_cast<size_t>(length)) : "-";
}

// Two processes with the same pid never share it. 0 when there is no such process, or it is dead and its parent has not
// asked how it ended; nullopt when nobody can tell.
std::optional<uint64_t> process_start_time(pid_t pid) {
  const auto stat = base::read_process_stat(pid);
  if (!stat && stat.error().code() == Code::kNotFound) return 0;
  if (!stat) return std::nullopt;
  return stat->has_ended() ? 0 : stat->start_time;
}

// Returns -1 for a file that is none of the log.
int number_of_lock(std::string_view name) {
  if (!name.starts_with(kLockName)) return -1;
  name.remove_prefix(kLockName.size());
  if (name.empty()) return 0;
  if (!name.starts_with('.')) return -1;
  int number = -1;
  const auto [end, failure] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
  return failure == std::errc() && end == name.data() + name.size() ? number : -1;
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
  holder.host = contract::host_name();
  holder.pid = ::getpid();
  holder.start_time = process_start_time(holder.pid).value_or(0);
  holder.run_id = plan.id;
  holder.user = user_name();
  holder.slurm_job = job != nullptr ? job : "-";
  holder.slurm_starts = starts != nullptr ? std::strtol(starts, nullptr, 10) : 0;
  holder.boot_id = this_boot();
  holder.pid_namespace = this_pid_namespace();
  holder.machine_id = this_machine();
  return holder;
}

std::string to_text(const LockHolder& holder) {
  // An empty word would move all that follow it.
  const std::string_view run = holder.run_id.empty() ? "-" : std::string_view(holder.run_id);
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}\n", holder.host, holder.pid, holder.start_time, run,
                     holder.user, holder.slurm_job, holder.slurm_starts, holder.boot_id, holder.pid_namespace,
                     holder.attempt, holder.released ? kReleased : kHeld, holder.machine_id);
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
  std::string state;
  int attempt = -1;
  if (fields >> attempt >> state) {
    holder.attempt = attempt;
    holder.released = state == kReleased;
    fields >> holder.machine_id;
  }
  return holder;
}

std::string describe(const LockHolder& holder) {
  std::string text = fmt::format("process {} on {}", holder.pid, holder.host);
  if (!holder.user.empty()) text += " of " + holder.user;
  if (!holder.slurm_job.empty() && holder.slurm_job != "-") text += ", Slurm job " + holder.slurm_job;
  return text;
}

Life life_of(const LockHolder& holder) {
  if (holder.host != contract::host_name()) return Life::kUnknown;
  const std::string our_namespace = this_pid_namespace();
  if (!holder.boot_id.empty() && holder.boot_id != this_boot()) {
    // The machine was started again; but two machines, or containers on them, may have one host name.
    const bool machines =
        holder.pid_namespace == kOutsideOfContainers && our_namespace == kOutsideOfContainers;
    const std::string ours = this_machine();
    const bool same = holder.machine_id.empty() || (ours != "-" && holder.machine_id == ours);
    return machines && same ? Life::kGone : Life::kUnknown;
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

std::string lock_path(const record::RunDir& run, int number) {
  return fmt::format("{}/{}{}", run.root, kLockName, number == 0 ? "" : fmt::format(".{}", number));
}

Result<int> newest_lock(const record::RunDir& run) {
  int newest = -1;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(run.root, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    newest = std::max(newest, number_of_lock(entry->path().filename().string()));
  }
  if (failure) return base::errno_error(Code::kIo, run.root, failure.value());
  return newest;
}

Result<LockHolder> read_holder(const record::RunDir& run) {
  ASSIGN_OR_RETURN(const int newest, newest_lock(run));
  const std::string path = lock_path(run, std::max(newest, 0));
  ASSIGN_OR_RETURN(const std::string text, base::read_file(path, /*limit_bytes=*/4096));
  auto holder = parse_holder(text, path);
  if (holder && holder->released) return Error(Code::kNotFound, path + ": nobody conducts the run");
  return holder;
}

Result<void> place_lock(const std::string& path, const std::string& text) {
  std::string temporary = path + ".new.XXXXXX";
  base::UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return base::errno_error(Code::kIo, "creating a file beside " + path, errno);
  auto written = base::write_all(fd.get(), text, path);
  if (written && ::fchmod(fd.get(), record::kFileMode) != 0)
    written = base::errno_error(Code::kIo, path, errno);
  if (written) written = base::close_written(std::move(fd), path);
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

#include "launcher/agent/run_directory.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/contract/epoch.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

struct Holder {
  std::string host, run_id, user, slurm_job;  // slurm_job: "-" outside of Slurm
  long pid = 0;
  unsigned long long start_time = 0;  // start of the process, in clock ticks since boot
  long slurm_starts = 0;              // how often Slurm had started the job again
};

std::string this_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

// Returns field 22 of /proc/<pid>/stat: two processes with the same pid never share it. 0 when there is no such
// process.
unsigned long long process_start_time(long pid) {
  const auto text = base::read_file(fmt::format("/proc/{}/stat", pid), /*limit_bytes=*/4096);
  if (!text) return 0;
  const size_t end = text->rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(text->substr(end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::string user_name() {
  const struct passwd* user = ::getpwuid(::geteuid());
  return user != nullptr ? user->pw_name : std::to_string(::geteuid());
}

Holder this_holder(const record::LaunchPlan& plan) {
  const char* job = std::getenv("SLURM_JOB_ID");
  const char* starts = std::getenv("SLURM_RESTART_COUNT");
  return {this_host(),
          plan.id,
          user_name(),
          job != nullptr ? job : "-",
          ::getpid(),
          process_start_time(::getpid()),
          starts != nullptr ? std::strtol(starts, nullptr, 10) : 0};
}

std::string to_text(const Holder& holder) {
  return fmt::format("{} {} {} {} {} {} {}\n", holder.host, holder.pid, holder.start_time, holder.run_id,
                     holder.user, holder.slurm_job, holder.slurm_starts);
}

Holder parse_holder(const std::string& text) {
  Holder holder;
  std::istringstream fields(text);
  fields >> holder.host >> holder.pid >> holder.start_time >> holder.run_id >> holder.user >>
      holder.slurm_job >> holder.slurm_starts;
  return holder;
}

std::string who(const Holder& holder) {
  std::string text = fmt::format("process {} on {}", holder.pid, holder.host);
  if (!holder.user.empty()) text += " of " + holder.user;
  if (!holder.slurm_job.empty() && holder.slurm_job != "-") text += ", Slurm job " + holder.slurm_job;
  return text;
}

bool is_gone(const Holder& holder, const Holder& us) {
  if (holder.host == us.host) return process_start_time(holder.pid) != holder.start_time || holder.pid == 0;
  return us.slurm_job != "-" && holder.slurm_job == us.slurm_job && holder.slurm_starts < us.slurm_starts;
}

// Removes a lock that nobody holds any more. Returns false when somebody else was faster.
bool remove_stale(const std::string& path, const std::string& stale_text) {
  const std::string aside = fmt::format("{}.stale.{}", path, ::getpid());
  if (::rename(path.c_str(), aside.c_str()) != 0) return false;
  const auto moved = base::read_file(aside, /*limit_bytes=*/4096);
  const bool was_stale = moved && *moved == stale_text;
  if (!was_stale) ::link(aside.c_str(), path.c_str());
  ::unlink(aside.c_str());
  return was_stale;
}

// Writes what only this run needs; no launch waits for the disk.
Result<void> write_small(const std::string& path, std::string_view text) {
  return base::write_file_atomically(path, text, 0644, base::Durability::kProcess);
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

}  // namespace

Result<RunDirectory> RunDirectory::claim(const record::LaunchPlan& plan, std::string_view spec_text) {
  RunDirectory directory(record::RunDir{plan.run_directory});
  RETURN_IF_ERROR(base::make_directories(plan.run_directory));
  RETURN_IF_ERROR(directory.lock(plan));
  const record::RunDir& paths = directory.paths_;
  if (exists(paths.job_toml())) {
    ASSIGN_OR_RETURN(auto before, base::read_file(paths.job_toml()));
    if (before != spec_text) {
      return Error(Code::kRefused,
                   fmt::format("{}: holds a run of another job.toml; choose another run directory",
                               plan.run_directory));
    }
  } else {
    RETURN_IF_ERROR(write_small(paths.job_toml(), spec_text));
  }
  RETURN_IF_ERROR(write_small(paths.plan_json(), to_json(plan)));
  return directory;
}

Result<void> RunDirectory::lock(const record::LaunchPlan& plan) {
  const Holder us = this_holder(plan);
  const std::string text = to_text(us);
  for (int tries = 0; tries < 10; ++tries) {
    base::UniqueFd fd(::open(lock_path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (fd) {
      lock_text_ = text;
      return base::write_all(fd.get(), text, lock_path());
    }
    if (errno != EEXIST) return base::errno_error(Code::kIo, lock_path(), errno);
    const auto held = base::read_file(lock_path(), /*limit_bytes=*/4096);
    if (!held) continue;  // it was removed just now
    const Holder holder = parse_holder(*held);
    if (!is_gone(holder, us)) {
      return Error(Code::kRefused, fmt::format("{}: in use by {}; wait for it, or choose another run "
                                               "directory (if it is gone for good, remove conductor.lock)",
                                               paths_.root, who(holder)));
    }
    remove_stale(lock_path(), *held);
  }
  return Error(Code::kRefused, fmt::format("{}: others keep taking this run directory", paths_.root));
}

RunDirectory::RunDirectory(RunDirectory&& other) noexcept
    : paths_(std::move(other.paths_)), lock_text_(std::exchange(other.lock_text_, {})) {}

RunDirectory::~RunDirectory() {
  if (is_still_ours()) ::unlink(lock_path().c_str());
}

bool RunDirectory::is_still_ours() const {
  const auto held = base::read_file(lock_path(), /*limit_bytes=*/4096);
  return !lock_text_.empty() && held && *held == lock_text_;
}

Result<int> RunDirectory::begin_attempt() {
  for (int attempt = 0;; ++attempt) {
    if (::mkdir(paths_.attempt(attempt).c_str(), 0755) == 0) {
      RETURN_IF_ERROR(contract::write_epoch(paths_, attempt));
      return attempt;
    }
    if (errno != EEXIST) return base::errno_error(Code::kIo, "creating " + paths_.attempt(attempt), errno);
  }
}

bool is_abandoned(const record::RunDir& run) {
  const auto held = base::read_file(run.root + "/conductor.lock", /*limit_bytes=*/4096);
  if (!held) return held.error().code() == Code::kNotFound;
  const Holder holder = parse_holder(*held);
  return holder.host == this_host() && process_start_time(holder.pid) != holder.start_time;
}

}  // namespace shardrun::launcher

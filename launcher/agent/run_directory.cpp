#include "launcher/agent/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/shared_folder.h"
#include "runtime/base/trust.h"
#include "runtime/contract/epoch.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// Writes what only this run needs; no launch waits for the disk.
Result<void> write_small(const std::string& path, std::string_view text) {
  return base::write_file_atomically(path, text, record::kFileMode, base::Durability::kProcess);
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

}  // namespace

Result<RunDirectory> RunDirectory::claim(const record::LaunchPlan& plan, std::string_view spec_text) {
  RunDirectory directory(record::RunDir{plan.run_directory});
  RETURN_IF_ERROR(base::make_private_directory(plan.run_directory));
  if (auto ours = base::refuse_if_others_write(plan.run_directory); !ours)
    return std::move(ours).error().context("ranks read their commands from the run directory");
  RETURN_IF_ERROR(directory.lock(plan, /*only_lost=*/false));
  const record::RunDir& paths = directory.paths_;
  if (exists(paths.job_toml())) {
    RETURN_IF_ERROR(directory.check_spec(spec_text));
  } else {
    RETURN_IF_ERROR(write_small(paths.job_toml(), spec_text));
  }
  RETURN_IF_ERROR(directory.check_identity(plan));
  RETURN_IF_ERROR(write_small(paths.plan_json(), to_json(plan)));
  return directory;
}

// The number of a job may come again, and a spec can be that of another run; nobody has the identity twice.
Result<void> RunDirectory::check_identity(const record::LaunchPlan& plan) const {
  const auto before = read_plan(paths_);
  if (!before && before.error().code() == Code::kNotFound) return {};
  RETURN_IF_ERROR(before);
  if (before->identity.empty() || plan.identity.empty() || before->identity == plan.identity) return {};
  return Error(Code::kRefused,
               fmt::format("{}: holds another run, {}, though it has the same job.toml; choose another run "
                           "directory, or go on with that one: shardrun resume {}",
                           paths_.root, before->id, paths_.root));
}

Result<RunDirectory> RunDirectory::take_over(const record::LaunchPlan& plan, std::string_view spec_text) {
  RunDirectory directory(record::RunDir{plan.run_directory});
  if (auto ours = base::refuse_if_others_write(plan.run_directory); !ours)
    return std::move(ours).error().context("ranks read their commands from the run directory");
  RETURN_IF_ERROR(directory.check_spec(spec_text));
  RETURN_IF_ERROR(directory.lock(plan, /*only_lost=*/true));
  RETURN_IF_ERROR(contract::check_epoch(directory.paths_, directory.us_.attempt));
  return directory;
}

Result<void> RunDirectory::check_spec(std::string_view spec_text) const {
  ASSIGN_OR_RETURN(const auto before, base::read_file(paths_.job_toml()));
  if (before == spec_text) return {};
  return Error(Code::kRefused,
               fmt::format("{}: holds a run of another job.toml; choose another run directory", paths_.root));
}

Result<void> RunDirectory::lock(const record::LaunchPlan& plan, bool only_lost) {
  const LockHolder us = this_holder(plan);
  for (int tries = 0; tries < 10; ++tries) {
    ASSIGN_OR_RETURN(const int newest, newest_lock(paths_));
    LockHolder holder;
    holder.released = true;
    if (newest >= 0) {
      const std::string path = lock_path(paths_, newest);
      ASSIGN_OR_RETURN(const std::string text, base::read_file(path, /*limit_bytes=*/4096));
      ASSIGN_OR_RETURN(holder, parse_holder(text, path));
    }
    if (only_lost && (holder.released || holder.attempt < 0)) {
      return Error(
          Code::kRefused,
          fmt::format("{}: no conductor of this run was lost: {}; `shardrun resume` starts "
                      "it again",
                      paths_.root, holder.attempt < 0 ? "it had not begun an attempt" : "it has ended"));
    }
    if (only_lost && life_of(holder) == Life::kAlive) {
      return Error(Code::kRefused,
                   fmt::format("{}: is conducted by {}, which lives; `shardrun top` shows the run. "
                               "If it hangs, end it first: kill -9 {}",
                               paths_.root, describe(holder), holder.pid));
    }
    const bool may = only_lost ? life_of(holder) == Life::kGone : may_take_over(holder, us);
    if (!holder.released && !may) {
      return Error(Code::kRefused, fmt::format("{}: in use by {}; wait for it, or choose another run "
                                               "directory (if it is gone for good, remove conductor.lock*)",
                                               paths_.root, describe(holder)));
    }
    number_ = newest;
    LockHolder taken = us;
    taken.attempt = holder.attempt;
    auto placed = append(taken);
    if (placed || placed.error().code() != Code::kRefused) return placed;
    number_ = -1;  // somebody else was faster
  }
  return Error(Code::kRefused, fmt::format("{}: others keep taking this run directory", paths_.root));
}

Result<void> RunDirectory::append(LockHolder entry) {
  RETURN_IF_ERROR(place_lock(lock_path(paths_, number_ + 1), to_text(entry)));
  us_ = std::move(entry);
  ++number_;
  return {};
}

RunDirectory::RunDirectory(RunDirectory&& other) noexcept
    : paths_(std::move(other.paths_)), us_(std::move(other.us_)), number_(std::exchange(other.number_, -1)) {}

RunDirectory::~RunDirectory() {
  if (number_ < 0) return;
  ::rmdir(desk().c_str());
  LockHolder done = us_;
  done.released = true;
  (void)append(done);  // refused where another has taken over
}

Error RunDirectory::replaced(const std::string& by_whom) const {
  return Error(Code::kRefused, fmt::format("{}: {} has taken over this run; this conductor starts nothing "
                                           "more and writes nothing more",
                                           paths_.root, by_whom));
}

Result<void> RunDirectory::check_ours() const {
  base::look_afresh(paths_.root);
  for (const int number : {number_ + 1, number_}) {
    const std::string path = lock_path(paths_, number);
    const auto held = base::read_file(path, /*limit_bytes=*/4096);
    if (held && *held == to_text(us_)) return {};
    if (held) {
      const auto holder = parse_holder(*held, path);
      return replaced(holder ? describe(*holder) : "another conductor");
    }
    if (held.error().code() != Code::kNotFound) return held.error();
  }
  if (!exists(paths_.root)) {
    return Error(Code::kNotFound, fmt::format("{}: the run directory was removed while its run went on; "
                                              "nothing is known of it any more",
                                              paths_.root));
  }
  // Somebody removed our lock; as long as nobody uses that, nothing has happened.
  if (us_.attempt >= 0 && contract::check_epoch(paths_, us_.attempt)) return {};
  return replaced("another conductor");
}

// The next file of the log decides: whoever takes over before it is there has it, and this conductor begins nothing.
Result<int> RunDirectory::begin_attempt() {
  RETURN_IF_ERROR(check_ours());
  ASSIGN_OR_RETURN(const int newest, contract::newest_attempt(paths_));
  LockHolder begins = us_;
  begins.attempt = std::max(newest, us_.attempt) + 1;
  if (auto appended = append(begins); !appended) {
    RETURN_IF_ERROR(check_ours());
    return std::move(appended).error();
  }
  RETURN_IF_ERROR(contract::make_attempt(paths_, us_.attempt));
  RETURN_IF_ERROR(contract::write_epoch(paths_, us_.attempt));
  RETURN_IF_ERROR(contract::fence_checkpoints(paths_, paths_.root, us_.run_id, us_.attempt));
  RETURN_IF_ERROR(check_ours());
  return us_.attempt;
}

std::string RunDirectory::desk() const {
  return contract::checkpoint_stage(paths_.root, us_.run_id, us_.attempt);
}

Result<void> RunDirectory::publish(const std::string& path, std::string_view text,
                                   base::Durability durability) const {
  RETURN_IF_ERROR(contract::check_epoch(paths_, us_.attempt));
  auto written = base::replace_from(desk(), path, text, record::kFileMode, durability);
  if (written || written.error().code() != Code::kNotFound) return written;
  RETURN_IF_ERROR(check_ours());
  return replaced("another conductor");
}

}  // namespace shardrun::launcher

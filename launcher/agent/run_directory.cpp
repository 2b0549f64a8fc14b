#include "launcher/agent/run_directory.h"

#include <unistd.h>

#include <utility>

#include <fmt/format.h>

#include "launcher/agent/conductor_lock.h"
#include "runtime/base/io.h"
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
  const LockHolder us = this_holder(plan);
  const std::string path = lock_path(paths_);
  for (int tries = 0; tries < 10; ++tries) {
    auto placed = place_lock(path, to_text(us));
    if (placed) {
      lock_text_ = to_text(us);
      return {};
    }
    if (placed.error().code() != Code::kRefused) return placed;
    const auto held = base::read_file(path, /*limit_bytes=*/4096);
    if (!held && held.error().code() == Code::kNotFound) continue;  // it was removed just now
    RETURN_IF_ERROR(held);
    ASSIGN_OR_RETURN(const LockHolder holder, parse_holder(*held, path));
    if (!may_take_over(holder, us)) {
      return Error(Code::kRefused, fmt::format("{}: in use by {}; wait for it, or choose another run "
                                               "directory (if it is gone for good, remove conductor.lock)",
                                               paths_.root, describe(holder)));
    }
    remove_lock(path, *held);
  }
  return Error(Code::kRefused, fmt::format("{}: others keep taking this run directory", paths_.root));
}

RunDirectory::RunDirectory(RunDirectory&& other) noexcept
    : paths_(std::move(other.paths_)),
      lock_text_(std::exchange(other.lock_text_, {})),
      attempt_(other.attempt_) {}

RunDirectory::~RunDirectory() {
  if (!lock_text_.empty() && check_ours()) remove_lock(lock_path(paths_), lock_text_);
}

Result<void> RunDirectory::check_ours() const {
  const auto held = base::read_file(lock_path(paths_), /*limit_bytes=*/4096);
  if (held && !lock_text_.empty() && *held == lock_text_) return {};
  if (held) {
    const auto holder = parse_holder(*held, lock_path(paths_));
    return Error(Code::kRefused, fmt::format("{}: {} has taken over this run; this conductor starts nothing "
                                             "more and writes nothing more",
                                             paths_.root, holder ? describe(*holder) : "another conductor"));
  }
  if (held.error().code() != Code::kNotFound) return held.error();
  if (!exists(paths_.root)) {
    return Error(Code::kNotFound, fmt::format("{}: the run directory was removed while its run went on; "
                                              "nothing is known of it any more",
                                              paths_.root));
  }
  if (attempt_ >= 0 && contract::check_epoch(paths_, attempt_)) return {};
  return Error(
      Code::kRefused,
      fmt::format("{}: another conductor has taken over this run and has ended; this conductor starts "
                  "nothing more and writes nothing more",
                  paths_.root));
}

Result<int> RunDirectory::begin_attempt() {
  RETURN_IF_ERROR(check_ours());
  ASSIGN_OR_RETURN(const int attempt, contract::take_attempt(paths_));
  // Whoever took over before the number was taken has a smaller one, which must stay the newest.
  if (auto ours = check_ours(); !ours) {
    ::rmdir(paths_.attempt(attempt).c_str());
    return std::move(ours).error();
  }
  RETURN_IF_ERROR(contract::check_epoch(paths_, attempt));
  RETURN_IF_ERROR(contract::write_epoch(paths_, attempt));
  attempt_ = attempt;
  return attempt;
}

}  // namespace shardrun::launcher

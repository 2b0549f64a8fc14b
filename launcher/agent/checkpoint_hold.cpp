#include "launcher/agent/checkpoint_hold.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::launcher {

using base::Code;
using base::Error;
using base::Result;

namespace {

// Removes the file if it still has this text; puts back what somebody else has placed there meanwhile.
void remove_hold(const std::string& path, const std::string& text) {
  const std::string aside = fmt::format("{}.stale.{}", path, ::getpid());
  if (::rename(path.c_str(), aside.c_str()) != 0) return;
  const auto moved = base::read_file(aside, /*limit_bytes=*/4096);
  if (!moved || *moved != text) static_cast<void>(::link(aside.c_str(), path.c_str()));
  ::unlink(aside.c_str());
}

}  // namespace

Result<CheckpointHold> CheckpointHold::take(const std::string& directory, const record::LaunchPlan& plan,
                                            const IsOver& is_over) {
  RETURN_IF_ERROR(base::make_directories(directory));
  const LockHolder us = this_holder(plan);
  CheckpointHold hold;
  hold.path_ = directory + "/holder.lock";
  for (int tries = 0; tries < 10; ++tries) {
    auto placed = place_lock(hold.path_, to_text(us));
    if (placed) {
      hold.text_ = to_text(us);
      return hold;
    }
    if (placed.error().code() != Code::kRefused) return std::move(placed).error();
    const auto held = base::read_file(hold.path_, /*limit_bytes=*/4096);
    if (!held && held.error().code() == Code::kNotFound) continue;  // it was removed just now
    RETURN_IF_ERROR(held);
    ASSIGN_OR_RETURN(const LockHolder holder, parse_holder(*held, hold.path_));
    if (!may_take_over(holder, us) && !is_over(holder)) {
      return Error(
          Code::kRefused,
          fmt::format("{}: run {} writes its checkpoints there ({}); wait for it or cancel it, or write "
                      "another [checkpoint] directory (if it is gone for good, remove holder.lock there)",
                      directory, holder.run_id, describe(holder)));
    }
    remove_hold(hold.path_, *held);
  }
  return Error(Code::kRefused, directory + ": other runs keep taking this checkpoint directory");
}

CheckpointHold::CheckpointHold(CheckpointHold&& other) noexcept
    : path_(std::exchange(other.path_, {})), text_(std::exchange(other.text_, {})) {}

CheckpointHold& CheckpointHold::operator=(CheckpointHold&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(text_, other.text_);
  return *this;
}

CheckpointHold::~CheckpointHold() {
  if (!text_.empty()) remove_hold(path_, text_);
}

}  // namespace shardrun::launcher

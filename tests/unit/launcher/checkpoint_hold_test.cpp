#include "launcher/agent/checkpoint_hold.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

record::LaunchPlan run_called(const std::string& id) {
  record::LaunchPlan plan;
  plan.id = id;
  return plan;
}

bool nobody_knows(const LockHolder&) {
  return false;
}

}  // namespace

TEST_CASE("checkpoint hold: a second run that names the same folder is refused with the first one's name") {
  const tests::Folder folder;
  const std::string checkpoints = folder / "shared/checkpoints";
  {
    const auto first = CheckpointHold::take(checkpoints, run_called("17"), nobody_knows);
    REQUIRE(first);
    const auto second = CheckpointHold::take(checkpoints, run_called("18"), nobody_knows);
    REQUIRE_FALSE(second);
    CHECK(second.error().code() == base::Code::kRefused);
    CHECK(second.error().message().starts_with(checkpoints +
                                               ": run 17 writes its checkpoints there (process "));
  }
  CHECK(CheckpointHold::take(checkpoints, run_called("18"), nobody_knows));  // the first has ended
  CHECK_FALSE(std::filesystem::exists(checkpoints + "/holder.lock"));
}

TEST_CASE(
    "checkpoint hold: what a run that is gone left is taken over, and that of another machine only if it is "
    "over") {
  const tests::Folder folder;
  const std::string path = folder / "holder.lock";
  LockHolder gone = this_holder(run_called("7"));
  gone.start_time -= 1;  // another process had this number
  REQUIRE(place_lock(path, to_text(gone)));
  CHECK(CheckpointHold::take(folder.path(), run_called("8"), nobody_knows));

  LockHolder elsewhere = this_holder(run_called("9"));
  elsewhere.host = "n3";
  elsewhere.slurm_job = "4711";
  REQUIRE(place_lock(path, to_text(elsewhere)));
  const auto refused = CheckpointHold::take(folder.path(), run_called("10"), nobody_knows);
  REQUIRE_FALSE(refused);
  CHECK_NE(refused.error().message().find("Slurm job 4711"), std::string::npos);
  CHECK(CheckpointHold::take(folder.path(), run_called("10"),
                             [](const LockHolder& holder) { return holder.slurm_job == "4711"; }));
}

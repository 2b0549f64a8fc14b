// What the tests of the conductor share: a scheduler whose ranks do what the test says, and a run in a folder of its own.
#pragma once

#include <doctest/doctest.h>

#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/agent/conductor.h"
#include "runtime/base/io.h"
#include "tests/support/folder.h"

namespace shardrun::launcher {

// A scheduler whose ranks do what the test says.
class FakeScheduler final : public Scheduler {
 public:
  using Script = std::function<base::Result<StepOutcome>(const StepRequest&)>;
  explicit FakeScheduler(Script script) : script_(std::move(script)) {}
  base::Result<std::vector<std::string>> nodes(const record::LaunchPlan&) override { return node_names; }
  base::Result<StepOutcome> run(const StepRequest& request) override { return script_(request); }

  std::vector<std::string> node_names = {"n0"};

 private:
  Script script_;
};

constexpr const char* kSpecText = "name = \"job\"  # with a comment\n[program]\ncommand = [\"true\"]\n";

struct Fixture {
  tests::Folder folder;
  spec::JobSpec spec;
  ConductRequest request;

  Fixture() {
    spec.name = "job";
    spec.program.command = {"true"};
    request.spec = &spec;
    request.spec_text = kSpecText;
    request.plan.name = "job";
    request.plan.id = "local-1";
    request.plan.scheduler = "local";
    request.plan.run_directory = folder / "runs/job/local-1";
    request.plan.ranks_per_node = 2;
    request.plan.batch = {2, 1, 1, 2};
  }
  std::string path(const std::string& name) const { return request.plan.run_directory + "/" + name; }
  record::RunRecord record_on_disk() const {
    auto text = base::read_file(path("record.json"));
    REQUIRE(text.has_value());
    auto record = record::parse_run_record(*text);
    REQUIRE(record.has_value());
    return *record;
  }
};

inline record::RankExit exited(int rank, int code) {
  record::RankExit exit;
  exit.global_rank = rank;
  exit.node = "n0";
  exit.exit_code = code;
  return exit;
}

inline record::RankExit killed(int rank, const std::string& node) {
  record::RankExit exit = exited(rank, 0);
  exit.node = node;
  exit.exit_code.reset();
  exit.signal = SIGKILL;
  return exit;
}

inline base::Result<StepOutcome> two_ranks_end_with(int first, int second) {
  StepOutcome outcome;
  outcome.exits = {exited(0, first), exited(1, second)};
  return outcome;
}

}  // namespace shardrun::launcher

#include "launcher/agent/restart.h"

#include <doctest/doctest.h>

#include <chrono>
#include <utility>

#include "runtime/contract/exit_code.h"

using namespace shardrun;
using namespace shardrun::launcher;
using record::RunStatus;

namespace {

spec::FaultToleranceSpec settings(int max_restarts, bool requeue = false) {
  spec::FaultToleranceSpec spec;
  spec.max_restarts = max_restarts;
  spec.requeue = requeue;
  return spec;
}

RestartInput failed(int exit_code) {
  RestartInput input;
  input.exit_code = exit_code;
  input.checkpoints = {10};
  return input;
}

}  // namespace

TEST_CASE("restart: a failed attempt is started again as often as max_restarts says") {
  RestartInput input = failed(1);
  CHECK(decide(input, settings(0)).next == Next::kStop);
  CHECK(decide(input, settings(2)).next == Next::kRestart);
  input.restarts_here = 2;
  CHECK(decide(input, settings(2)).next == Next::kStop);
}

TEST_CASE(
    "restart: exit 93, bad input, a refusal, a stop request and a good end are never followed by another "
    "try") {
  for (const int code : {contract::kExitDoNotRequeue, contract::kExitBadInput, contract::kExitRefused}) {
    RestartInput input = failed(code);
    input.can_requeue = true;
    CHECK(decide(input, settings(10, true)).next == Next::kStop);
  }
  RestartInput stopped = failed(1);
  stopped.stop_requested = true;
  CHECK(decide(stopped, settings(10, true)).next == Next::kStop);
  RestartInput done = failed(0);
  done.status = RunStatus::kCompleted;
  CHECK(decide(done, settings(10, true)).next == Next::kStop);
}

TEST_CASE(
    "restart: three restarts in a row without a newer checkpoint are enough, over all starts of the job") {
  RestartInput input = failed(4);
  input.can_requeue = true;
  input.checkpoints = {10, {}, 10, {}};
  const Decision decision = decide(input, settings(10, true));
  CHECK(decision.next == Next::kStop);
  CHECK(decision.why == "not started again: 3 restarts in a row wrote no newer checkpoint");
  input.checkpoints = {10, {}, 10, 15};
  CHECK(decide(input, settings(10, true)).next == Next::kRestart);
}

TEST_CASE(
    "restart: behind a fault of the scheduler the next attempt waits, and longer behind each further one") {
  using namespace std::chrono_literals;
  RestartInput input = failed(contract::kExitInfrastructure);
  CHECK(decide(input, settings(10)).pause == 0s);
  for (const auto& [faults, pause] :
       {std::pair(1, 5s), std::pair(2, 10s), std::pair(3, 20s), std::pair(90, 60s)}) {
    input.scheduler_faults = faults;
    CHECK(decide(input, settings(10)).next == Next::kRestart);
    CHECK(decide(input, settings(10)).pause == pause);
  }
}

TEST_CASE("restart: the first attempt is no restart, and only a larger step is progress") {
  CHECK(restarts_without_progress({}) == 0);
  CHECK(restarts_without_progress({{}}) == 0);
  CHECK(restarts_without_progress({{}, {}, {}}) == 2);
  CHECK(restarts_without_progress({10, 5}) == 1);
  CHECK(restarts_without_progress({10, 5, 11}) == 0);
}

TEST_CASE("restart: without enough nodes the job is queued again, or says what would have helped") {
  RestartInput input = failed(4);
  input.too_few = "3 nodes are left of 4, and the job needs 4";
  input.can_requeue = true;
  CHECK(decide(input, settings(3, true)).next == Next::kRequeue);
  CHECK(decide(input, settings(3, true)).why == input.too_few);
  CHECK(decide(input, settings(3, false)).next == Next::kStop);
  CHECK(decide(input, settings(3, false)).why ==
        "not started again: 3 nodes are left of 4, and the job needs 4; [fault_tolerance] spares adds nodes, "
        "min_nodes lets the job go on with fewer, requeue asks Slurm for others");
  CHECK(decide(input, settings(0, true)).next == Next::kRequeue);
  CHECK(decide(failed(1), settings(0, true)).next == Next::kStop);  // it is the program's own failure
}

TEST_CASE("restart: a preempted attempt is queued again when the spec says so and there is a queue") {
  RestartInput input;
  input.status = RunStatus::kPreempted;
  input.stop_requested = true;
  CHECK(decide(input, settings(0, true)).next == Next::kStop);
  input.can_requeue = true;
  CHECK(decide(input, settings(0, true)).next == Next::kRequeue);
  CHECK(decide(input, settings(0, false)).next == Next::kStop);
}

TEST_CASE(
    "restart: a job that may go on with fewer nodes says why it does not, even where nothing may restart") {
  RestartInput input = failed(4);
  input.too_few = "1 node is left of 4, and the job needs 2";
  spec::FaultToleranceSpec spec = settings(0);
  CHECK(decide(input, spec).why.empty());
  spec.min_nodes = 2;
  CHECK(decide(input, spec).next == Next::kStop);
  CHECK(decide(input, spec).why == input.too_few);
}

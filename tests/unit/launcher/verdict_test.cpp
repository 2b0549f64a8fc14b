#include "launcher/agent/verdict.h"

#include <doctest/doctest.h>

#include <csignal>

#include "runtime/contract/exit_code.h"

using namespace shardrun::launcher;
using shardrun::contract::signal_name;
using shardrun::record::RankExit;
using shardrun::record::RunStatus;

namespace {

RankExit exit_of(int rank, int code, double ended = 10.0) {
  RankExit exit;
  exit.global_rank = rank;
  exit.node = "n" + std::to_string(rank);
  exit.exit_code = code;
  exit.ended = ended;
  return exit;
}

RankExit killed(int rank, int signal, double ended = 10.0) {
  RankExit exit = exit_of(rank, 0, ended);
  exit.exit_code.reset();
  exit.signal = signal;
  if (signal == SIGKILL) exit.out_of_memory = false;
  return exit;
}

RankExit stopped(RankExit exit) {
  exit.stopped_on_request = true;
  return exit;
}

RankExit lost_peer(int rank, double ended = 10.0) {
  RankExit exit = exit_of(rank, 4, ended);
  exit.peer_lost = true;
  return exit;
}

VerdictInput of(std::vector<RankExit> exits) {
  VerdictInput input;
  input.world_size = static_cast<int>(exits.size());
  input.exits = std::move(exits);
  return input;
}

}  // namespace

TEST_CASE("verdict: a run whose ranks all exit 0 is completed") {
  const Verdict verdict = judge(of({exit_of(0, 0), exit_of(1, 0)}));

  CHECK(verdict.status == RunStatus::kCompleted);
  CHECK(verdict.exit_code == 0);
  CHECK(verdict.line == "all 2 ranks ended well");
  CHECK_FALSE(verdict.first_cause.has_value());
}

TEST_CASE("verdict: a run that ended before its last step says why") {
  VerdictInput input = of({exit_of(0, 0), exit_of(1, 0)});
  input.ended_early = "step 40 of 100 ends early";

  const Verdict verdict = judge(input);

  CHECK(verdict.status == RunStatus::kCompleted);
  CHECK(verdict.line == "all 2 ranks ended well; step 40 of 100 ends early");
}

TEST_CASE(
    "verdict: a rank killed by a signal is named with node, signal and step, and the others are collateral") {
  VerdictInput input = of({stopped(killed(0, SIGTERM, 11)), stopped(killed(1, SIGKILL, 12)),
                           killed(2, SIGKILL, 10), lost_peer(3, 9.5)});
  input.last_step = 120;

  const Verdict verdict = judge(input);

  CHECK(verdict.line ==
        "rank 2 on node n2 was killed by SIGKILL (signal 9) after step 120; 3 other ranks stopped because of "
        "it");
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.status == RunStatus::kFailed);
  REQUIRE(verdict.first_cause.has_value());
  CHECK(verdict.first_cause->kind == "signal");
  CHECK(verdict.first_cause->node == "n2");
  CHECK(verdict.first_cause->global_rank == 2);
  CHECK(verdict.first_cause->signal == SIGKILL);
}

TEST_CASE("verdict: every signal is named by its usual name") {
  CHECK(signal_name(SIGSEGV) == "SIGSEGV");
  CHECK(signal_name(SIGKILL) == "SIGKILL");
  CHECK(signal_name(SIGXCPU) == "SIGXCPU");
  CHECK(signal_name(60) == "signal 60");
}

TEST_CASE(
    "verdict: the program's own error is the cause although its peers failed earlier for the lack of it") {
  RankExit error = exit_of(1, 1, 10.2);
  error.last_words = "ValueError: bad shape";

  const Verdict verdict = judge(of({lost_peer(0, 10.0), error, lost_peer(2, 10.1)}));

  CHECK(
      verdict.line ==
      "rank 1 on node n1 ended with exit code 1: ValueError: bad shape; 2 other ranks stopped because of it");
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.first_cause->kind == "exit");
}

TEST_CASE("verdict: a watchdog that aborts later does not hide the exit that came first") {
  const Verdict verdict = judge(of({exit_of(0, 1, 10.0), killed(1, SIGABRT, 10.5)}));

  CHECK(verdict.first_cause->global_rank == 0);
}

TEST_CASE("verdict: a segmentation fault outranks the exits of the ranks that noticed it first") {
  const Verdict verdict = judge(of({exit_of(0, 1, 10.0), killed(1, SIGSEGV, 10.5)}));

  CHECK(verdict.first_cause->global_rank == 1);
}

TEST_CASE("verdict: of two equal causes the earlier one counts") {
  CHECK(judge(of({exit_of(0, 1, 10.5), exit_of(1, 2, 10.0)})).first_cause->global_rank == 1);
  CHECK(judge(of({killed(0, SIGKILL, 10.0), killed(1, SIGKILL, 10.5)})).first_cause->global_rank == 0);
}

TEST_CASE("verdict: lost peers without a culprit are an infrastructure fault") {
  const Verdict verdict = judge(of({lost_peer(0, 10.1), lost_peer(1, 10.0)}));

  CHECK(verdict.exit_code == 4);
  CHECK(verdict.first_cause->kind == "peer_lost");
  CHECK(verdict.line == "rank 1 on node n1 lost contact to another rank; 1 other rank stopped because of it");
}

TEST_CASE("verdict: the scheduler's words count when no rank failed by itself") {
  VerdictInput input = of({stopped(killed(0, SIGKILL)), lost_peer(1)});
  input.scheduler_fault = "NODE FAIL: node n1 did not answer";

  const Verdict verdict = judge(input);

  CHECK(verdict.line == "NODE FAIL: node n1 did not answer");
  CHECK(verdict.exit_code == 4);
  CHECK(verdict.first_cause->kind == "scheduler");
}

TEST_CASE("verdict: a rank that failed by itself counts more than the scheduler's complaint about it") {
  VerdictInput input = of({exit_of(0, 3), stopped(killed(1, SIGKILL))});
  input.scheduler_fault = "srun: error: task 0 exited with exit code 3";

  CHECK(judge(input).first_cause->global_rank == 0);
}

TEST_CASE("verdict: a rank that left no account is an infrastructure fault") {
  VerdictInput input = of({exit_of(0, 0)});
  input.world_size = 3;

  const Verdict verdict = judge(input);

  CHECK(verdict.exit_code == 4);
  CHECK(verdict.line == "2 of 3 ranks left no account of how they ended");
}

TEST_CASE("verdict: 93 from a rank that failed by itself is passed on, whichever rank was first") {
  CHECK(judge(of({exit_of(0, 93)})).exit_code == 93);
  CHECK(judge(of({killed(0, SIGABRT, 9), exit_of(1, 93, 10)})).exit_code == 93);
}

TEST_CASE("verdict: exit 2 means bad input from the trainer and only a failure from any other program") {
  VerdictInput input = of({exit_of(0, 2)});
  CHECK(judge(input).exit_code == 1);

  input.trainer = true;
  CHECK(judge(input).exit_code == 2);
}

TEST_CASE("verdict: ranks that stop with 75 are preempted, with or without a request that we saw") {
  VerdictInput input = of({stopped(exit_of(0, 75)), stopped(exit_of(1, 75))});
  CHECK(judge(input).status == RunStatus::kPreempted);

  input.stop_signal = SIGTERM;
  input.last_step = 7;
  const Verdict verdict = judge(input);

  CHECK(verdict.status == RunStatus::kPreempted);
  CHECK(verdict.exit_code == 75);
  CHECK(verdict.line ==
        "stopped by SIGTERM after step 7: 2 ranks left a checkpoint and may be started again");
}

TEST_CASE("verdict: a stopped program that dies of SIGTERM has failed, as it left no checkpoint") {
  VerdictInput input = of({stopped(killed(0, SIGTERM)), stopped(exit_of(1, 143)), stopped(exit_of(2, 0))});
  input.stop_signal = SIGINT;

  const Verdict verdict = judge(input);

  CHECK(verdict.status == RunStatus::kFailed);
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.line == "stopped by SIGINT: 2 ranks ended without a checkpoint");
  CHECK_FALSE(verdict.first_cause.has_value());
}

TEST_CASE("verdict: ranks that outlived the time to stop are counted") {
  VerdictInput input = of({stopped(killed(0, SIGKILL)), stopped(exit_of(1, 75))});
  input.stop_signal = SIGTERM;

  CHECK(judge(input).line ==
        "stopped by SIGTERM: 1 rank ended without a checkpoint, 1 of them killed because it had not stopped");
}

TEST_CASE("verdict: an error while stopping is still an error") {
  VerdictInput input = of({stopped(exit_of(0, 75)), stopped(killed(1, SIGSEGV))});
  input.stop_signal = SIGTERM;

  const Verdict verdict = judge(input);

  CHECK(verdict.first_cause->global_rank == 1);
  CHECK(verdict.exit_code == 1);
}

TEST_CASE("verdict: a stop that left no account of any rank is no success") {
  VerdictInput input;
  input.world_size = 2;
  input.stop_signal = SIGTERM;

  const Verdict verdict = judge(input);

  CHECK(verdict.status == RunStatus::kFailed);
  CHECK(verdict.line == "stopped by SIGTERM: 2 ranks ended without a checkpoint");
}

TEST_CASE("verdict: a program that ends well after a stop request is completed") {
  VerdictInput input = of({stopped(exit_of(0, 0))});
  input.stop_signal = SIGTERM;

  CHECK(judge(input).status == RunStatus::kCompleted);
}

TEST_CASE("verdict: a rank that the kernel killed for lack of memory is told from one that somebody killed") {
  VerdictInput input = of({killed(0, 9), exit_of(1, 0)});
  input.exits[0].out_of_memory = true;
  input.exits[0].peak_memory_bytes = int64_t{3} << 30;
  CHECK(judge(input).line ==
        "rank 0 on node n0 was killed by the kernel for lack of memory, at 3.00 GiB resident");
  CHECK(judge(input).first_cause->kind == "out_of_memory");

  input.exits[0].out_of_memory = false;
  CHECK(judge(input).line == "rank 0 on node n0 was killed by SIGKILL (signal 9)");
  CHECK(judge(input).first_cause->kind == "signal");

  input.exits[0].out_of_memory.reset();
  CHECK(judge(input).line.find("dmesg on n0") != std::string::npos);
}

TEST_CASE("verdict: a bus error says what it comes from") {
  CHECK(
      judge(of({killed(0, SIGBUS), exit_of(1, 0)})).line ==
      "rank 0 on node n0 was killed by SIGBUS (signal 7); a file that it had mapped was cut short or cannot "
      "be read any more, or /dev/shm is full");
}

TEST_CASE("verdict: what the watch found is the first cause, and those who died of the order are not") {
  VerdictInput input = of({stopped(killed(0, 9, 20.0)), lost_peer(1, 19.0)});
  input.finding = WatchFinding{"node_lost", "n3", {}, "node n3 is lost: no sign of life for 4.0 s", 18.0};
  input.last_step = 40;

  const Verdict verdict = judge(input);

  CHECK(verdict.line == "node n3 is lost: no sign of life for 4.0 s, after step 40");
  CHECK(verdict.exit_code == 4);
  CHECK(verdict.first_cause->kind == "node_lost");
  CHECK(verdict.first_cause->node == "n3");
  CHECK_FALSE(verdict.first_cause->global_rank.has_value());
}

TEST_CASE("verdict: a rank that had failed before the watch found anything stays the first cause") {
  VerdictInput input = of({killed(0, 11, 10.0), lost_peer(1, 19.0)});
  input.finding = WatchFinding{"hang", "n1", 1, "rank 1 on node n1 hangs", 18.0};

  CHECK(judge(input).first_cause->kind == "signal");
}

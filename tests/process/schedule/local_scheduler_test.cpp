// The local scheduler with real processes: nothing may be left running, whatever ends a job.
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/process/schedule/job_harness.h"
#include "tests/support/folder.h"

using namespace shardrun::testing;
using shardrun::record::RunStatus;
using std::chrono::steady_clock;

namespace {

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

LocalJobOptions shell(int ranks, const std::string& script, const std::string& more = "") {
  LocalJobOptions options;
  options.ranks = ranks;
  options.command = {"sh", "-c", script};
  options.more = more;
  return options;
}

// Every rank says that it is there, then waits.
constexpr const char* kWait = "echo ready; exec sleep 300";

void wait_until_all_are_ready(const LocalJob& job, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    REQUIRE_MESSAGE(job.wait_for("attempt_0/rank_" + std::to_string(rank) + ".out", "ready"),
                    job.launcher_output());
  }
}

}  // namespace

TEST_CASE("local: kill -9 of a rank's program ends the job at once and the verdict names rank and signal") {
  LocalJob job(shell(4, kWait));
  wait_until_all_are_ready(job, 4);

  const auto start = steady_clock::now();
  REQUIRE(::kill(job.find(2, /*program=*/true), SIGKILL) == 0);

  CHECK(job.wait() == 1);
  CHECK(seconds_since(start) < 2.0);
  CHECK(job.processes().empty());
  CHECK(job.record().verdict.find("rank 2 on node ") == 0);
  CHECK(job.record().verdict.find("was killed by SIGKILL (signal 9); 3 other ranks stopped because of it") !=
        std::string::npos);
  CHECK(job.record().attempts[0].first_cause->global_rank == 2);
  CHECK(job.record().attempts[0].first_cause->signal == SIGKILL);
}

TEST_CASE(
    "local: the name by which a process joins a job's PMIx cannot be guessed, and is new for every job") {
  const auto name = [] {
    Ended ended(shell(1, "echo $PMIX_NAMESPACE"));
    CHECK(ended.exit_code == 0);
    return ended.job.file("attempt_0/rank_0.out");
  };
  const std::string first = name();
  CHECK(first.starts_with("shardrun."));
  CHECK(first.size() >= 64);
  CHECK(name() != first);
}

TEST_CASE("local: kill -9 of a rank's supervisor ends the job at once and the verdict names it") {
  LocalJob job(shell(4, kWait));
  wait_until_all_are_ready(job, 4);

  const auto start = steady_clock::now();
  REQUIRE(::kill(job.find(1, /*program=*/false), SIGKILL) == 0);

  CHECK(job.wait() == 1);
  CHECK(seconds_since(start) < 2.0);
  CHECK(job.processes().empty());
  CHECK(job.record().attempts[0].first_cause->global_rank == 1);
  CHECK(job.record().attempts[0].first_cause->signal == SIGKILL);
}

TEST_CASE("local: a failing rank takes peers along that ignore SIGTERM, with their last words") {
  LocalJob job(shell(3,
                     "trap 'echo not me' TERM; echo ready; while [ ! -e go ]; do sleep 0.05; done;"
                     "[ $RANK = 1 ] && exit 5; while :; do sleep 0.05; done"));
  wait_until_all_are_ready(job, 3);

  const auto start = steady_clock::now();
  std::filesystem::create_directory(job.folder() + "/go");

  CHECK(job.wait() == 1);
  CHECK(seconds_since(start) < 2.0);
  CHECK(job.processes().empty());
  CHECK(job.file("attempt_0/rank_0.out").find("not me") != std::string::npos);
  CHECK(job.record().attempts[0].first_cause->exit_code == 5);
  CHECK(job.record().attempts[0].first_cause->global_rank == 1);
}

TEST_CASE("local: a grandchild that left its session and ignores SIGTERM does not outlive the job") {
  LocalJob job(shell(2,
                     "setsid sh -c \"trap '' TERM HUP; echo hidden; while :; do sleep 0.05; done\" & "
                     "sleep 0.3; exit 0"));

  CHECK(job.wait() == 0);
  CHECK(job.processes().empty());
  CHECK(job.file("attempt_0/rank_0.out") == "hidden\n");
}

TEST_CASE("local: a grandchild of a killed supervisor is found and killed") {
  LocalJob job(shell(2, "setsid sleep 300 & echo ready; exec sleep 300"));
  wait_until_all_are_ready(job, 2);

  ::kill(job.find(0, /*program=*/false), SIGKILL);

  CHECK(job.wait() == 1);
  CHECK(job.processes().empty());
}

TEST_CASE("local: ranks do not outlive a launcher that was killed") {
  LocalJob job(shell(3, kWait));
  wait_until_all_are_ready(job, 3);

  job.signal(SIGKILL);
  job.wait();
  const auto start = steady_clock::now();
  while (!job.processes().empty() && seconds_since(start) < 2.0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));

  CHECK(job.processes().empty());
  const auto exits = job.exits();
  REQUIRE(exits.count(1) == 1);
  CHECK(exits.at(1).signal == SIGKILL);
}

TEST_CASE("local: SIGTERM reaches every rank once, and ranks that leave with 75 make a preempted run") {
  LocalJob job(shell(2, "trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.05; done"));
  wait_until_all_are_ready(job, 2);

  job.signal(SIGTERM);

  CHECK(job.wait() == 75);
  CHECK(job.record().status == RunStatus::kPreempted);
  CHECK(job.record().verdict == "stopped by SIGTERM: 2 ranks left a checkpoint and may be started again");
  for (const char* file : {"attempt_0/rank_0.out", "attempt_0/rank_1.out"})
    CHECK(job.file(file) == "ready\nsaved\n");
}

TEST_CASE("local: a program that dies of the forwarded SIGTERM makes a failed run that says who stopped it") {
  LocalJob job(shell(2, kWait));
  wait_until_all_are_ready(job, 2);

  job.signal(SIGINT);

  CHECK(job.wait() == 1);
  CHECK(job.record().verdict == "stopped by SIGINT: 2 ranks ended without a checkpoint");
}

TEST_CASE("local: ranks that do not stop are killed when the time to stop is over") {
  LocalJob job(shell(2, "trap '' TERM; echo ready; while :; do sleep 0.05; done",
                     "[fault_tolerance]\nstop_grace = 1\n"));
  wait_until_all_are_ready(job, 2);

  const auto start = steady_clock::now();
  job.signal(SIGTERM);

  CHECK(job.wait() == 1);
  CHECK(seconds_since(start) > 0.9);
  CHECK(seconds_since(start) < 3.0);
  CHECK(job.processes().empty());
  CHECK(job.record().verdict.find("2 of them killed because it had not stopped") != std::string::npos);
}

TEST_CASE("local: a second stop signal kills at once") {
  LocalJob job(shell(2, "trap 'echo first' TERM; echo ready; while :; do sleep 0.05; done",
                     "[fault_tolerance]\nstop_grace = 60\n"));
  wait_until_all_are_ready(job, 2);
  job.signal(SIGTERM);
  REQUIRE(job.wait_for("attempt_0/rank_0.out", "first"));
  std::this_thread::sleep_for(std::chrono::milliseconds(150));

  const auto start = steady_clock::now();
  job.signal(SIGTERM);

  CHECK(job.wait() == 1);
  CHECK(seconds_since(start) < 1.5);
  CHECK(job.processes().empty());
}

TEST_CASE("local: several nodes are folded onto this machine") {
  LocalJobOptions options =
      shell(2, "echo $RANK $LOCAL_RANK $NODE_RANK $GROUP_WORLD_SIZE $LOCAL_WORLD_SIZE $WORLD_SIZE");
  options.nodes = 2;
  const Ended run(options);

  CHECK(run.exit_code == 0);
  CHECK(run.job.file("attempt_0/rank_3.out") == "3 3 0 1 4 4\n");
  CHECK(run.job.record().nodes.size() == 1);
}

TEST_CASE("local: a run leaves no file in the temporary folder") {
  const shardrun::tests::Folder temporary;
  LocalJobOptions options = shell(2, "[ -n \"$(ls -A " + temporary.path() + ")\" ]");
  options.temporary_folder = temporary.path();

  const Ended run(options);

  CHECK(run.exit_code == 0);  // so there was something while it ran
  for (const auto& left : std::filesystem::directory_iterator(temporary.path()))
    FAIL_CHECK(left.path().string());
}

TEST_CASE("local: two jobs run beside each other") {
  LocalJob one(shell(2, kWait)), two(shell(2, "exit 0"));

  CHECK(two.wait() == 0);
  wait_until_all_are_ready(one, 2);
  one.signal(SIGTERM);
  CHECK(one.wait() == 1);
}

TEST_CASE("local: a run directory that cannot be made is told before anything starts") {
  LocalJobOptions options = shell(2, "exit 0");
  options.run_directory = "/proc/nowhere";

  const Ended run(options);

  CHECK(run.exit_code == 3);
  CHECK(run.job.launcher_output().find("/proc/nowhere") != std::string::npos);
}

#ifdef MPI_SUM
TEST_CASE("local: a stock Open MPI program has the right rank, size and sum and complains about nothing") {
  for (int ranks : {1, 2, 4, 8}) {
    LocalJobOptions options;
    options.ranks = ranks;
    options.command = {MPI_SUM};
    const Ended run(options);
    CHECK(run.exit_code == 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string file = "attempt_0/rank_" + std::to_string(rank);
      CHECK(run.job.file(file + ".out") == "rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                                               " sum " + std::to_string(ranks * (ranks + 1) / 2) + "\n");
      CHECK(run.job.file(file + ".err") == "");
    }
  }
}

TEST_CASE("local: MPI_Abort ends the job with the rank that called it as the cause") {
  LocalJobOptions options;
  options.ranks = 4;
  options.command = {MPI_SUM, "abort"};

  const auto start = steady_clock::now();
  const Ended run(options);

  CHECK(run.exit_code == 1);
  CHECK(seconds_since(start) < 10.0);
  CHECK(run.job.record().attempts[0].first_cause->global_rank == 1);
  CHECK(run.job.record().verdict.find("MPI_Abort with status 7") != std::string::npos);
  CHECK(run.job.processes().empty());
}

TEST_CASE("local: kill -9 of an MPI rank frees its peers from a barrier") {
  LocalJobOptions options;
  options.ranks = 4;
  options.command = {MPI_SUM, "hang"};
  LocalJob job(options);
  REQUIRE(job.wait_for("attempt_0/rank_1.out", "rank 1 of 4"));

  const auto start = steady_clock::now();
  ::kill(job.find(1, /*program=*/true), SIGKILL);

  CHECK(job.wait() == 1);
  CHECK(seconds_since(start) < 2.0);
  CHECK(job.processes().empty());
  CHECK(job.record().attempts[0].first_cause->global_rank == 1);
}
#endif

TEST_CASE(
    "local: a command that writes nothing for hang_timeout is ended, and touching its heartbeat file keeps "
    "it") {
  LocalJob job(shell(2,
                     "i=0; while [ $i -lt 30 ]; do i=$((i+1)); : >>\"$SHARDRUN_HEARTBEAT_FILE\"; "
                     "touch \"$SHARDRUN_HEARTBEAT_FILE\"; sleep 0.1; done; echo ready; exec sleep 300",
                     "[fault_tolerance]\nhang_timeout = 2\n"));
  wait_until_all_are_ready(job, 2);  // they come after 3 s without a line
  const auto start = steady_clock::now();

  CHECK(job.wait() == 4);

  CHECK(seconds_since(start) < 5.0);
  CHECK(job.processes().empty());
  CHECK(job.record().verdict.find("no rank wrote a line or touched its heartbeat file for ") == 0);
  CHECK(job.record().attempts[0].first_cause->kind == "hang");
}

TEST_CASE("local: a supervisor that is stopped is named, and nothing of the job is left") {
  LocalJob job(shell(3, kWait));
  wait_until_all_are_ready(job, 3);
  REQUIRE(job.wait_until_heard(3));
  const auto start = steady_clock::now();
  REQUIRE(::kill(job.find(1, /*program=*/false), SIGSTOP) == 0);

  CHECK(job.wait() == 4);

  CHECK(seconds_since(start) < 7.0);
  CHECK(job.processes().empty());
  CHECK(job.record().verdict.find("rank 1 on node ") == 0);
  CHECK(job.record().verdict.find("its supervisor has been silent") != std::string::npos);
}

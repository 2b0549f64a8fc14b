// Who conducts a run: the lock of a run directory, and a conductor that finds itself replaced.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "launcher/agent/conductor_lock.h"
#include "launcher/agent/run_directory.h"
#include "runtime/base/io.h"
#include "runtime/contract/epoch.h"
#include "tests/support/folder.h"
#include "tests/unit/launcher/conductor_fixture.h"

using namespace shardrun;
using namespace shardrun::launcher;
using base::Code;

namespace {

// Returns a child that waits for a signal; the caller ends it.
pid_t paused_child() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  return child;
}

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "conductor: one that was replaced meanwhile writes no record and starts nothing again") {
  spec.fault_tolerance.max_restarts = 3;
  int starts = 0;
  FakeScheduler scheduler([&](const StepRequest&) {
    ++starts;
    // As the next file of the log, behind the claim and the attempt.
    std::ofstream(path("conductor.lock.2")) << "elsewhere 77 12345 local-1\n";
    std::ofstream(path("epoch")) << "1\n";
    std::ofstream(path("record.json")) << "the newer one's";
    return two_ranks_end_with(1, 1);
  });

  const auto ended = conduct(scheduler, request);

  REQUIRE_FALSE(ended.has_value());
  CHECK(ended.error().message().find("process 77 on elsewhere has taken over this run") != std::string::npos);
  CHECK(starts == 1);
  CHECK(*base::read_file(path("record.json")) == "the newer one's");
  CHECK(*base::read_file(path("conductor.lock.2")) == "elsewhere 77 12345 local-1\n");
  CHECK_FALSE(std::filesystem::exists(path("conductor.lock.3")));
}

TEST_CASE_FIXTURE(
    Fixture,
    "conductor: one that was asleep in its gate while another took over starts nothing and takes no "
    "stage of checkpoints away") {
  spec.program.command.clear();
  spec.fault_tolerance.preflight = true;
  const std::string newer = contract::checkpoint_stage(path("checkpoints"), "local-1", 1);
  int starts = 0;
  FakeScheduler scheduler([&](const StepRequest& step) {
    if (step.arguments.empty()) ++starts;
    std::ofstream(path("conductor.lock.2")) << "elsewhere 77 12345 local-1\n";
    CHECK(contract::make_attempt({request.plan.run_directory}, 1));
    CHECK(contract::write_epoch({request.plan.run_directory}, 1));
    CHECK(contract::fence_checkpoints({request.plan.run_directory}, path("checkpoints"), "local-1", 1));
    std::ofstream(path("record.json")) << "the newer one's";
    return two_ranks_end_with(0, 0);
  });

  const auto ended = conduct(scheduler, request);

  REQUIRE_FALSE(ended.has_value());
  CHECK(ended.error().code() == Code::kRefused);
  CHECK(ended.error().message().find("process 77 on elsewhere has taken over this run") != std::string::npos);
  CHECK(starts == 0);
  CHECK(std::filesystem::is_directory(newer));
  CHECK_FALSE(std::filesystem::exists(contract::checkpoint_stage(path("checkpoints"), "local-1", 0)));
  CHECK(*base::read_file(path("epoch")) == "1\n");
  CHECK(*base::read_file(path("record.json")) == "the newer one's");
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: one that was asleep before its first attempt takes no number any more") {
  std::filesystem::create_directories(request.plan.run_directory);
  auto asleep = RunDirectory::claim(request.plan, request.spec_text);
  REQUIRE(asleep.has_value());
  std::filesystem::remove(path("conductor.lock"));
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(0, 0); });
  REQUIRE(conduct(scheduler, request).has_value());

  const auto late = asleep->begin_attempt();

  REQUIRE_FALSE(late.has_value());
  CHECK(late.error().code() == Code::kRefused);
  CHECK(*base::read_file(path("epoch")) == "0\n");
  CHECK_FALSE(std::filesystem::exists(path("attempt_1")));
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: one that was replaced cannot replace its successor's record any more") {
  std::filesystem::create_directories(request.plan.run_directory);
  auto asleep = RunDirectory::claim(request.plan, request.spec_text);
  REQUIRE(asleep.has_value());
  REQUIRE(asleep->begin_attempt());
  REQUIRE(asleep->publish(path("record.json"), "the older one's", base::Durability::kProcess));
  // As its successor does, between the other's last look and its write.
  REQUIRE(place_lock(path("conductor.lock.2"), "elsewhere 77 12345 local-1\n"));
  REQUIRE(
      contract::fence_checkpoints({request.plan.run_directory}, request.plan.run_directory, "local-1", 1));
  std::ofstream(path("record.json")) << "the newer one's";

  const auto late = asleep->publish(path("record.json"), "the older one's", base::Durability::kPowerLoss);

  REQUIRE_FALSE(late.has_value());
  CHECK(late.error().code() == Code::kRefused);
  CHECK(late.error().message().find("process 77 on elsewhere has taken over") != std::string::npos);
  CHECK(*base::read_file(path("record.json")) == "the newer one's");
}

TEST_CASE_FIXTURE(Fixture,
                  "lock: its log tells who conducts, also after the end, and is never written twice") {
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(0, 0); });
  REQUIRE(conduct(scheduler, request).has_value());

  const auto said = [&](const char* name) { return *parse_holder(*base::read_file(path(name)), name); };
  CHECK(said("conductor.lock").attempt == -1);
  CHECK(said("conductor.lock.1").attempt == 0);
  CHECK_FALSE(said("conductor.lock.1").released);
  CHECK(said("conductor.lock.2").released);
  CHECK(*newest_lock({request.plan.run_directory}) == 2);
  REQUIRE(conduct(scheduler, request).has_value());
  CHECK(said("conductor.lock.4").attempt == 1);
  CHECK(*newest_lock({request.plan.run_directory}) == 5);
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: an attempt's number is never given again, though its folder was removed") {
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(0, 0); });
  REQUIRE(conduct(scheduler, request).has_value());
  REQUIRE(conduct(scheduler, request).has_value());
  std::filesystem::remove_all(path("attempt_0"));
  std::filesystem::remove_all(path("attempt_1"));

  REQUIRE(conduct(scheduler, request).has_value());

  CHECK(std::filesystem::is_directory(path("attempt_2")));
  CHECK(*base::read_file(path("epoch")) == "2\n");
}

TEST_CASE_FIXTURE(Fixture, "conductor: a run directory that was removed is not called another conductor") {
  FakeScheduler scheduler([&](const StepRequest&) {
    std::filesystem::remove_all(request.plan.run_directory);
    return two_ranks_end_with(0, 0);
  });

  const auto ended = conduct(scheduler, request);

  REQUIRE_FALSE(ended.has_value());
  CHECK(ended.error().message().find("the run directory was removed") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "conductor: a run directory in use is refused and its holder named") {
  FakeScheduler second([](const StepRequest&) { return two_ranks_end_with(0, 0); });
  FakeScheduler first([&](const StepRequest&) {
    const auto refused = conduct(second, request);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code() == Code::kRefused);
    CHECK(refused.error().message().find("in use by process " + std::to_string(::getpid())) !=
          std::string::npos);
    return two_ranks_end_with(0, 0);
  });

  CHECK(conduct(first, request).has_value());
}

TEST_CASE_FIXTURE(Fixture, "conductor: a run directory of another run is refused, whatever its job.toml") {
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(0, 0); });
  request.plan.identity = "00000000000000000000000000000001";
  REQUIRE(conduct(scheduler, request).has_value());
  const auto before = base::read_file(path("plan.json")).value();
  request.plan.identity = "00000000000000000000000000000002";

  const auto refused = conduct(scheduler, request);

  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code() == Code::kRefused);
  CHECK(refused.error().message().find("holds another run, local-1") != std::string::npos);
  CHECK(base::read_file(path("plan.json")).value() == before);
  request.plan.identity = "00000000000000000000000000000001";
  CHECK(conduct(scheduler, request).has_value());
}

TEST_CASE_FIXTURE(Fixture, "conductor: the lock of a process that is gone is taken over") {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::filesystem::create_directories(request.plan.run_directory);
  std::ofstream(path("conductor.lock")) << host << ' ' << child << " 12345 local-1\n";
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(0, 0); });

  CHECK(conduct(scheduler, request).has_value());
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: another host's lock is kept, unless it is the same Slurm job started again") {
  std::filesystem::create_directories(request.plan.run_directory);
  std::ofstream(path("conductor.lock")) << "elsewhere 77 12345 4711 ada 4711 0\n";
  request.plan.scheduler = "slurm";
  request.plan.id = "4711";
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(0, 0); });
  const auto conduct_as = [&](const char* job, const char* starts) {
    ::setenv("SLURM_JOB_ID", job, 1);
    ::setenv("SLURM_RESTART_COUNT", starts, 1);
    auto record = conduct(scheduler, request);
    ::unsetenv("SLURM_JOB_ID");
    ::unsetenv("SLURM_RESTART_COUNT");
    return record;
  };

  const auto refused = conduct(scheduler, request);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message().find("process 77 on elsewhere of ada, Slurm job 4711") !=
        std::string::npos);
  CHECK_FALSE(conduct_as("4712", "1").has_value());  // the directory is the same, the job is another
  CHECK_FALSE(conduct_as("4711", "0").has_value());  // started twice within one allocation
  CHECK(conduct_as("4711", "1").has_value());
}

TEST_CASE("lock: one that cannot be written leaves none behind, and the directory can be used afterwards") {
  const tests::Folder folder;
  const std::string path = folder / "conductor.lock";
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit full { 4, before.rlim_max };  // bytes: as a disk that is full behind them
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &full);

  const auto placed = place_lock(path, "n1 77 12345 local-1\n");

  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  REQUIRE_FALSE(placed.has_value());
  CHECK(placed.error().code() == Code::kIo);
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(place_lock(path, "n1 77 12345 local-1\n"));
  CHECK(place_lock(path, "n2 78 12345 local-1\n").error().code() == Code::kRefused);
  CHECK(*base::read_file(path) == "n1 77 12345 local-1\n");
}

TEST_CASE_FIXTURE(Fixture, "lock: an empty one is named with the mend, not as a process 0") {
  std::filesystem::create_directories(request.plan.run_directory);
  std::ofstream(path("conductor.lock")) << "";
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(0, 0); });

  const auto refused = conduct(scheduler, request);

  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message() ==
        path("conductor.lock") +
            ": is empty, so nobody can tell who conducts the run; if no conductor runs, remove it");
}

TEST_CASE("lock: that of a run without an id is read as it was written") {
  LockHolder holder = this_holder({});
  holder.attempt = 3;
  holder.released = true;

  const auto read = parse_holder(to_text(holder), "conductor.lock");

  REQUIRE(read);
  CHECK(read->run_id == "-");
  CHECK(read->boot_id == holder.boot_id);
  CHECK(read->attempt == 3);
  CHECK(read->released);
}

TEST_CASE("lock: a holder is gone only where this process could see it") {
  LockHolder us = this_holder({});
  CHECK(life_of(us) == Life::kAlive);
  LockHolder earlier = us;
  earlier.start_time -= 1;
  CHECK(life_of(earlier) == Life::kGone);
  CHECK(may_take_over(earlier, us));
  LockHolder container = earlier;
  container.pid_namespace = "pid:[4026539999]";
  CHECK(life_of(container) == Life::kUnknown);
  CHECK_FALSE(may_take_over(container, us));
  LockHolder rebooted = us;
  rebooted.boot_id = "00000000-0000-0000-0000-000000000000";
  rebooted.pid_namespace = "pid:[4026539999]";  // it may be a container of another machine
  CHECK(life_of(rebooted) == Life::kUnknown);
  LockHolder twin = us;  // another machine with our host name: no container is around its processes or ours
  twin.boot_id = "00000000-0000-0000-0000-000000000000";
  twin.machine_id = "00000000000000000000000000000000";
  CHECK(life_of(twin) == Life::kUnknown);
  LockHolder older = earlier;
  older.boot_id = older.pid_namespace = "";
  CHECK(life_of(older) == Life::kGone);
  LockHolder elsewhere = us;
  elsewhere.host = "elsewhere";
  CHECK(life_of(elsewhere) == Life::kUnknown);
}

TEST_CASE("lock: a holder that is dead is gone, though its parent has not asked how it ended") {
  const pid_t child = paused_child();
  LockHolder holder = this_holder({});
  holder.pid = child;
  std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
  std::string field;
  for (int i = 1; i <= 22; ++i) stat >> field;
  holder.start_time = std::stoull(field);
  CHECK(life_of(holder) == Life::kAlive);

  ::kill(child, SIGKILL);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);

  CHECK(life_of(holder) == Life::kGone);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("lock: a signal never reaches another process that has the holder's number now") {
  const pid_t child = paused_child();
  LockHolder holder = this_holder({});
  holder.pid = child;
  holder.start_time -= 1;  // of a process that had the number before

  const auto signalled = signal_holder(holder, SIGTERM);

  REQUIRE_FALSE(signalled.has_value());
  CHECK(signalled.error().message().find("is gone; the run is over") != std::string::npos);
  int status = 0;
  CHECK(::waitpid(child, &status, WNOHANG) == 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  CHECK(WTERMSIG(status) == SIGKILL);
}

TEST_CASE_FIXTURE(Fixture, "taking over: only an attempt that has lost its conductor, and only once") {
  const auto text = [](const base::Result<RunDirectory>& taken) {
    REQUIRE_FALSE(taken.has_value());
    CHECK(taken.error().code() == Code::kRefused);
    return taken.error().message();
  };
  FakeScheduler scheduler([&](const StepRequest&) {
    CHECK(text(RunDirectory::take_over(request.plan, kSpecText)).find("which lives") != std::string::npos);
    return two_ranks_end_with(0, 0);
  });
  REQUIRE(conduct(scheduler, request).has_value());
  CHECK(text(RunDirectory::take_over(request.plan, kSpecText)).find("it has ended") != std::string::npos);

  LockHolder gone = this_holder(request.plan);
  gone.start_time -= 1;  // another process had this number
  gone.attempt = 0;
  const record::RunDir run{request.plan.run_directory};
  REQUIRE(place_lock(lock_path(run, newest_lock(run).value() + 1), to_text(gone)));
  CHECK(text(RunDirectory::take_over(request.plan, "name = \"another\"\n")).find("another job.toml") !=
        std::string::npos);
  auto taken = RunDirectory::take_over(request.plan, kSpecText);
  REQUIRE(taken.has_value());
  CHECK(taken->attempt() == 0);
  CHECK(taken->check_ours().has_value());
  CHECK(text(RunDirectory::take_over(request.plan, kSpecText)).find("which lives") != std::string::npos);
  REQUIRE(contract::make_attempt(run, 1).has_value());
  REQUIRE(contract::write_epoch(run, 1).has_value());
  gone.attempt = 0;
  REQUIRE(place_lock(lock_path(run, newest_lock(run).value() + 1), to_text(gone)));
  CHECK(text(RunDirectory::take_over(request.plan, kSpecText)).find("attempt 1 has begun") !=
        std::string::npos);
}

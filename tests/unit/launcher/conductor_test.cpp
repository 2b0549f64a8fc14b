#include "launcher/agent/conductor.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "launcher/agent/conductor_lock.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/master_port.h"
#include "runtime/record/exit_lines.h"
#include "tests/unit/launcher/conductor_fixture.h"

using namespace shardrun;
using namespace shardrun::launcher;
using base::Code;
using base::Error;
using base::Result;
using record::RunStatus;

TEST_CASE_FIXTURE(Fixture,
                  "conductor: a run leaves job.toml byte for byte, plan.json, record.json and results.json") {
  FakeScheduler scheduler([&](const StepRequest& step) {
    CHECK(record_on_disk().status == RunStatus::kRunning);
    CHECK(std::filesystem::is_directory(path("attempt_0")));
    CHECK(step.attempt == 0);
    CHECK(step.master_addr == "127.0.0.1");
    CHECK(step.nodes == std::vector<std::string>{"n0"});
    return two_ranks_end_with(0, 0);
  });

  const auto record = conduct(scheduler, request);

  REQUIRE(record.has_value());
  CHECK(record->exit_code == 0);
  CHECK(*base::read_file(path("job.toml")) == kSpecText);
  CHECK(record::parse_launch_plan(*base::read_file(path("plan.json")))->run_directory ==
        path("").substr(0, path("").size() - 1));
  CHECK(record_on_disk().status == RunStatus::kCompleted);
  CHECK(record_on_disk().world_size == 2);
  CHECK(record_on_disk().attempts.size() == 1);
  CHECK(record_on_disk().attempts[0].ended.has_value());
  CHECK(std::filesystem::exists(path("results.json")));
  CHECK(read_holder({request.plan.run_directory}).error().code() == Code::kNotFound);
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: several nodes meet at the first node's name, on a port that nobody holds") {
  FakeScheduler scheduler([](const StepRequest& step) {
    CHECK(step.master_addr == "n0");
    const contract::PortRange ephemeral = contract::ephemeral_ports();
    CHECK((step.master_port < ephemeral.low || step.master_port > ephemeral.high));
    CHECK(contract::can_bind(step.master_port));
    return two_ranks_end_with(0, 0);
  });
  scheduler.node_names = {"n0", "n1"};
  request.plan.nodes = 2;

  CHECK(conduct(scheduler, request).has_value());
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: what a rank's supervisor wrote is preferred to what the scheduler saw") {
  FakeScheduler scheduler([&](const StepRequest&) {
    record::RankExit written = exited(1, 3);
    written.last_words = "disk on fire";
    written.peak_memory_bytes = 4096;
    REQUIRE(record::append_rank_exit({request.plan.run_directory}, 0, written));
    return two_ranks_end_with(0, 1);
  });

  const auto record = conduct(scheduler, request);

  REQUIRE(record.has_value());
  CHECK(record->verdict == "rank 1 on node n0 ended with exit code 3: disk on fire");
  CHECK(record->exit_code == 1);
  CHECK(record->peak_memory_bytes.at(1) == 4096);
  CHECK(record->attempts[0].first_cause->exit_code == 3);
}

TEST_CASE_FIXTURE(
    Fixture, "conductor: a program that ended well after a request to stop is done, and not started again") {
  FakeScheduler scheduler([&](const StepRequest&) {
    for (const int rank : {0, 1})
      REQUIRE(record::append_rank_exit({request.plan.run_directory}, 0, exited(rank, 0)));
    auto outcome = two_ranks_end_with(contract::kExitPreempted, contract::kExitPreempted);
    outcome->stop_signal = SIGTERM;
    return outcome;
  });

  const auto record = conduct(scheduler, request);

  CHECK(record->status == RunStatus::kCompleted);
  CHECK(record->exit_code == contract::kExitDone);
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: a supervisor that was killed after its program ended well is the cause") {
  FakeScheduler scheduler([&](const StepRequest&) {
    REQUIRE(record::append_rank_exit({request.plan.run_directory}, 0, exited(0, 0)));
    auto outcome = two_ranks_end_with(0, 0);
    outcome->exits[0] = killed(0, "n0");
    return outcome;
  });

  CHECK(conduct(scheduler, request)->attempts[0].first_cause->signal == SIGKILL);
}

TEST_CASE_FIXTURE(
    Fixture,
    "conductor: utilization is a share of what was predicted, and of the datasheet of the device that "
    "the trainer names") {
  FakeScheduler scheduler([&](const StepRequest&) {
    record::TrainingMetrics metrics;
    metrics.tokens_per_second = 1000.0;
    metrics.flops_per_token = {2e9, 3e9};
    metrics.versions["device"] = "Some GPU";
    std::ofstream(path("attempt_0/summary.json")) << to_json(metrics);
    return two_ranks_end_with(0, 0);
  });
  request.predicted.emplace();
  request.predicted->peaks = {{"measured", 4e12, "products"}};
  request.peak_of_device = [](const std::string& device) {
    CHECK(device == "Some GPU");
    return plan::PeakRate{"datasheet", 10e12, "datasheet of some"};
  };

  const auto record = conduct(scheduler, request);

  REQUIRE(record);
  REQUIRE(record->metrics->utilization.size() == 2);
  CHECK(record->metrics->utilization[0].causal == doctest::Approx(0.25));
  CHECK(record->metrics->utilization[1].full == doctest::Approx(0.15));
  CHECK(record->metrics->utilization[1].peak.source == "datasheet of some");
}

TEST_CASE_FIXTURE(
    Fixture,
    "conductor: an attempt without a summary leaves what earlier ones trained, with its checkpoint") {
  spec.program.command.clear();
  spec.program.trainer = "llama";
  bool can_start = true;
  FakeScheduler scheduler([&](const StepRequest&) -> Result<StepOutcome> {
    if (!can_start) return Error(Code::kRefused, "no ranks today");
    std::ofstream(path("metrics.jsonl"))
        << R"({"step":40,"loss":1.75,"tokens_per_second":10,"attempt":0})"
        << "\n"
        << R"({"event":"checkpoint","step":40,"path":"/c/step_40","attempt":0})"
        << "\n";
    return two_ranks_end_with(1, 1);
  });
  const auto failed = conduct(scheduler, request);
  REQUIRE(failed);
  REQUIRE(failed->metrics);
  CHECK(failed->metrics->steps == 40);

  can_start = false;
  const auto resumed = conduct(scheduler, request);

  REQUIRE(resumed);
  CHECK(resumed->status == RunStatus::kRefused);
  REQUIRE(resumed->metrics);
  CHECK(resumed->metrics->steps == 40);
  CHECK(*resumed->metrics->final_loss == 1.75);
  CHECK(record_on_disk().metrics->checkpoint == "/c/step_40");
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: the figures of a run that was started again are those of its newest steps") {
  spec.fault_tolerance.max_restarts = 1;
  int steps = 0;
  FakeScheduler scheduler([&](const StepRequest& step) -> Result<StepOutcome> {
    steps += 20;
    std::ofstream(path("metrics.jsonl"), std::ios::app)
        << R"({"step":)" << steps << R"(,"loss":1.5,"attempt":)" << step.attempt << "}\n";
    return two_ranks_end_with(steps == 20 ? 1 : 0, steps == 20 ? 1 : 0);
  });

  const auto ended = conduct(scheduler, request);

  REQUIRE(ended);
  CHECK(ended->status == RunStatus::kCompleted);
  REQUIRE(ended->attempts.size() == 2);
  REQUIRE(ended->metrics);
  CHECK(ended->metrics->steps == 40);
}

TEST_CASE_FIXTURE(
    Fixture, "conductor: the trainer's summary becomes the record's metrics and its last step is named") {
  spec.program = {"llama", {}};
  FakeScheduler scheduler([&](const StepRequest&) {
    record::TrainingMetrics metrics;
    metrics.steps = 41;
    metrics.final_loss = 1.5;
    metrics.versions["libfabric"] = "1.17.0";
    std::ofstream(path("attempt_0/summary.json")) << to_json(metrics);
    std::ofstream(path("metrics.jsonl"))
        << "{\"event\":\"start\"}\n{\"step\":40}\n{\"step\":41}\n{\"step\":4";
    return two_ranks_end_with(0, 1);
  });

  const auto record = conduct(scheduler, request);

  CHECK(record->metrics->steps == 41);
  CHECK(record->versions.at("libfabric") == "1.17.0");
  CHECK(record->verdict == "rank 1 on node n0 ended with exit code 1 after step 41");
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: ranks that could not be started are a record with the scheduler's words") {
  FakeScheduler scheduler(
      [](const StepRequest&) -> Result<StepOutcome> { return Error(Code::kIo, "no such partition"); });

  const auto record = conduct(scheduler, request);

  REQUIRE(record.has_value());
  CHECK(record->exit_code == 4);
  CHECK(record_on_disk().status == RunStatus::kFailed);
  CHECK(record->verdict == "the ranks could not be started: no such partition");
}

TEST_CASE_FIXTURE(
    Fixture,
    "conductor: behind a fault of the scheduler the next attempt waits, but not once a stop is asked for") {
  using namespace std::chrono_literals;
  spec.fault_tolerance.max_restarts = 1;
  std::array<int, 2> stop{};
  REQUIRE(::pipe(stop.data()) == 0);
  request.stop_fd = stop[0];
  std::vector<std::chrono::steady_clock::time_point> began;
  FakeScheduler scheduler([&](const StepRequest& step) -> Result<StepOutcome> {
    began.push_back(std::chrono::steady_clock::now());
    if (step.attempt == 0) return Error(Code::kIo, "no such partition");
    return two_ranks_end_with(0, 0);
  });
  std::thread asks([&] {
    std::this_thread::sleep_for(300ms);
    CHECK(record_on_disk().status == RunStatus::kRunning);
    CHECK(::write(stop[1], "x", 1) == 1);
  });

  const auto record = conduct(scheduler, request);

  asks.join();
  ::close(stop[0]);
  ::close(stop[1]);
  REQUIRE(began.size() == 2);
  CHECK(began[1] - began[0] > 200ms);
  CHECK(began[1] - began[0] < 4s);
  CHECK(record->status == RunStatus::kCompleted);
}

TEST_CASE_FIXTURE(Fixture, "conductor: a refusal by the scheduler ends with 3") {
  FakeScheduler scheduler(
      [](const StepRequest&) -> Result<StepOutcome> { return Error(Code::kRefused, "no"); });

  CHECK(conduct(scheduler, request)->exit_code == 3);
  CHECK(record_on_disk().status == RunStatus::kRefused);
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: a second start continues with the next attempt and keeps the first one") {
  int attempt_seen = -1;
  FakeScheduler scheduler([&](const StepRequest& step) {
    attempt_seen = step.attempt;
    return two_ranks_end_with(step.attempt == 0 ? 75 : 0, step.attempt == 0 ? 75 : 0);
  });
  CHECK(conduct(scheduler, request)->status == RunStatus::kPreempted);

  const auto record = conduct(scheduler, request);

  CHECK(attempt_seen == 1);
  CHECK(record->status == RunStatus::kCompleted);
  CHECK(record->attempts.size() == 2);
  CHECK(record_on_disk().attempts.size() == 2);
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: a preempted run asks for a requeue when the spec does, and only then") {
  int asked = 0;
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(75, 75); });
  request.requeue = [&](const std::vector<std::string>&) -> Result<std::string> {
    ++asked;
    return std::string();
  };
  CHECK(conduct(scheduler, request)->exit_code == 75);
  CHECK(asked == 0);

  spec.fault_tolerance.requeue = true;
  CHECK(conduct(scheduler, request)->exit_code == 75);
  CHECK(asked == 1);
}

TEST_CASE_FIXTURE(Fixture, "conductor: a requeue that fails is told in the verdict") {
  spec.fault_tolerance.requeue = true;
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(75, 75); });
  request.requeue = [](const std::vector<std::string>&) -> Result<std::string> {
    return Error(Code::kIo, "scontrol: denied");
  };

  CHECK(conduct(scheduler, request).has_value());

  CHECK(record_on_disk().verdict.find("could not be queued again: scontrol: denied") != std::string::npos);
}

TEST_CASE_FIXTURE(
    Fixture, "conductor: a failed attempt is followed by another on other nodes, and both are recorded") {
  spec.fault_tolerance.max_restarts = 1;
  request.plan.nodes = 2;
  request.plan.ranks_per_node = 1;
  std::vector<std::vector<std::string>> nodes;
  FakeScheduler scheduler([&](const StepRequest& step) -> Result<StepOutcome> {
    nodes.push_back(step.nodes);
    if (step.attempt == 1) return two_ranks_end_with(0, 0);
    StepOutcome outcome;
    outcome.exits = {exited(0, 0), killed(1, "n1")};
    return outcome;
  });
  scheduler.node_names = {"n0", "n1", "n2"};

  const auto record = conduct(scheduler, request);

  REQUIRE(record.has_value());
  CHECK(record->status == RunStatus::kCompleted);
  CHECK(nodes == std::vector<std::vector<std::string>>{{"n0", "n1"}, {"n0", "n2"}});
  REQUIRE(record_on_disk().attempts.size() == 2);
  CHECK(record_on_disk().attempts[0].verdict.find("rank 1 on node n1 was killed by SIGKILL") == 0);
  CHECK(record_on_disk().attempts[1].nodes == std::vector<std::string>{"n0", "n2"});
  CHECK(*base::read_file(path("epoch")) == "1\n");
  const std::string events = *base::read_file(path("events.jsonl"));
  CHECK(events.find("\"next\":\"restart\"") != std::string::npos);
}

TEST_CASE_FIXTURE(
    Fixture,
    "conductor: a node where ranks die again is left out, and fewer ranks share the same global batch") {
  spec.fault_tolerance.max_restarts = 5;
  spec.fault_tolerance.min_nodes = 1;
  request.plan.nodes = 3;
  request.plan.ranks_per_node = 1;
  spec.batch.global_batch = 6;
  request.plan.batch = plan::even_batch(/*micro_batch=*/1, /*gradient_accumulation=*/2, /*data_parallel=*/3);
  std::vector<record::LaunchPlan> plans;
  FakeScheduler scheduler([&](const StepRequest& step) -> Result<StepOutcome> {
    plans.push_back(*step.plan);
    const auto written = record::parse_launch_plan(
        *base::read_file(path("attempt_" + std::to_string(step.attempt) + "/plan.json")));
    CHECK(to_json(*written) == to_json(*step.plan));
    StepOutcome outcome;
    for (int rank = 0; rank < step.plan->world_size(); ++rank) outcome.exits.push_back(exited(rank, 0));
    if (step.attempt == 2) return outcome;
    outcome.exits[1] = killed(1, "n1");
    return outcome;
  });
  scheduler.node_names = {"n0", "n1", "n2"};

  const auto record = conduct(scheduler, request);

  REQUIRE(record.has_value());
  CHECK(record->verdict == "all 2 ranks ended well; it had 2 of 3 nodes");
  REQUIRE(plans.size() == 3);
  CHECK(plans[1].nodes == 3);
  CHECK(plans[2].nodes == 2);
  CHECK(plans[2].batch.global_batch == 6);
  CHECK(plans[2].batch.gradient_accumulation == 3);
  CHECK(record::parse_launch_plan(*base::read_file(path("plan.json")))->nodes == 3);
  const record::RunRecord kept = record_on_disk();
  CHECK(kept.world_size == 2);
  CHECK(kept.attempts.at(1).world_size == 3);
  CHECK(kept.attempts.at(1).batch.gradient_accumulation == 2);
  CHECK(kept.attempts.at(2).nodes == std::vector<std::string>{"n0", "n2"});
  CHECK(kept.attempts.at(2).batch.data_parallel == 2);
  const std::string events = *base::read_file(path("events.jsonl"));
  CHECK(events.find("it goes on with 2 of 3 nodes: 6 sequences = micro-batch 1 × accumulation 3 × 2 "
                    "data-parallel ranks") != std::string::npos);

  const auto next_start = conduct(scheduler, request);  // a later start has its nodes again

  REQUIRE(plans.size() >= 4);
  CHECK(plans[3].nodes == 3);
  CHECK(plans[3].batch.gradient_accumulation == 2);
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: a node on which no rank could be started is lost, and so are those with it") {
  spec.fault_tolerance.max_restarts = 1;
  request.plan.nodes = 4;
  request.plan.ranks_per_node = 1;
  FakeScheduler scheduler([](const StepRequest& step) -> Result<StepOutcome> {
    StepOutcome outcome;
    for (int rank = 0; rank < 4; ++rank) outcome.exits.push_back(exited(rank, 0));
    if (step.attempt == 1) {
      CHECK(step.nodes == std::vector<std::string>{"n0", "n2", "n4", "n5"});
      return outcome;
    }
    outcome.unreachable = {"n3", "n1"};
    outcome.exits = {killed(0, "n0")};
    return outcome;
  });
  scheduler.node_names = {"n0", "n1", "n2", "n3", "n4", "n5"};

  const auto record = conduct(scheduler, request);

  CHECK(record->status == RunStatus::kCompleted);
  CHECK(record->attempts.at(0).verdict == "node n3 is lost: no rank could be started on it, nor on n1");
  CHECK(record->attempts.at(0).also_lost == std::vector<std::string>{"n1"});
}

TEST_CASE_FIXTURE(
    Fixture, "conductor: a requeue names the nodes to avoid, and what became of them is in the verdict") {
  spec.fault_tolerance.requeue = true;
  std::filesystem::create_directories(request.plan.run_directory);
  record::RunRecord before;
  record::Attempt lost;
  lost.first_cause = record::FirstCause{"node_lost", "n7", {}, {}, {}};
  before.attempts = {lost};
  std::ofstream(path("record.json")) << to_json(before);
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(75, 75); });
  std::vector<std::string> avoided;
  request.requeue = [&](const std::vector<std::string>& avoid) -> Result<std::string> {
    avoided = avoid;
    return std::string("without n7");
  };

  CHECK(conduct(scheduler, request)->verdict.find("; without n7") != std::string::npos);

  CHECK(avoided == std::vector<std::string>{"n7"});
  CHECK(base::read_file(path("events.jsonl"))->find("\"event\":\"queued_again\"") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "conductor: nodes that an earlier start of the job lost are its last choice") {
  std::filesystem::create_directories(request.plan.run_directory);
  record::RunRecord before;
  record::Attempt lost;
  lost.first_cause = record::FirstCause{"node_lost", "n0", {}, {}, {}};
  before.attempts = {lost};
  std::ofstream(path("record.json")) << to_json(before);
  FakeScheduler scheduler([](const StepRequest& step) {
    CHECK(step.nodes == std::vector<std::string>{"n1"});
    return two_ranks_end_with(0, 0);
  });
  scheduler.node_names = {"n0", "n1"};

  CHECK(conduct(scheduler, request)->status == RunStatus::kCompleted);
}

TEST_CASE_FIXTURE(Fixture,
                  "conductor: a rank that refuses to start without a trace does not see the run directory") {
  FakeScheduler scheduler([&](const StepRequest&) {
    auto outcome = two_ranks_end_with(3, 3);
    std::ofstream(path("attempt_0/rank_0.err")) << "refused by the program\n";
    outcome->exits[1].ended = -1.0;
    outcome->exits[1].node = "n1";
    return outcome;
  });

  REQUIRE(conduct(scheduler, request).has_value());

  CHECK(
      record_on_disk().verdict.find("rank 1 on node n1 ended with exit code 2: node n1 does not see the run "
                                    "directory " +
                                    request.plan.run_directory) == 0);
}

TEST_CASE_FIXTURE(Fixture, "conductor: a run directory of another job is refused and left as it is") {
  std::filesystem::create_directories(request.plan.run_directory);
  std::ofstream(path("job.toml")) << "name = \"other\"\n";
  FakeScheduler scheduler([](const StepRequest&) { return two_ranks_end_with(0, 0); });

  const auto refused = conduct(scheduler, request);

  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code() == Code::kRefused);
  CHECK(*base::read_file(path("job.toml")) == "name = \"other\"\n");
  CHECK(read_holder({request.plan.run_directory}).error().code() == Code::kNotFound);
}

TEST_CASE("master port: the choice stays outside the ephemeral range and skips ports that are taken") {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const auto port = contract::choose_port({32768, 60999}, seed, [](uint16_t) { return true; });
    REQUIRE(port.has_value());
    CHECK(((*port >= 10000 && *port < 32768) || *port > 60999));
  }
  const auto first = contract::choose_port({32768, 60999}, 1, [](uint16_t) { return true; });
  const auto second = contract::choose_port({32768, 60999}, 1, [&](uint16_t port) { return port != *first; });
  CHECK(*second != *first);
}

TEST_CASE(
    "master port: a range of the kernel's that ends early leaves no port to services that like low ones") {
  for (uint64_t seed = 0; seed < 500; ++seed)
    CHECK(*contract::choose_port({1, 500}, seed, [](uint16_t) { return true; }) >= 10000);
}

TEST_CASE("master port: what are no two ports in order are the kernel's usual ones") {
  CHECK(contract::ports_in("1024\t40000\n").low == 1024);
  CHECK(contract::ports_in("1024\t40000\n").high == 40000);
  for (const char* text :
       {"", "1024", "40000 1024", "0 1", "1024 65536", "1024 -2147483648", "99999999999 1"}) {
    CHECK(contract::ports_in(text).low == 32768);
    CHECK(contract::ports_in(text).high == 60999);
  }
}

TEST_CASE("master port: no free port is an error; a machine without ports of its own gets any free one") {
  CHECK_FALSE(contract::choose_port({32768, 60999}, 1, [](uint16_t) { return false; }).has_value());
  CHECK(contract::choose_port({1024, 65535}, 1, [](uint16_t port) { return port >= 10000; }).has_value());
}

// Tests the gate and the conductor around it, with a scheduler whose nodes find what the test says.
#include "launcher/gate/gate.h"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>

#include "launcher/agent/conductor.h"
#include "runtime/base/io.h"

using namespace shardrun;
using namespace shardrun::launcher;
using base::Result;

namespace {

void lacks_provider(record::NodeFacts& facts) {
  facts.provider_error = "no provider";
}

// Nodes n1, n2 and n3; the ranks of a job end well.
class Nodes final : public Scheduler {
 public:
  Result<std::vector<std::string>> nodes(const record::LaunchPlan&) override {
    return std::vector<std::string>{"n1", "n2", "n3"};
  }
  Result<StepOutcome> run(const StepRequest& step) override {
    steps.push_back((step.arguments.empty() ? "ranks on" : "preflight on"));
    for (const std::string& node : step.nodes) steps.back() += " " + node;
    if (step.arguments.empty()) return all_end_well(step);
    CHECK(step.plan->nodes == static_cast<int>(step.nodes.size()));
    CHECK(step.alarm_fd >= 0);
    bool all_there = true;
    for (const std::string& node : step.nodes) {
      record::NodeFacts facts;
      facts.node = node;
      if (change.count(node) != 0) change[node](facts);
      if (facts.node.empty()) {
        all_there = false;
        continue;
      }
      CHECK(base::write_file_atomically(step.arguments.at(1) + "/" + node + ".json", to_json(facts)));
    }
    StepOutcome outcome;
    outcome.stop_signal = stop_signal;
    if (!all_there || stop_signal) return outcome;
    record::Measurement measured;
    measured.bytes_per_second = 100.0;
    CHECK(base::write_file_atomically(step.arguments.at(1) + "/measured.json", to_json(measured)));
    return outcome;
  }

  // What a node finds; a node without an entry finds nothing.
  std::map<std::string, std::function<void(record::NodeFacts&)>> change;
  std::optional<int> stop_signal;
  std::vector<std::string> steps;

 private:
  static StepOutcome all_end_well(const StepRequest& step) {
    StepOutcome outcome;
    for (int rank = 0; rank < step.plan->world_size(); ++rank) {
      record::RankExit exit;
      exit.global_rank = rank;
      exit.exit_code = 0;
      outcome.exits.push_back(exit);
    }
    return outcome;
  }
};

struct Fixture {
  Fixture() {
    std::string path = "/tmp/gate_test.XXXXXX";
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    folder = path;
    ::setenv("XDG_STATE_HOME", folder.c_str(), 1);
    spec.program.command = {"true"};
    spec.fault_tolerance.spares = 1;
    request.spec = &spec;
    request.plan.run_directory = folder + "/run";
    request.plan.nodes = 2;
    request.plan.batch = {2, 1, 1, 2};
  }
  ~Fixture() {
    ::unsetenv("XDG_STATE_HOME");
    std::filesystem::remove_all(folder);
  }
  record::RunRecord conducted() {
    auto record = conduct(nodes, request);
    if (!record) FAIL(record.error().to_string());
    return *record;
  }

  // Three nodes and no spare, of which n2 fails the preflight; the job may go on with two.
  void loses_one_of_three(int global_batch) {
    spec.fault_tolerance.spares = 0;
    spec.fault_tolerance.preflight = true;
    spec.fault_tolerance.min_nodes = 2;
    request.plan.nodes = 3;
    spec.batch.global_batch = global_batch;
    request.plan.batch = plan::even_batch(1, global_batch / 3, 3);
    nodes.change["n2"] = lacks_provider;
  }

  std::string folder;
  spec::JobSpec spec;
  ConductRequest request;
  Nodes nodes;
};

void finds_nothing(record::NodeFacts& facts) {
  facts.node.clear();
}

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "gate: all nodes of the allocation are looked at, spares too, before any rank starts") {
  const auto record = conducted();

  CHECK(record.exit_code == 0);
  CHECK(nodes.steps == std::vector<std::string>{"preflight on n1 n2 n3", "ranks on n1 n2"});
  REQUIRE(record.attempts.at(0).preflight);
  CHECK(record.attempts[0].preflight->bytes_per_second == 100.0);
  CHECK(record.verdict == "all 2 ranks ended well");
}

TEST_CASE_FIXTURE(Fixture,
                  "gate: a bad node is left out for a spare, and verdict, record and events say so") {
  nodes.change["n2"] = lacks_provider;

  const auto record = conducted();

  CHECK(record.exit_code == 0);
  CHECK(nodes.steps.back() == "ranks on n1 n3");
  CHECK(record.nodes == std::vector<std::string>{"n1", "n3"});
  CHECK(record.verdict ==
        "all 2 ranks ended well; node n2 failed the preflight: no provider, and was left out");
  CHECK(record.attempts.size() == 1);
  const auto events = base::read_file(folder + "/run/events.jsonl");
  CHECK(events->find("\"event\":\"node_excluded\"") != std::string::npos);
  const auto on_disk = record::parse_run_record(*base::read_file(folder + "/run/record.json"));
  CHECK(on_disk->attempts.at(0).preflight->excluded.at(0).node == "n2");
}

TEST_CASE_FIXTURE(Fixture,
                  "gate: with too few nodes left the job stops with the node's name, and no rank starts") {
  nodes.change["n1"] = nodes.change["n2"] = lacks_provider;

  const auto record = conducted();

  CHECK(nodes.steps.size() == 1);
  CHECK(record.exit_code == 4);
  CHECK(record.verdict == "node n1 failed the preflight: no provider; also node n2 (provider)");
  CHECK(record.attempts.at(0).first_cause->kind == "preflight");
  CHECK(record.attempts.at(0).first_cause->node == "n1");
}

TEST_CASE_FIXTURE(Fixture, "gate: what every node has is the job's fault: refused, and never queued again") {
  nodes.change["n1"] = nodes.change["n2"] = nodes.change["n3"] = lacks_provider;
  spec.fault_tolerance.requeue = true;
  request.requeue = [](const std::vector<std::string>&) -> Result<std::string> {
    FAIL("it was queued again");
    return std::string();
  };

  const auto record = conducted();

  CHECK(record.exit_code == 3);
  CHECK(record.status == record::RunStatus::kRefused);
}

TEST_CASE_FIXTURE(Fixture, "gate: sick GPUs on every node, each in its own way, are the nodes' fault") {
  spec.resources.gpus_per_node = 1;
  for (const char* node : {"n1", "n2", "n3"}) {
    nodes.change[node] = [](record::NodeFacts& facts) {
      facts.gpus = {{0, "H200", {"lost on " + facts.node}}};
    };
  }

  CHECK(conducted().exit_code == 4);
}

TEST_CASE_FIXTURE(Fixture,
                  "gate: a node that keeps the others from measuring is left out, and they measure again") {
  nodes.change["n2"] = finds_nothing;

  const auto record = conducted();

  CHECK(nodes.steps ==
        std::vector<std::string>{"preflight on n1 n2 n3", "preflight on n1 n3", "ranks on n1 n3"});
  CHECK(record.verdict.find("node n2 failed the preflight: it left no account") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "gate: a request to stop in the preflight ends the run before its first step") {
  nodes.stop_signal = SIGTERM;

  const auto record = conducted();

  CHECK(nodes.steps.size() == 1);
  CHECK(record.status == record::RunStatus::kFailed);
  CHECK(record.verdict.find("stopped by SIGTERM") == 0);
}

TEST_CASE_FIXTURE(Fixture, "gate: a job without spares is not held up unless it asks for the preflight") {
  spec.fault_tolerance.spares = 0;
  CHECK(conducted().exit_code == 0);
  CHECK(nodes.steps.size() == 1);

  spec.fault_tolerance.preflight = true;
  CHECK(conducted().exit_code == 0);
  CHECK(nodes.steps.size() == 3);
}

TEST_CASE_FIXTURE(
    Fixture, "gate: without a spare a job that may goes on with the nodes that pass, in the same steps") {
  loses_one_of_three(6);

  const auto record = conducted();

  CHECK(record.exit_code == 0);
  CHECK(nodes.steps == std::vector<std::string>{"preflight on n1 n2 n3", "ranks on n1 n3"});
  CHECK(record.world_size == 2);
  CHECK(record.batch.global_batch == 6);
  CHECK(record.batch.gradient_accumulation == 3);
  CHECK(record.verdict ==
        "all 2 ranks ended well; node n2 failed the preflight: no provider, and was left out; it had 2 of 3 "
        "nodes");
}

TEST_CASE_FIXTURE(Fixture,
                  "gate: a job that fits on none of the numbers that are left names those that fit") {
  loses_one_of_three(3);

  const auto record = conducted();

  CHECK(record.exit_code == 4);
  CHECK(nodes.steps.size() == 1);
  CHECK(record.verdict.find(
            "node n2 failed the preflight: no provider; 2 nodes are left of 3, and the job cannot "
            "go on there (on 2: global_batch 3 is not") == 0);
  CHECK(record.verdict.find("its batch divides on 1 node, min_nodes is 2") != std::string::npos);
}

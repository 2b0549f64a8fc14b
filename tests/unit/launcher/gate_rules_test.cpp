#include "launcher/gate/rules.h"

#include <doctest/doctest.h>

#include "runtime/contract/exit_code.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

record::NodeFacts healthy(const std::string& node) {
  record::NodeFacts facts;
  facts.node = node;
  facts.checkpoint_folder = "/fsx/checkpoints";
  facts.free_bytes = 1000;
  facts.needed_bytes = 500;
  return facts;
}

// Returns four nodes with nothing wrong, and 100 bytes per second, which is usual.
GateFacts four_nodes() {
  GateFacts facts;
  facts.run = {"/fsx/run"};
  facts.nodes = {"n1", "n2", "n3", "n4"};
  facts.ranks_per_node = 2;
  for (const std::string& node : facts.nodes) facts.found[node] = healthy(node);
  facts.measured.emplace();
  facts.measured->ranks = 8;
  facts.measured->bytes_per_second = 100.0;
  for (const std::string& node : facts.nodes) facts.measured->clocks.push_back({node, -0.01, 0.01});
  facts.usual_bytes_per_second = 100.0;
  return facts;
}

void set_pairs(GateFacts& facts, double n1_n2, double n2_n3, double n3_n4, double n4_n1) {
  facts.measured->pairs = {
      {"n1", "n2", n1_n2}, {"n2", "n3", n2_n3}, {"n3", "n4", n3_n4}, {"n4", "n1", n4_n1}};
}

std::string warnings_of(const GateFacts& facts) {
  std::string all;
  for (const std::string& warning : judge_nodes(facts).warnings) all += warning + "\n";
  return all;
}

record::RankExit exit_of(const std::string& node, int code) {
  record::RankExit exit;
  exit.node = node;
  exit.exit_code = code;
  return exit;
}

}  // namespace

TEST_CASE("gate: healthy nodes pass without a word, and what they measured counts as usual") {
  const GateFacts facts = four_nodes();

  const GateJudgement judgement = judge_nodes(facts);

  CHECK(judgement.bad.empty());
  CHECK(judgement.warnings.empty());
  CHECK(is_usual(facts, judgement));
}

TEST_CASE("gate: a disk that is too small is named with node, path, bytes free and bytes needed") {
  GateFacts facts = four_nodes();
  facts.found["n3"].free_bytes = 499;

  const GateJudgement judgement = judge_nodes(facts);

  REQUIRE(judgement.bad.size() == 1);
  CHECK(judgement.bad[0].node == "n3");
  CHECK(judgement.bad[0].kind == "disk");
  CHECK(judgement.bad[0].reason.find(
            "/fsx/checkpoints has 499 B (499 bytes) free, and the checkpoints to come need "
            "500 B (500 bytes)") == 0);
  CHECK_FALSE(is_usual(facts, judgement));
}

TEST_CASE("gate: a node without the provider is named in the plugin's words") {
  GateFacts facts = four_nodes();
  facts.found["n2"].provider_error = "libfabric has no provider \"efa\"";

  const GateJudgement judgement = judge_nodes(facts);

  REQUIRE(judgement.bad.size() == 1);
  CHECK(judgement.bad[0].node == "n2");
  CHECK(judgement.bad[0].kind == "provider");
  CHECK(judgement.bad[0].reason == "libfabric has no provider \"efa\"");
}

TEST_CASE("gate: GPUs that are asked for must be there and healthy; where none is asked for none is needed") {
  GateFacts facts = four_nodes();
  facts.found["n1"].gpu_error = "nvidia-smi: no such program";
  CHECK(judge_nodes(facts).bad.empty());

  facts.gpus_per_node = 2;
  facts.found["n2"].gpus = {{0, "H200", {}}};
  facts.found["n3"].gpus = {{0, "H200", {}}, {1, "H200", {"7 uncorrected memory errors"}}};
  facts.found["n4"].gpus = {{0, "H200", {}}, {1, "H200", {}}};
  const GateJudgement judgement = judge_nodes(facts);

  REQUIRE(judgement.bad.size() == 3);
  CHECK(judgement.bad[0].reason == "its GPUs are not known: nvidia-smi: no such program");
  CHECK(judgement.bad[1].reason == "it has 1 of 2 GPUs");
  CHECK(judgement.bad[2].reason == "GPU 1 (H200): 7 uncorrected memory errors");
}

TEST_CASE("gate: a slow all-reduce excludes the node that is slow with both of its neighbours") {
  GateFacts facts = four_nodes();
  facts.measured->bytes_per_second = 10.0;
  set_pairs(facts, 100.0, 12.0, 11.0, 90.0);  // n3 is in both slow ones

  const GateJudgement judgement = judge_nodes(facts);

  REQUIRE(judgement.bad.size() == 1);
  CHECK(judgement.bad[0].node == "n3");
  CHECK(judgement.bad[0].kind == "network");
  CHECK(judgement.bad[0].reason.find(
            "12 B/s with its best neighbour, the median node has 90 B/s; the all-reduce "
            "over all ranks has 10 B/s, usually 100 B/s") != std::string::npos);
  CHECK_FALSE(is_usual(facts, judgement));
}

TEST_CASE("gate: slow pairs are nobody's fault while the all-reduce is as usual") {
  GateFacts facts = four_nodes();
  facts.measured->bytes_per_second = 51.0;
  set_pairs(facts, 100.0, 1.0, 1.0, 100.0);
  CHECK(judge_nodes(facts).bad.empty());
  CHECK(is_usual(facts, judge_nodes(facts)));
}

TEST_CASE("gate: a slow network in which no node stands out is a warning, and not remembered") {
  GateFacts facts = four_nodes();
  facts.measured->bytes_per_second = 10.0;
  set_pairs(facts, 10.0, 9.0, 11.0, 8.0);

  CHECK(judge_nodes(facts).bad.empty());
  CHECK(warnings_of(facts) ==
        "the all-reduce over all ranks has 10 B/s, usually 100 B/s, and no node stands out\n");
  CHECK_FALSE(is_usual(facts, judge_nodes(facts)));
}

TEST_CASE("gate: without a past only what is plainly broken is excluded") {
  GateFacts facts = four_nodes();
  facts.usual_bytes_per_second.reset();
  set_pairs(facts, 100.0, 30.0, 30.0, 100.0);
  CHECK(judge_nodes(facts).bad.empty());
  CHECK(is_usual(facts, judge_nodes(facts)));
  set_pairs(facts, 100.0, 20.0, 20.0, 100.0);
  REQUIRE(judge_nodes(facts).bad.size() == 1);
  CHECK(judge_nodes(facts).bad[0].node == "n3");
}

TEST_CASE("gate: a clock that is certainly off by more than a second is a warning, an uncertain one is not") {
  GateFacts facts = four_nodes();
  facts.measured->clocks[1] = {"n2", 59.5, 60.5};
  facts.measured->clocks[2] = {"n3", -30.0, 30.0};

  CHECK(judge_nodes(facts).bad.empty());
  CHECK(warnings_of(facts).find("the clock of node n2 is at least 59.5 s ahead of the others'") == 0);
  CHECK(judge_nodes(facts).warnings.size() == 1);
}

TEST_CASE("gate: when the first node's clock is the wrong one, it is named and not the others") {
  GateFacts facts = four_nodes();
  for (size_t i = 1; i < 4; ++i) facts.measured->clocks[i] = {facts.nodes[i], 4.9, 5.1};

  CHECK(judge_nodes(facts).warnings.size() == 1);
  CHECK(warnings_of(facts).find("the clock of node n1 is at least 5.0 s behind the others'") == 0);
}

TEST_CASE("gate: a harmful variable is a warning with its nodes, an obsolete one is not") {
  GateFacts facts = four_nodes();
  facts.found["n2"].variables = {{"RDMAV_FORK_SAFE", "1"}, {"NCCL_BUFFSIZE", "1"}};
  CHECK(judge_nodes(facts).warnings.size() == 1);
  CHECK(warnings_of(facts).find("RDMAV_FORK_SAFE=1 is harmful: ") == 0);
  CHECK(warnings_of(facts).find("(on n2)") != std::string::npos);
}

TEST_CASE(
    "gate: a node that does not see the run directory is blamed, not those that Slurm ended because of it") {
  GateFacts facts = four_nodes();
  facts.measured.reset();
  facts.found.erase("n2");
  facts.found.erase("n4");
  facts.exits = {exit_of("n4", contract::kExitRefused), exit_of("n2", 143)};

  const GateJudgement judgement = judge_nodes(facts);

  REQUIRE(judgement.bad.size() == 1);
  CHECK(judgement.bad[0].kind == "run_directory");
  CHECK(judgement.bad[0].reason.find("node n4 does not see the run directory /fsx/run") == 0);
}

TEST_CASE("gate: a node that left no account is excluded, with the scheduler's words about it") {
  GateFacts facts = four_nodes();
  facts.measured.reset();
  facts.found.erase("n2");
  facts.scheduler_words = "srun: error: Task launch failed on node n2: Communication connection failure";

  const GateJudgement judgement = judge_nodes(facts);

  REQUIRE(judgement.bad.size() == 1);
  CHECK(judgement.bad[0].node == "n2");
  CHECK(judgement.bad[0].kind == "silent");
  CHECK(judgement.bad[0].reason.find("Communication connection failure") != std::string::npos);
}

TEST_CASE("gate: when the network fails, the node that most of the others name is excluded") {
  GateFacts facts = four_nodes();
  facts.measured.reset();
  for (const char* node : {"n1", "n2", "n4"}) {
    facts.found[node].network_error = "barrier #1: no answer within 20.0 s, says rank 0";
    facts.found[node].network_ranks = {4, 5};
  }
  facts.found["n3"].network_error = "its connection closed";
  facts.found["n3"].network_ranks = {0};

  const GateJudgement judgement = judge_nodes(facts);

  REQUIRE(judgement.bad.size() == 1);
  CHECK(judgement.bad[0].node == "n3");
  CHECK(judgement.bad[0].kind == "network");
}

TEST_CASE("gate: when the network fails and everybody blames another, nobody is excluded") {
  GateFacts facts = four_nodes();
  facts.measured.reset();
  for (size_t i = 0; i < 4; ++i) {
    facts.found[facts.nodes[i]].network_error = "gone";
    facts.found[facts.nodes[i]].network_ranks = {2 * ((static_cast<int>(i) + 1) % 4)};
  }
  CHECK(judge_nodes(facts).bad.empty());
}

TEST_CASE(
    "gate: when the network fails, words about ranks blame nobody, and ranks of two nodes no one of them") {
  GateFacts facts = four_nodes();
  facts.measured.reset();
  for (auto& [name, node] : facts.found) node.network_error = "lost rank 4: its connection closed";
  CHECK(judge_nodes(facts).bad.empty());
  for (auto& [name, node] : facts.found) node.network_ranks = {3, 4, 99};
  CHECK(judge_nodes(facts).bad.empty());
}

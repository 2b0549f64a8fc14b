#include "launcher/agent/muster.h"

#include <doctest/doctest.h>

using namespace shardrun;
using namespace shardrun::launcher;
using Names = std::vector<std::string>;

namespace {

const Names kAll{"n1", "n2", "n3", "n4"};

spec::JobSpec job(int min_nodes) {
  spec::JobSpec spec;
  spec.fault_tolerance.min_nodes = min_nodes;
  return spec;
}

record::LaunchPlan plan_of(int nodes) {
  record::LaunchPlan plan;
  plan.nodes = nodes;
  plan.batch = plan::even_batch(1, 12 / nodes, nodes);
  return plan;
}

record::Attempt ended(const std::string& kind, const std::string& node) {
  record::Attempt attempt;
  attempt.first_cause = record::FirstCause{kind, node, {}, {}, {}};
  return attempt;
}

}  // namespace

TEST_CASE("muster: lost nodes are never chosen, suspects only when they are needed, and the order is kept") {
  CHECK(choose_nodes(kAll, {}, {}, 2) == Names{"n1", "n2"});
  CHECK(choose_nodes(kAll, {"n2"}, {}, 3) == Names{"n1", "n3", "n4"});
  CHECK(choose_nodes(kAll, {}, {"n1"}, 3) == Names{"n2", "n3", "n4"});
  CHECK(choose_nodes(kAll, {"n3"}, {"n1"}, 3) == Names{"n1", "n2", "n4"});
  CHECK(choose_nodes(kAll, {"n3"}, {"n1"}, 4).empty());
}

TEST_CASE("muster: a spare is preferred to fewer nodes, and so is a node where a rank was killed once") {
  const auto spare = muster(job(2), plan_of(3), kAll, {{"n2"}, {}, {}}, {});
  REQUIRE(spare);
  CHECK(spare->nodes == Names{"n1", "n3", "n4"});
  CHECK(spare->plan.nodes == 3);
  const auto suspect = muster(job(2), plan_of(4), kAll, {{}, {}, {"n2"}}, {});
  REQUIRE(suspect);
  CHECK(suspect->nodes == kAll);
}

TEST_CASE("muster: without a spare the job goes on without the lost node, and without the one that hung") {
  for (const BadNodes& bad : {BadNodes{{"n2"}, {}, {}}, BadNodes{{}, {"n2"}, {}}}) {
    const auto fewer = muster(job(2), plan_of(4), kAll, bad, {});
    REQUIRE(fewer);
    CHECK(fewer->nodes == Names{"n1", "n3", "n4"});
    CHECK(fewer->plan.nodes == 3);
    CHECK(fewer->plan.batch.gradient_accumulation == 4);
  }
}

TEST_CASE("muster: a node that hung is taken again where the job cannot do without; a lost one is not") {
  const auto again = muster(job(0), plan_of(4), kAll, {{}, {"n2"}, {}}, {});
  REQUIRE(again);
  CHECK(again->nodes == kAll);
  const auto both = muster(job(3), plan_of(4), kAll, {{"n4"}, {"n2"}, {}}, {});
  REQUIRE(both);
  CHECK(both->nodes == Names{"n1", "n2", "n3"});
  const auto lost = muster(job(0), plan_of(4), kAll, {{"n2"}, {}, {}}, {});
  REQUIRE_FALSE(lost);
  CHECK(lost.error().message() == "3 nodes are left of 4, and the job needs 4");
}

TEST_CASE("muster: the plan of the begin comes back with its nodes") {
  const record::LaunchPlan original = plan_of(4);
  REQUIRE(muster(job(2), original, kAll, {{"n2"}, {}, {}}, {})->plan.nodes == 3);
  CHECK(to_json(muster(job(2), original, kAll, {}, {})->plan) == to_json(original));
}

TEST_CASE("muster: one machine that stands for all nodes is enough, whatever happened on it") {
  const auto here = muster(job(1), plan_of(4), {"laptop"}, {{}, {"laptop"}, {}}, {});
  REQUIRE(here);
  CHECK(here->nodes == Names{"laptop"});
  CHECK(here->plan.nodes == 4);
}

TEST_CASE("muster: what an attempt says of its nodes: lost, hung, or under suspicion") {
  BadNodes bad;
  record::Attempt attempt = ended("node_lost", "n1");
  attempt.also_lost = {"n5"};
  record::PreflightNote preflight;
  preflight.excluded = {{"n4", "disk", "it is full"}};
  attempt.preflight = preflight;
  note_bad_nodes(attempt, bad);
  note_bad_nodes(ended("hang", "n2"), bad);
  note_bad_nodes(ended("hang", ""), bad);
  note_bad_nodes(ended("exit", "n6"), bad);
  note_bad_nodes(ended("signal", "n3"), bad);
  CHECK(bad.lost == Names{"n4", "n1", "n5"});
  CHECK(bad.hung == Names{"n2"});
  CHECK(bad.suspects == Names{"n3"});
  note_bad_nodes(ended("signal", "n3"), bad);  // for the second time
  CHECK(bad.hung == Names{"n2", "n3"});
}

TEST_CASE("muster: a requeue avoids each bad node once, the newest last, and none where a rank was killed") {
  CHECK(nodes_to_avoid({ended("node_lost", "n1"), ended("signal", "n2"), ended("hang", "n3"),
                        ended("node_lost", "n1"), ended("exit", "n4")}) == Names{"n3", "n1"});
  CHECK(nodes_to_avoid({}).empty());
}

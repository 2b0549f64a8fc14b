#include <doctest/doctest.h>

#include "launcher/cluster/pcluster_answer.h"
#include "launcher/cluster/queues.h"

using namespace shardrun;

TEST_CASE("pcluster answers: the members that describe and create spell differently are read alike") {
  const auto described = launcher::parse_cluster_state(
      R"({"clusterName": "a", "clusterStatus": "CREATE_COMPLETE", "cloudFormationStackStatus": "X"})");
  const auto created = launcher::parse_cluster_state(
      R"({"cluster": {"clusterName": "a", "clusterStatus": "CREATE_COMPLETE", "cloudformationStackStatus": "X"}})");

  REQUIRE(described.has_value());
  REQUIRE(created.has_value());
  CHECK(described->stack_status == "X");
  CHECK(created->stack_status == "X");
}

TEST_CASE("pcluster answers: what would steer a terminal is written out") {
  const auto state =
      launcher::parse_cluster_state(R"({"clusterName": "a\u001b[2J", "clusterStatus": "CREATE_FAILED"})");

  REQUIRE(state.has_value());
  CHECK(state->name == "a\\x1b[2J");
  CHECK(state->failed());
}

TEST_CASE("pcluster answers: members of other types are taken for absent") {
  const auto state = launcher::parse_cluster_state(
      R"({"clusterName": "a", "clusterStatus": "CREATE_COMPLETE", "headNode": 7, "failures": {"a": 1}, "region": []})");

  REQUIRE(state.has_value());
  CHECK(state->region.empty());
  CHECK(state->failures.empty());
  CHECK_FALSE(launcher::parse_cluster_state("[]").has_value());
  CHECK_FALSE(launcher::parse_cluster_state("{\"clusterName\": ").has_value());
  CHECK_FALSE(launcher::parse_cluster_list("{}").has_value());
}

TEST_CASE("queues: nodes are counted by what they are to a person who waits") {
  const auto queues = launcher::parse_queues(
      "a*|up|infinite|1|idle|8|16000\na*|up|infinite|2|mix|8|16000\na*|up|infinite|3|idle~|8|16000\n"
      "a*|up|infinite|4|alloc#|8|16000\na*|up|infinite|5|idle%|8|16000\na*|up|infinite|6|drain|8|16000\n"
      "a*|up|infinite|7|down~|8|16000\n");

  REQUIRE(queues.has_value());
  REQUIRE(queues->size() == 1);
  const launcher::QueueState& queue = queues->front();
  CHECK(queue.is_default);
  CHECK(queue.idle == 1);
  CHECK(queue.busy == 2);
  CHECK(queue.on_demand == 3);
  CHECK(queue.starting == 4);
  CHECK(queue.out == 18);
}

TEST_CASE("queues: a line that sinfo would not write is refused") {
  CHECK_FALSE(launcher::parse_queues("a|up|infinite|x|idle|8|16000\n").has_value());
  CHECK_FALSE(launcher::parse_queues("sinfo: error: no controller\n").has_value());
}

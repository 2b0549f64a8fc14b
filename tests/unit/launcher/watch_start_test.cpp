// The rules of the watch before a rank's first beat.
#include <doctest/doctest.h>

#include <vector>

#include "launcher/watch/rules.h"

using namespace shardrun;
using namespace shardrun::launcher;
using contract::Beat;

TEST_CASE(
    "watch: a rank that hangs before its first beat is named when hang_timeout is over, if it can reach us") {
  WatchPolicy policy{.trainer = true};
  policy.hang_timeout_seconds = 5.0;
  const std::vector<RankWatch> ranks{{.global_rank = 0, .node = "n0"}, {.global_rank = 1, .node = "n1"}};
  WatchRules somewhere(policy, ranks);
  policy.all_reach_us = true;
  WatchRules here(policy, ranks);
  for (WatchRules* rules : {&somewhere, &here}) {
    rules->take_unheard(100.0);
    rules->on_beat(0, Beat{}, 100.5);
    CHECK_FALSE(rules->find_alarm(101.0));
  }

  Beat moved;
  moved.moves = 1;
  for (WatchRules* rules : {&somewhere, &here}) {
    rules->on_beat(0, moved, 129.5);
    CHECK_FALSE(rules->find_alarm(129.9));  // starting takes its time, whatever hang_timeout says
  }
  const auto alarm = here.find_alarm(130.1);

  REQUIRE(alarm);
  CHECK(alarm->kind == "hang");
  CHECK(alarm->global_rank == 1);
  CHECK(alarm->line.find("rank 1 on node n1 hangs before its first sign of life") == 0);
  CHECK_FALSE(somewhere.find_alarm(130.1));  // a firewall may keep it from us
  here.on_farewell(1);                       // it left an account of its end
  CHECK_FALSE(here.find_alarm(130.1));
}

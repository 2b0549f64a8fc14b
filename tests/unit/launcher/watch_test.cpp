#include <doctest/doctest.h>

#include <algorithm>

#include "launcher/watch/rules.h"

using namespace shardrun;
using namespace shardrun::launcher;
using contract::Beat;
using contract::RankPhase;

namespace {

// A world of ranks on nodes n0, n1, … that beat twice a second.
class World {
 public:
  World(int ranks, int ranks_per_node, WatchPolicy policy = {.trainer = true})
      : rules_(policy, make_ranks(ranks, ranks_per_node)), beats_(static_cast<size_t>(ranks)) {
    for (Beat& beat : beats_) {
      beat.phase = RankPhase::kStepping;
      beat.state = 'R';
    }
  }
  Beat& beat(int rank) { return beats_[static_cast<size_t>(rank)]; }
  WatchRules& rules() { return rules_; }
  double now() const { return now_; }

  // Lets all ranks step for so long, each step taking `step_seconds`.
  void run(double seconds, double step_seconds) {
    const double end = now_ + seconds;
    while (now_ < end) {
      for (Beat& beat : beats_) {
        beat.step += std::max<int64_t>(1, static_cast<int64_t>(0.5 / step_seconds));
        beat.step_microseconds = static_cast<int64_t>(step_seconds * 1e6);
        beat.entered += 10;
        beat.moves += 30;
      }
      tick();
      REQUIRE_FALSE(rules_.find_alarm(now_));
    }
  }
  // Sends the beats of the ranks that are not silenced, unchanged, until an alarm or for `limit` seconds.
  std::optional<Alarm> wait(double limit) {
    const double end = now_ + limit;
    while (now_ < end) {
      tick();
      if (auto alarm = rules_.find_alarm(now_)) return alarm;
    }
    return std::nullopt;
  }
  void silence(int rank) { silent_.push_back(rank); }
  void speak(int rank) { silent_.erase(std::remove(silent_.begin(), silent_.end(), rank), silent_.end()); }
  // The rank's machine acknowledges from now on whatever is sent to it.
  void acknowledge(int rank) { acknowledging_.push_back(rank); }

 private:
  static std::vector<RankWatch> make_ranks(int ranks, int ranks_per_node) {
    std::vector<RankWatch> made(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      made[static_cast<size_t>(rank)].global_rank = rank;
      made[static_cast<size_t>(rank)].node = "n" + std::to_string(rank / ranks_per_node);
    }
    return made;
  }
  void tick() {
    now_ += 0.5;
    for (const int rank : acknowledging_) rules_.on_acknowledged(rank, now_);
    for (size_t rank = 0; rank < beats_.size(); ++rank) {
      if (std::count(silent_.begin(), silent_.end(), static_cast<int>(rank)) > 0) continue;
      rules_.on_beat(static_cast<int>(rank), beats_[rank], now_);
    }
  }

  WatchRules rules_;
  std::vector<Beat> beats_;
  std::vector<int> silent_, acknowledging_;
  double now_ = 1000.0;
};

}  // namespace

TEST_CASE("watch: a stopped process is named within 5 s, whatever the others do") {
  World world(4, 2);
  world.run(10.0, 0.1);
  const double stopped = world.now();
  world.beat(2).state = 'T';
  for (int rank : {0, 1, 3}) world.beat(rank).waiting = true;

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->kind == "hang");
  CHECK(alarm->global_rank == 2);
  CHECK(alarm->node == "n1");
  CHECK(world.now() - stopped <= 5.0);
  CHECK(alarm->line.find("rank 2 on node n1 hangs after step ") == 0);
}

TEST_CASE("watch: a process whose stop is seen late is called stopped all the same") {
  World world(4, 2);
  world.run(10.0, 0.1);
  for (int rank : {0, 1, 3}) world.beat(rank).waiting = true;
  CHECK_FALSE(world.wait(1.0).has_value());
  world.beat(2).state = 'T';

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->global_rank == 2);
  CHECK(alarm->line.find("SIGSTOP") != std::string::npos);
}

TEST_CASE("watch: a process that is stopped whenever we look but moves in between is slow, not stopped") {
  World world(2, 2);
  world.beat(1).state = 'T';
  world.run(60.0, 0.1);  // requires that there is no alarm
  CHECK(world.rules().ranks()[1].beat.state == 'T');
}

TEST_CASE("watch: of ranks that compute and wait, the one that waits for nobody is the culprit") {
  World world(4, 4);
  world.run(10.0, 0.1);
  const double stuck = world.now();
  for (int rank : {0, 1, 2}) world.beat(rank).waiting = true;

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->global_rank == 3);
  CHECK(alarm->line.find("computing") != std::string::npos);
  CHECK(world.now() - stuck <= 5.0);
}

TEST_CASE(
    "watch: when all wait, the rank that has entered fewer collectives than the others is the culprit") {
  World world(4, 4);
  world.run(10.0, 0.1);
  for (int rank : {0, 1, 2, 3}) world.beat(rank).waiting = true;
  for (int rank : {0, 2, 3}) world.beat(rank).entered += 1;

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->global_rank == 1);
}

TEST_CASE("watch: when all wait in the same collective no rank is blamed") {
  World world(4, 4);
  world.run(10.0, 0.1);
  for (int rank : {0, 1, 2, 3}) world.beat(rank).waiting = true;

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK_FALSE(alarm->global_rank.has_value());
  CHECK(alarm->line.find("all 4 ranks wait for each other") == 0);
}

TEST_CASE("watch: a step that takes four times as long is no hang, with steps of any length") {
  for (const double step_seconds : {0.05, 0.5, 2.0, 10.0, 60.0}) {
    CAPTURE(step_seconds);
    World world(2, 2);
    world.run(40.0, step_seconds);
    // The slow step moves with each of its blocks: 4 blocks of a quarter of the step, forward and backward.
    for (int visit = 0; visit < 8; ++visit) {
      CHECK_FALSE(world.wait(4 * step_seconds / 8).has_value());
      for (int rank : {0, 1}) world.beat(rank).moves += 1;
    }
  }
}

TEST_CASE("watch: with long steps a hang is named within three steps") {
  World world(2, 2);
  world.run(60.0, 4.0);
  const double stuck = world.now();
  world.beat(0).waiting = true;

  const auto alarm = world.wait(100.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->global_rank == 1);
  CHECK(world.now() - stuck <= 12.0);
}

TEST_CASE(
    "watch: before the first steps and while a checkpoint is waited for, ranks get to say whom a collective "
    "misses") {
  for (const RankPhase phase : {RankPhase::kStarting, RankPhase::kSaving, RankPhase::kEnding}) {
    World world(2, 2, {.trainer = true, .slow_phase_seconds = 60.0});
    for (int rank : {0, 1}) world.beat(rank).phase = phase;
    CHECK_FALSE(world.wait(69.0).has_value());
    CHECK(world.wait(3.0).has_value());
  }
}

TEST_CASE("watch: a rank that a disk or a file server keeps asleep gets two minutes") {
  World world(2, 2);
  world.run(10.0, 0.1);
  world.beat(1).state = 'D';
  world.beat(0).waiting = true;
  CHECK_FALSE(world.wait(119.0).has_value());

  const auto alarm = world.wait(5.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->line.find("uninterruptible sleep") != std::string::npos);
}

TEST_CASE("watch: a rank whose file server answers again has time to move, and only once") {
  World world(2, 2);
  world.run(10.0, 0.1);
  world.beat(1).state = 'D';
  world.beat(0).waiting = true;
  CHECK_FALSE(world.wait(60.0).has_value());
  world.beat(1).state = 'R';
  CHECK_FALSE(world.wait(3.0).has_value());
  world.beat(1).moves += 1;
  world.beat(0).moves += 1;
  CHECK_FALSE(world.wait(3.0).has_value());

  const auto alarm = world.wait(2.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->global_rank == 1);
}

TEST_CASE(
    "watch: a node none of whose ranks is heard is lost within 5 s; one silent rank among others hangs") {
  World world(4, 2);
  world.run(10.0, 0.1);
  const double silent = world.now();
  world.silence(2);
  world.silence(3);
  for (int rank : {0, 1}) world.beat(rank).waiting = true;

  const auto lost = world.wait(60.0);

  REQUIRE(lost.has_value());
  CHECK(lost->kind == "node_lost");
  CHECK(lost->node == "n1");
  CHECK_FALSE(lost->global_rank.has_value());
  CHECK(world.now() - silent <= 5.0);

  // A rank that had not moved when its node went dark is not what is wrong.
  World busy(4, 2);
  busy.run(10.0, 0.1);
  for (int rank : {0, 1, 2}) busy.beat(rank).waiting = true;
  REQUIRE_FALSE(busy.wait(0.5));
  busy.silence(2);
  busy.silence(3);
  const auto dark = busy.wait(60.0);
  REQUIRE(dark.has_value());
  CHECK(dark->kind == "node_lost");
  CHECK(dark->node == "n1");

  World other(4, 2, {.trainer = true, .hang_timeout_seconds = 100.0});
  other.run(10.0, 0.1);
  other.silence(3);
  const auto hangs = other.wait(60.0);
  REQUIRE(hangs.has_value());
  CHECK(hangs->kind == "hang");
  CHECK(hangs->global_rank == 3);
}

TEST_CASE("watch: nodes that fall silent together are lost together, unless they are half of all") {
  World world(10, 2);
  world.run(5.0, 0.5);
  for (const int rank : {2, 3, 6, 7}) world.silence(rank);
  const auto two = world.wait(10.0);
  REQUIRE(two);
  CHECK(two->node == "n1");
  CHECK(two->also_lost == std::vector<std::string>{"n3"});
  CHECK(two->line.find("node n1 is lost: no sign of life for ") == 0);
  CHECK(two->line.find(" s, nor of n3") != std::string::npos);

  World half(10, 2);
  half.run(5.0, 0.5);
  for (int rank = 4; rank < 10; ++rank) half.silence(rank);
  const auto one = half.wait(10.0);
  REQUIRE(one);
  CHECK(one->kind == "node_lost");
  CHECK(one->node == "n2");
  CHECK(one->also_lost.empty());
}

TEST_CASE(
    "watch: when no node but one is heard, it is the conductor that is cut off, and no node is to blame") {
  World cut_off(10, 2);
  cut_off.run(5.0, 0.5);
  for (int rank = 2; rank < 10; ++rank) cut_off.silence(rank);
  const auto ours = cut_off.wait(10.0);
  REQUIRE(ours);
  CHECK(ours->kind == "node_lost");
  CHECK(ours->node.empty());
  CHECK(ours->also_lost.empty());
  CHECK(
      ours->line ==
      "the conductor hears no node but n0 for 4.0 s: the link of its own machine, or the network between the "
      "nodes");

  World elsewhere(4, 2);
  elsewhere.run(5.0, 0.5);
  for (int rank = 0; rank < 4; ++rank) elsewhere.silence(rank);
  const auto none = elsewhere.wait(10.0);
  REQUIRE(none);
  CHECK(none->line.starts_with("the conductor hears no node for 4.0 s: "));

  World two(4, 2);  // of two nodes one is as likely as the other, and the one that is heard can go on
  two.run(5.0, 0.5);
  two.silence(2);
  two.silence(3);
  const auto other = two.wait(10.0);
  REQUIRE(other);
  CHECK(other->node == "n1");
}

TEST_CASE("watch: a node whose connection was closed has as long, until somebody else speaks for it") {
  World world(4, 2);
  world.run(10.0, 0.1);
  world.silence(2);
  world.silence(3);
  world.rules().on_farewell(2);  // it spoke for 3, too
  world.rules().on_closed(2, world.now());
  const double closed = world.now();
  CHECK_FALSE(world.wait(10.0));
  const auto alarm = world.wait(5.0);

  REQUIRE(alarm);
  CHECK(alarm->line.starts_with("node n1 is lost: "));
  CHECK(world.now() - closed <= 13.0);

  World other(4, 2);
  other.run(10.0, 0.1);
  other.rules().on_closed(2, other.now());
  other.silence(0);
  other.silence(1);
  CHECK(other.wait(5.0));  // nothing of that is for another node
}

TEST_CASE("watch: a node that says nothing but acknowledges is lost only after three times as long") {
  World world(4, 2);
  world.run(10.0, 0.1);
  const double silent = world.now();
  for (const int rank : {2, 3}) world.silence(rank);
  world.acknowledge(3);
  CHECK_FALSE(world.wait(11.0));

  const auto lost = world.wait(60.0);

  REQUIRE(lost);
  CHECK(lost->kind == "node_lost");
  CHECK(lost->node == "n1");
  CHECK(world.now() - silent <= 13.0);
}

TEST_CASE("watch: a supervisor is not blamed for a silence such as others have come back from") {
  World world(4, 4, {.trainer = true, .hang_timeout_seconds = 100.0});
  world.run(10.0, 0.1);
  world.silence(1);
  REQUIRE_FALSE(world.wait(3.0));
  world.speak(1);
  REQUIRE_FALSE(world.wait(1.0));
  const double silent = world.now();
  world.silence(3);
  CHECK_FALSE(world.wait(9.0));  // three times the other's silence of 3.5 s would be 10.5 s

  const auto hangs = world.wait(60.0);

  REQUIRE(hangs);
  CHECK(hangs->global_rank == 3);
  CHECK(world.now() - silent <= 11.5);

  // It is forgotten in time.
  World later(4, 4, {.trainer = true, .hang_timeout_seconds = 100.0});
  later.run(10.0, 0.1);
  later.silence(1);
  REQUIRE_FALSE(later.wait(3.0));
  later.speak(1);
  later.run(70.0, 0.5);
  const double fell_silent = later.now();
  later.silence(3);
  REQUIRE(later.wait(60.0));
  CHECK(later.now() - fell_silent <= 6.0);
}

TEST_CASE("watch: silence while we were asleep ourselves is forgiven") {
  World world(2, 1);
  world.run(10.0, 0.1);

  world.rules().forgive(100.0);

  CHECK_FALSE(world.rules().find_alarm(world.now() + 100.0).has_value());
}

TEST_CASE("watch: ranks that were not heard in a minute are told of once, those that said farewell are not") {
  World world(3, 1);
  WatchRules& rules = world.rules();
  CHECK(rules.take_unheard(1000.0).empty());
  rules.on_beat(0, Beat{}, 1001.0);
  rules.on_farewell(1);
  CHECK(rules.take_unheard(1059.0).empty());
  CHECK(rules.take_unheard(1060.0) == std::vector<int>{2});
  CHECK(rules.take_unheard(2000.0).empty());
}

TEST_CASE("watch: ranks that said farewell or were never heard are not missed") {
  World world(3, 1);
  world.run(5.0, 0.1);
  for (int rank : {0, 1, 2}) world.rules().on_farewell(rank);
  CHECK_FALSE(world.rules().find_alarm(world.now() + 1000.0).has_value());
}

TEST_CASE("watch: a command hangs only when hang_timeout is given and no rank wrote for so long") {
  World patient(2, 2, {.trainer = false});
  for (int rank : {0, 1}) patient.beat(rank).quiet_milliseconds = 3600 * 1000;
  CHECK_FALSE(patient.wait(10.0).has_value());

  World world(2, 2, {.trainer = false, .hang_timeout_seconds = 30.0});
  world.beat(0).quiet_milliseconds = 1000;
  world.beat(1).quiet_milliseconds = 3600 * 1000;
  CHECK_FALSE(world.wait(10.0).has_value());
  world.beat(0).quiet_milliseconds = 30 * 1000;
  const auto alarm = world.wait(1.0);
  REQUIRE(alarm.has_value());
  CHECK(alarm->line.find("no rank wrote a line") == 0);
}

TEST_CASE("watch: a rank that is busy 15 % longer in each step is named once, within 30 s, and no other") {
  World world(4, 2);
  int named = 0;
  const double begin = world.now();
  double named_at = 0.0;
  while (world.now() < begin + 100.0) {
    for (int rank : {0, 1, 2, 3}) world.beat(rank).busy_microseconds += 5 * (rank == 2 ? 92'000 : 80'000);
    world.run(0.5, 0.1);
    for (const Straggler& slow : world.rules().take_stragglers(world.now())) {
      ++named;
      named_at = world.now();
      CHECK(slow.global_rank == 2);
      CHECK(slow.busy_seconds / slow.median_seconds == doctest::Approx(1.15));
    }
  }
  CHECK(named == 1);
  CHECK(named_at - begin <= 30.0);
}

TEST_CASE("heartbeats: lines survive a round trip and malformed ones are refused") {
  Beat beat{7, RankPhase::kStepping, 12, 345, 678, true, 'S', 1000, 900, 50, 4096};
  const auto read = contract::parse_beat(to_line(beat));
  REQUIRE(read.has_value());
  CHECK(to_line(*read) == "beat 7 1 12 345 678 1 S 1000 900 50 4096");
  for (const char* line :
       {"", "beat", "beat 1 2 3", "beat 7 9 12 345 678 1 S 1000 900 50 1",
        "beat 7 1 12 345 678 1 SS 1000 900 50 1", "beat 7 1 -2 345 678 1 S 1000 900 50 1",
        "beat 7 1 12 345 678 1 S 1000 900 50", "beat 7 1 12 345 678 1 S 1000 900 50 60 70", "hello 2 3 n1"}) {
    CHECK_FALSE(contract::parse_beat(line).has_value());
  }
  const std::vector<contract::RankWord> words{{3, beat}, {4, std::nullopt}};
  const std::string both = "ranks 3 beat 7 1 12 345 678 1 S 1000 900 50 4096;4 bye";
  CHECK(to_line(words) == both);
  const auto read_words = contract::parse_rank_words(both);
  REQUIRE(read_words.has_value());
  CHECK(to_line(*read_words) == both);
  for (const char* malformed :
       {"ranks", "ranks ", "ranks 3", "ranks 3 bye;", "ranks 3 bye ", "ranks x bye", "ranks -1 bye",
        "ranks 1073741824 bye", "ranks 3 bye;4 beat 1", "ranks 3 bye 4 bye", "rank 3 bye"}) {
    CHECK_FALSE(contract::parse_rank_words(malformed).has_value());
  }
  const auto hello = contract::parse_hello("hello 2 3 node7");
  REQUIRE(hello.has_value());
  CHECK(hello->global_rank == 3);
  CHECK(hello->node == "node7");
  for (const char* line :
       {"hello 1 secret 3 node7", "hello 2", "hello 2 3", "hello 2 x n", "hello 2 3 ", "hello 2 -1 n"}) {
    CHECK_FALSE(contract::parse_hello(line).has_value());
  }
}

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include "runtime/trainer/comm/phase_deadline.h"
#include "runtime/trainer/train/best_loss.h"
#include "runtime/trainer/train/replica_check.h"
#include "runtime/trainer/train/spike_rule.h"

using namespace shardrun;
using namespace shardrun::train;

TEST_CASE("replicas: the one that differs from most is named, shard by shard") {
  // Three replicas of two shards: ranks 0 2 4 hold the first, 1 3 5 the second.
  const std::array<uint64_t, 6> same{1, 9, 1, 9, 1, 9}, one{1, 9, 7, 9, 1, 9}, two{1, 9, 7, 9, 1, 8};
  CHECK(compare_hashes(same, 3).ranks.empty());
  CHECK(compare_hashes(one, 3).ranks == std::vector<int>{2});
  CHECK(compare_hashes(one, 3).is_certain);
  CHECK(compare_hashes(two, 3).ranks == std::vector<int>{2, 5});
}

TEST_CASE("replicas: where no majority is, all of them are named, and that it is not certain") {
  const std::array<uint64_t, 4> pair{1, 5, 2, 5};
  CHECK(compare_hashes(pair, 2).ranks == std::vector<int>{0, 2});
  CHECK_FALSE(compare_hashes(pair, 2).is_certain);
  const std::array<uint64_t, 3> all{1, 2, 3};
  CHECK(compare_hashes(all, 3).ranks == std::vector<int>{0, 1, 2});
}

TEST_CASE("spikes: a loss is held against the median of the 32 before it, once there are 8") {
  SpikeRule rule(2.0);
  for (int i = 0; i < 7; ++i) rule.note(3.0);
  CHECK(rule.median_below(100.0) == 0.0);
  rule.note(40.0);
  CHECK(rule.median_below(6.1) == 3.0);
  CHECK(rule.median_below(6.0) == 0.0);
  for (int i = 0; i < 32; ++i) rule.note(1.0);
  CHECK(rule.median_below(2.5) == 1.0);
  SpikeRule off(0.0);
  for (int i = 0; i < 32; ++i) off.note(1.0);
  CHECK(off.median_below(1e9) == 0.0);
}

TEST_CASE("best loss: an equal loss is no better, and one that is no number never is") {
  std::optional<checkpoint::BestLoss> best;
  best = after_evaluation(best, 10, std::numeric_limits<double>::quiet_NaN());
  CHECK(!best);
  const double curve[] = {3.0, 2.0, 2.0, 2.5, NAN, 1.5, INFINITY};
  std::vector<int64_t> best_steps, since;
  for (int64_t i = 0; i < 7; ++i) {
    best = after_evaluation(best, 10 * (i + 2), curve[i]);
    REQUIRE(best);
    CHECK(best->evaluated_step == 10 * (i + 2));
    best_steps.push_back(best->step);
    since.push_back(best->evaluations_since);
  }
  CHECK(best_steps == std::vector<int64_t>{20, 30, 30, 30, 30, 70, 70});
  CHECK(since == std::vector<int64_t>{0, 0, 1, 2, 3, 0, 1});
  CHECK(best->loss == 1.5);
}

TEST_CASE("a start: a phase that does not end within its deadline ends the process, and says which it was") {
  int said[2];
  REQUIRE(::pipe(said) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(said[1], STDERR_FILENO);
    const comm::PhaseDeadline deadline("PMIx_Init", std::chrono::milliseconds(50));
    std::this_thread::sleep_for(std::chrono::seconds(30));
    ::_exit(0);
  }
  ::close(said[1]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  char text[512] = {};
  CHECK(::read(said[0], text, sizeof text - 1) > 0);
  ::close(said[0]);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 4);
  CHECK(std::string(text).starts_with("shardrun: PMIx_Init has not returned within 0.1 s"));
}

TEST_CASE("a start: a phase that ends in time costs nothing") {
  const auto start = std::chrono::steady_clock::now();
  { const comm::PhaseDeadline deadline("PMIx_Get", std::chrono::hours(1)); }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

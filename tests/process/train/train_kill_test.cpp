// A whole job that is killed at random moments of saving and started again until it is through.
// SHARDRUN_KILLS=200 kills it as often; 10 is what CI has time for.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "tests/process/train/trainer_job.h"

using namespace shardrun;
using std::chrono::milliseconds;

namespace {

const std::string kSpec =
    testing::two_rank_job("killed", 128, 400, "[checkpoint]\nevery_steps = 1\nkeep = 2\n");

int wanted_kills() {
  const char* text = std::getenv("SHARDRUN_KILLS");
  return text == nullptr ? 10 : std::atoi(text);
}

// Waits for the launcher; returns false when it had not ended before.
bool has_ended(pid_t launcher, int options) {
  int status = 0;
  return ::waitpid(launcher, &status, options) == launcher;
}

// Starts the job, lets it take a step or two, and kills one rank or both at any moment of what follows. Returns
// false when the job was through before.
bool start_and_kill(const testing::TrainerJob& job, const std::vector<std::string>& settings,
                    std::mt19937& generator) {
  auto launcher = base::spawn_command(job.command(settings), {}, /*with_input=*/false);
  REQUIRE(launcher);
  const int64_t before = job.told_checkpoint();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (job.losses().empty() || job.told_checkpoint() == before) {
    if (has_ended(launcher->pid, WNOHANG)) return false;
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(milliseconds(5));
  }
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::uniform_int_distribution<int>(0, 200000)(generator)));
  const auto ranks = job.ranks();
  const size_t first = generator() % 2, count = 1 + generator() % 2;
  for (size_t i = 0; i < std::min(count, ranks.size()); ++i)
    ::kill(ranks[(first + i) % ranks.size()], SIGKILL);
  has_ended(launcher->pid, 0);
  return !ranks.empty();
}

}  // namespace

TEST_CASE(
    "killed at random moments of saving, a job always goes on from a complete checkpoint, bit for bit") {
  const testing::TrainerJob unbroken(kSpec), job(kSpec);
  const auto record = unbroken.run({"checkpoint.every_steps=0"});
  const auto expected = unbroken.losses();
  REQUIRE_EQ(expected.size(), 400);

  std::mt19937 generator(20261121);
  std::string checkpoints;
  int kills = 0, rounds = 0;
  while (kills < wanted_kills()) {
    checkpoints = job.folder() + "/checkpoints_" + std::to_string(++rounds);
    int64_t told = 0;
    for (bool killed = true; killed && kills < wanted_kills();) {
      killed = start_and_kill(job, {"checkpoint.directory=\"" + checkpoints + "\""}, generator);
      kills += killed ? 1 : 0;
      const std::string output = job.output();
      CAPTURE(output);
      CHECK_EQ(output.find("damaged"), std::string::npos);
      const auto losses = job.losses();
      if (!losses.empty())
        CHECK_GT(losses.begin()->first, told);  // a checkpoint that was reported is not lost
      for (const auto& [step, loss] : losses) REQUIRE_EQ(loss, expected.at(step));
      told = std::max(told, job.told_checkpoint());
    }
  }
  const auto last = job.run({"checkpoint.directory=\"" + checkpoints + "\""});
  MESSAGE(kills << " kills in " << rounds << " trainings");
  REQUIRE(last.metrics);
  CHECK_EQ(last.metrics->steps, 400);
  REQUIRE(record.metrics->final_loss);
  // The last kill may have come after the last step's checkpoint: nothing was left to train then.
  const bool trained = !job.losses().empty();
  REQUIRE_EQ(last.metrics->final_loss.has_value(), trained);
  if (trained) CHECK_EQ(*last.metrics->final_loss, *record.metrics->final_loss);
  for (const auto& [step, loss] : job.losses()) CHECK_EQ(loss, expected.at(step));
}

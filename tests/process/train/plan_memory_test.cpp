// Compares what is said before a run with the peak of every rank: strategies, degrees, checkpointing, micro-batches. `shardrun
// plan` and the record's prediction are one number, and the trainer's own plan is it, too, but for oneDNN's scratch and for the
// process, which it measures.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/base/command.h"
#include "runtime/base/json.h"
#include "runtime/plan/model_plan.h"
#include "tests/process/train/trainer_job.h"

using namespace shardrun;

namespace {

constexpr double kLimit = 0.03;
constexpr double kOneDnn = 0.5 * 1024 * 1024;  // bytes of a rank with one thread

constexpr double kMeasuredAgain = 0.5e6;  // pages of libraries that happen to be in memory

const std::string kLlama = R"(name = "memory"
[program]
trainer = "llama"
[model]
layers = 6
hidden = 256
heads = 8
kv_heads = 4
ffn = 704
vocab = 8192
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 128
[batch]
gradient_accumulation = 1
[optimizer]
steps = 2
)";

struct Case {
  int ranks;
  const char* sharding;  // strategy, and a degree behind it
  const char* checkpointing;
  int micro_batch;
  int tensor = 1;
  int accumulation = 1;
};

constexpr Case kCases[] = {{1, "full_shard", "none", 1},         {1, "full_shard", "full", 4},
                           {1, "no_shard", "selective", 2},      {1, "no_shard", "none", 4},
                           {2, "full_shard", "none", 1},         {2, "full_shard", "selective", 2},
                           {2, "full_shard", "full", 4},         {2, "shard_grad_op", "none", 2},
                           {2, "shard_grad_op", "full", 1},      {2, "no_shard", "none", 2},
                           {2, "no_shard", "selective", 4},      {2, "full_shard", "none", 2, 2},
                           {2, "full_shard", "full", 4, 2},      {4, "full_shard", "none", 1},
                           {4, "full_shard", "none", 4},         {4, "full_shard", "selective", 1},
                           {4, "full_shard", "full", 2},         {4, "hybrid_shard 2", "none", 2},
                           {4, "hybrid_shard 2", "full", 1},     {4, "hybrid_shard 2", "selective", 4},
                           {4, "shard_grad_op", "selective", 2}, {4, "no_shard", "full", 1},
                           {4, "full_shard", "none", 2, 2},      {4, "full_shard", "selective", 4, 4},
                           {4, "full_shard", "none", 1, 1, 2},   {2, "hybrid_shard 1", "none", 1, 1, 2}};

std::vector<std::string> settings_of(const Case& one) {
  std::string strategy = one.sharding;
  const size_t blank = strategy.find(' ');
  std::vector<std::string> settings = {
      "resources.ranks_per_node=" + std::to_string(one.ranks),
      "sharding.strategy=\"" + strategy.substr(0, blank) + "\"",
      "sharding.tensor_parallel=" + std::to_string(one.tensor),
      std::string("memory.activation_checkpointing=\"") + one.checkpointing + "\"",
      "batch.micro_batch=" + std::to_string(one.micro_batch),
      "batch.gradient_accumulation=" + std::to_string(one.accumulation)};
  if (blank != std::string::npos) settings.push_back("sharding.shard_degree=" + strategy.substr(blank + 1));
  return settings;
}

// Returns what `shardrun plan --json` says, before anything runs: by kind.
nlohmann::json planned_bytes(const testing::TrainerJob& job, const std::vector<std::string>& settings) {
  std::vector<std::string> argv = job.command(settings);
  argv[1] = "plan";
  argv.push_back("--json");
  const auto ended = base::run_command(argv);
  if (!ended) FAIL(ended.error().to_string());
  return base::parse_json(ended->out)["model"]["bytes_per_rank"];
}

struct Worst {
  double error = 0.0, workspace = 0.0;
};

// Runs the job and holds every rank's peak against what was said before.
void compare(const testing::TrainerJob& job, const Case& one, std::vector<std::string> settings, double limit,
             Worst& worst) {
  for (std::string& setting : settings_of(one)) settings.push_back(std::move(setting));
  const std::string name = std::string(one.sharding) + ", " + one.checkpointing + ", " +
                           std::to_string(one.ranks) + " ranks, micro-batch " +
                           std::to_string(one.micro_batch) + ", tensor " + std::to_string(one.tensor);
  CAPTURE(name);
  const nlohmann::json kinds = planned_bytes(job, settings);
  const double planned = kinds["total"];
  const record::RunRecord record = job.run(settings);
  REQUIRE(record.predicted);
  REQUIRE(record.predicted->memory_bytes);
  // One number but for the program, which was measured once for each.
  CHECK_LT(std::abs(static_cast<double>(*record.predicted->memory_bytes) - planned), kMeasuredAgain);
  REQUIRE(record.metrics);
  const plan::MemoryPlan& own = record.metrics->planned;
  const double unknown =
      static_cast<double>(own.total() - own.process) - (planned - static_cast<double>(kinds["process"]));
  CHECK_LT(std::abs(unknown), kOneDnn);
  REQUIRE_EQ(record.peak_memory_bytes.size(), static_cast<size_t>(one.ranks));
  double error = 0.0;  // of the rank that is furthest off
  for (const auto& peak : record.peak_memory_bytes) {
    REQUIRE(peak);
    const double own_error = planned / static_cast<double>(*peak) - 1.0;
    if (std::abs(own_error) > std::abs(error)) error = own_error;
  }
  MESSAGE(name << ": planned " << planned / 1e6 << " MB (" << 100.0 * error << " %), the trainer "
               << unknown / 1e6 << " MB more");
  CHECK_LT(std::abs(error), limit);
  worst.error = std::max(worst.error, std::abs(error));
  worst.workspace = std::max(worst.workspace, std::abs(unknown));
}

}  // namespace

TEST_CASE("plan: what a rank's program holds is measured here, and not taken from another system") {
  const std::string rank = std::string(BIN_DIR) + "/shardrun-rank";
  const auto alone = base::run_command({rank, "footprint"});
  REQUIRE_MESSAGE(alone, (alone ? "" : alone.error().to_string()));
  CHECK(std::stoll(alone->out) > 5'000'000);
}

TEST_CASE(
    "plan: every rank of 26 combinations peaks within 3 % of what was planned and is recorded as predicted") {
  const testing::TrainerJob job(kLlama);
  Worst worst;
  for (const Case& one : kCases) compare(job, one, {}, kLimit, worst);
  MESSAGE("worst: " << 100.0 * worst.error << " %, oneDNN's scratch " << worst.workspace / 1e6 << " MB");
}

TEST_CASE(
    "plan: ranks of a mixture of experts, and with moments in 8 bits, peak within 2 % of what was planned") {
  const testing::TrainerJob job(kLlama);
  constexpr Case kMixtures[] = {{1, "full_shard", "none", 2},
                                {2, "full_shard", "none", 4},
                                {2, "full_shard", "full", 4},
                                {2, "no_shard", "selective", 2}};
  constexpr double kNearLimit = 0.02;
  Worst worst;
  for (const Case& one : kMixtures)
    compare(job, one, {"model.experts=8", "model.ffn=352"}, kNearLimit, worst);
  compare(job, {2, "full_shard", "none", 1}, {"optimizer.kind=\"adamw8bit\""}, kNearLimit, worst);
  MESSAGE("worst: " << 100.0 * worst.error << " %, oneDNN's scratch " << worst.workspace / 1e6 << " MB");
}

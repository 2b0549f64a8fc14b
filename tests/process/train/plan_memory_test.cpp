// Compares what the planner says before a run with the peak of every rank: strategies, degrees, checkpointing,
// micro-batches. It has two answers: `shardrun plan`, which asks the trainer's own code, and the formula that the
// record keeps as predicted. With an odd number of layers one of the two buffers for gathered blocks never holds
// the largest block, and the part that is never touched is planned but not resident.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "tests/process/train/trainer_job.h"

using namespace shardrun;

namespace {

constexpr double kLimit = 0.05;

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

// Returns what `shardrun plan --json` says, before anything runs.
double planned_bytes(const testing::TrainerJob& job, const std::vector<std::string>& settings) {
  std::vector<std::string> argv = job.command(settings);
  argv[1] = "plan";
  argv.push_back("--json");
  const auto ended = base::run_command(argv);
  if (!ended) FAIL(ended.error().to_string());
  return base::parse_json(ended->out)["model"]["bytes_per_rank"]["total"];
}

}  // namespace

TEST_CASE(
    "plan: every rank of 26 combinations peaks within 5 % of what was planned, and of what was predicted") {
  const testing::TrainerJob job(kLlama);
  double worst_plan = 0.0, worst_formula = 0.0;
  for (const Case& one : kCases) {
    const std::vector<std::string> settings = settings_of(one);
    const std::string name = std::string(one.sharding) + ", " + one.checkpointing + ", " +
                             std::to_string(one.ranks) + " ranks, micro-batch " +
                             std::to_string(one.micro_batch) + ", tensor " + std::to_string(one.tensor);
    CAPTURE(name);
    const double planned = planned_bytes(job, settings);
    const record::RunRecord record = job.run(settings);
    REQUIRE(record.predicted);
    REQUIRE(record.predicted->memory_bytes);
    REQUIRE_EQ(record.peak_memory_bytes.size(), static_cast<size_t>(one.ranks));
    const auto predicted = static_cast<double>(*record.predicted->memory_bytes);
    double plan_error = 0.0, formula_error = 0.0;  // both are those of the rank that is furthest off
    for (const auto& peak : record.peak_memory_bytes) {
      REQUIRE(peak);
      const auto measured = static_cast<double>(*peak);
      const auto further = [&](double said, double error) {
        const double own = said / measured - 1.0;
        return std::abs(own) > std::abs(error) ? own : error;
      };
      plan_error = further(planned, plan_error);
      formula_error = further(predicted, formula_error);
    }
    MESSAGE(name << ": planned " << planned / 1e6 << " MB (" << 100.0 * plan_error << " %), predicted "
                 << predicted / 1e6 << " MB (" << 100.0 * formula_error << " %)");
    CHECK_LT(std::abs(plan_error), kLimit);
    CHECK_LT(std::abs(formula_error), kLimit);
    worst_plan = std::max(worst_plan, std::abs(plan_error));
    worst_formula = std::max(worst_formula, std::abs(formula_error));
  }
  MESSAGE("worst: planned " << 100.0 * worst_plan << " %, predicted " << 100.0 * worst_formula << " %");
}

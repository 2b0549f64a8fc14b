// Whole jobs of `shardrun run` whose ranks compute on the emulated GPU: the library that they load, its choice of a
// device, staged collectives of two processes, the records.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/process/train/trainer_job.h"
#include "tests/support/token_files.h"

using namespace shardrun;

namespace {

const std::string kBert = R"(name = "bert"
[resources]
gpus_per_node = 1
[program]
trainer = "bert"
[model]
layers = 2
hidden = 64
heads = 1
ffn = 101
vocab = 257
max_positions = 61
[data]
sequence_length = 57
validation_sequences = 6
[batch]
global_batch = 8
micro_batch = 2
[optimizer]
kind = "lamb"
steps = 4
learning_rate = 2e-2
[checkpoint]
every_steps = 2
)";

std::vector<double> numbers(const std::map<int64_t, std::string>& hex) {
  std::vector<double> values;
  for (const auto& [step, loss] : hex) values.push_back(std::strtod(loss.c_str(), nullptr));
  return values;
}

}  // namespace

TEST_CASE("a BERT job on GPUs: one rank, and two that share one, have the CPU's losses") {
  testing::TrainerJob job(kBert);
  const tests::Folder folder;
  const auto facts = tests::bert_facts(257);
  const auto data = [&](const char* key, int count, uint64_t chapter) {
    return std::string("data.") + key + "=[\"" +
           tests::token_file(folder, std::string(key) + ".tokens", facts,
                             tests::worded_documents(count, chapter, 180)) +
           "\"]";
  };
  const std::vector<std::string> files = {data("files", 40, 1), data("validation", 10, 2)};
  const auto run = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), files.begin(), files.end());
    return job.run(settings);
  };
  // Bf16 is what a job computes in unless it says otherwise.
  const struct {
    std::string name, ranks, precision;
    double tolerance;
  } cases[] = {{"fp32", "1", "fp32", 1e-5}, {"fp32 on two", "2", "fp32", 1e-5}, {"bf16", "1", "bf16", 2e-2}};
  for (const auto& tried : cases) {
    CAPTURE(tried.name);
    const std::string count = "resources.ranks_per_node=" + tried.ranks,
                      precision = "precision.parameters=\"" + tried.precision + "\"";
    run({count, precision});
    const auto cpu = numbers(job.losses());
    const auto record =
        run({count, precision, "resources.device=\"gpu\"", "resources.ranks_per_gpu=" + tried.ranks});
    const auto gpu = numbers(job.losses());
    REQUIRE_EQ(cpu.size(), 4);
    REQUIRE_EQ(gpu.size(), 4);
    for (size_t i = 0; i < cpu.size(); ++i) CHECK_LT(std::abs(cpu[i] - gpu[i]), tried.tolerance);
    REQUIRE(record.metrics);
    CHECK_EQ(record.metrics->versions.at("device"), "emulated GPU (CPU)");
    CHECK_EQ(record.metrics->planned.on_gpu, 1);
    CHECK_EQ(job.told_checkpoint(), 4);
  }
}

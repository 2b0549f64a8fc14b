// Runs whole jobs of `shardrun run` whose ranks compute on the emulated GPU, and tests the library that they load,
// its choice of a device, staged collectives of two processes, and the records.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
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

const std::string kLlama = R"(name = "llama"
[resources]
ranks_per_node = 2
gpus_per_node = 1
ranks_per_gpu = 2
device = "gpu"
[gpu]
tune_products = false
[program]
trainer = "llama"
[model]
layers = 2
hidden = 64
heads = 1
kv_heads = 1
ffn = 96
vocab = 256
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 64
[batch]
global_batch = 4
micro_batch = 2
[optimizer]
steps = 5
[checkpoint]
at_end = false
)";

// What a rank did, in the order of time; in microseconds of the machine's monotonic clock.
struct Traced {
  std::string name;
  double begin, end;
};
// What overlaps stands on further tracks of its lane, each 16 numbers on (trace.cpp).
std::vector<Traced> lane_of(const nlohmann::json& events, int lane) {
  std::vector<Traced> found;
  for (const auto& event : events) {
    if (event["ph"] != "X" || event["tid"].get<int>() % 16 != lane) continue;
    const double begin = event["ts"];
    found.push_back({event["name"], begin, begin + event["dur"].get<double>()});
  }
  std::sort(found.begin(), found.end(), [](const Traced& a, const Traced& b) { return a.begin < b.begin; });
  return found;
}

double now_microseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

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
    const auto record = run({count, precision, "resources.device=\"gpu\"",
                             "resources.ranks_per_gpu=" + tried.ranks, "gpu.tune_products=false"});
    const auto gpu = numbers(job.losses());
    REQUIRE_EQ(cpu.size(), 4);
    REQUIRE_EQ(gpu.size(), 4);
    for (size_t i = 0; i < cpu.size(); ++i) CHECK_LT(std::abs(cpu[i] - gpu[i]), tried.tolerance);
    REQUIRE(record.metrics);
    CHECK_EQ(record.metrics->versions.at("device"), "emulated GPU (CPU)");
    CHECK_EQ(record.metrics->planned.on_gpu, 1);
    REQUIRE(record.predicted);
    CHECK_NE(record.predicted->unknown_because.find("the job computes on GPUs"), std::string::npos);
    CHECK_EQ(job.told_checkpoint(), 4);
  }
}

TEST_CASE("a traced job on GPUs: blocks, gathers and reductions have the GPU's times on one clock") {
  constexpr double kSlack = 2.0;  // microseconds: times are written in steps of half of one
  const testing::TrainerJob job(kLlama);
  const double before = now_microseconds();
  job.run({"logging.profile_steps=2"});
  const double after = now_microseconds();

  for (const char* rank : {"0", "1"}) {
    const auto trace = base::read_file(job.newest_run() + "/profile/attempt_0_rank_" + rank + ".json");
    REQUIRE(trace);
    const auto events = base::parse_json(*trace)["traceEvents"];
    const auto compute = lane_of(events, 0), gathers = lane_of(events, 1), reductions = lane_of(events, 2);
    const auto count = [&](const std::string& begin) {
      return std::count_if(compute.begin(), compute.end(),
                           [&](const Traced& event) { return event.name.rfind(begin, 0) == 0; });
    };
    // Two steps of one micro-step over the embedding, two layers and the head.
    CHECK_EQ(count("forward "), 8);
    CHECK_EQ(count("backward "), 8);
    CHECK_EQ(count("update"), 8);
    CHECK_GE(gathers.size(), 8);
    CHECK_EQ(reductions.size(), 8);
    CHECK_EQ(count("wait: gather "), static_cast<int64_t>(gathers.size()));
    CHECK_EQ(count("wait: reduce "), 8);
    for (size_t i = 0; i < compute.size(); ++i) {
      CAPTURE(compute[i].name);
      CHECK_GE(compute[i].begin, before);
      CHECK_LE(compute[i].end, after);
      CHECK_GE(compute[i].end, compute[i].begin);
      if (i > 0) CHECK_GE(compute[i].begin + kSlack, compute[i - 1].end);
    }
    // The GPU waits for a collective before the collective's end is known, and after its start.
    for (const auto& [lane, events_of_lane] :
         {std::pair("gather", gathers), std::pair("reduce", reductions)}) {
      for (const Traced& event : events_of_lane) {
        const std::string name = std::string("wait: ") + lane + " " + event.name;
        CAPTURE(name);
        const bool found = std::any_of(compute.begin(), compute.end(), [&](const Traced& wait) {
          return wait.name == name && event.begin <= wait.begin + kSlack && event.end + kSlack >= wait.end;
        });
        CHECK(found);
      }
    }
  }
}

TEST_CASE("a job on GPUs times its matrix products once, keeps their table, says so, and repeats its bits") {
  testing::TrainerJob job(kLlama);
  const tests::Folder folder;
  REQUIRE_EQ(::setenv("HOME", folder.path().c_str(), 1), 0);
  const std::vector<std::string> settings = {"gpu.tune_products=true"};
  const auto first = job.run(settings);
  const auto losses = job.losses();
  REQUIRE(first.metrics);
  const std::string products = first.metrics->versions.at("matrix products");
  CHECK_NE(products.find(" timed"), std::string::npos);
  CHECK_NE(job.output().find("matrix products: " + products), std::string::npos);
  const std::string attention = first.metrics->versions.at("attention");
  CHECK_EQ(attention.find("shardrun's kernels: rank 0: built without cuDNN"), 0);
  CHECK_NE(job.output().find("attention: " + attention), std::string::npos);

  const auto second = job.run(settings);

  CHECK_NE(second.metrics->versions.at("matrix products")
               .find("from " + folder.path() + "/.cache/shardrun/compile/products/"),
           std::string::npos);
  CHECK_EQ(second.metrics->versions.at("matrix products").find(" timed"), std::string::npos);
  CHECK_EQ(job.losses(), losses);
}

TEST_CASE(
    "a job on GPUs that wants cuDNN's attention where there is none ends before its first step with the "
    "mend") {
  testing::TrainerJob job(kLlama);
  const auto ended = base::finish_command(job.command({"gpu.attention=cudnn"}), "", std::chrono::minutes(2));
  REQUIRE(ended);
  CHECK_EQ(WEXITSTATUS(ended->status), 2);
  CHECK_NE(job.output().find("[gpu] attention = \"cudnn\" cannot be: rank 0: built without cuDNN"),
           std::string::npos);
  CHECK(job.losses().empty());
}

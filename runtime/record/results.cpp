#include "runtime/record/results.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/base/json_fields.h"
#include "runtime/base/unix_time.h"

namespace shardrun::record {
namespace {

// An entry of the metrics.
struct Figure {
  std::string name;
  double value = 0.0;
  std::string units, timestamp;
  std::optional<plan::PeakRate> of = std::nullopt;  // what it is a share of
};

void fields(auto& visit, const Figure& figure) {
  visit("MetricName", figure.name);
  visit("MeasuredValue", figure.value);
  visit("Units", figure.units);
  visit("Timestamp", figure.timestamp);
  visit.object("AdditionalData", [&](auto& additional) {
    if (!figure.of) return;
    additional("Peak", figure.of->kind);
    additional("Peak FLOP/s of a rank", figure.of->flops);
    additional("Source", figure.of->source);
  });
}

struct Results {
  const RunRecord& record;
  const spec::JobSpec* job;
  std::vector<Figure> figures;
};

// The last names of files: what people call a dataset.
std::vector<std::string> names_of(const std::vector<std::string>& files) {
  std::vector<std::string> names;
  for (const std::string& file : files) names.push_back(std::filesystem::path(file).filename().string());
  return names;
}

void model_fields(auto& visit, const spec::JobSpec& job) {
  const spec::ModelSpec& model = job.model;
  visit("architecture", job.program.trainer);
  visit("layers", model.layers);
  visit("hidden", model.hidden);
  visit("heads", model.heads);
  visit("kv_heads", model.kv_heads);
  visit("ffn", model.ffn);
  visit("vocab", model.vocab);
  visit("sequence_length", job.data.sequence_length);
  visit("tied_embeddings", model.tied_embeddings);
  visit("init", model.init);
}

void job_fields(auto& visit, const spec::JobSpec& job) {
  visit.object("Model configuration", [&](auto& model) { model_fields(model, job); });
  visit("Dataset", names_of(job.data.files));
  visit("Validation dataset", names_of(job.data.validation));
  visit("Data type", std::string(name_of(job.precision.parameters)));
  visit("Sharding", std::string(spec::rules_of(job.sharding.strategy).name));
  visit("Tensor parallel degree", job.sharding.tensor_parallel);
  visit("Optimizer", std::string(name_of(job.optimizer.kind)));
  visit("Learning rate", job.optimizer.learning_rate);
  visit("Warmup steps", job.optimizer.warmup_steps);
  visit("Seed", static_cast<int64_t>(job.data.seed));
}

void fields(auto& visit, const Results& results) {
  const RunRecord& record = results.record;
  const bool trained = results.job != nullptr && !results.job->program.trainer.empty();
  visit.object("results", [&](auto& inner) {
    inner.object("parameters", [&](auto& parameters) {
      if (trained) {
        const std::string& preset = results.job->model.preset;
        parameters("Job", record.name);
        parameters("Model", preset.empty() ? results.job->program.trainer : preset);
        job_fields(parameters, *results.job);
      } else {
        parameters("Model", record.name);
      }
      parameters("World size", record.world_size);
      parameters("Data parallel degree", record.batch.data_parallel);
      parameters("Batch size", record.batch.micro_batch);
      if (trained) parameters("Global batch size", record.batch.global_batch);
      parameters("Gradient accumulation microsteps", record.batch.gradient_accumulation);
      if (record.metrics) parameters("Total steps", record.metrics->steps);
    });
    inner("metrics", results.figures);
  });
}

class Figures {
 public:
  Figures(const RunRecord& record, Results& results) : record_(record), results_(results) {
    if (record.attempts.empty()) return;
    for (size_t i = 0; i + 1 < record.attempts.size(); ++i) {
      const Attempt& one = record.attempts[i];
      // The end of one whose conductor was killed nobody has noted.
      const double ended = one.ended.value_or(record.attempts[i + 1].started);
      earlier_ += std::max(0.0, ended - one.started);
      between_ += std::max(0.0, record.attempts[i + 1].started - ended);
    }
    started_ = record.attempts.front().started;
    last_started_ = record.attempts.back().started;
    ended_ = record.attempts.back().ended.value_or(0.0);
  }

  void add_all() {
    if (!record_.metrics) return;
    const TrainingMetrics& metrics = *record_.metrics;
    if (metrics.final_loss) add("Final loss", *metrics.final_loss, "");
    if (ended_ > started_) add("Time to train", minutes(ended_ - started_), "minutes");
    add_phases(metrics);
    if (metrics.tokens_per_second > 0.0) add("Average throughput", metrics.tokens_per_second, "tokens/s");
    if (metrics.median_tokens_per_second)
      add("Median throughput", *metrics.median_tokens_per_second, "tokens/s");
    if (metrics.peak_tokens_per_second) add("Peak throughput", *metrics.peak_tokens_per_second, "tokens/s");
    for (const plan::Utilization& one : metrics.utilization) {
      add("Model FLOPs utilization", one.causal, "", one.peak);
      add("Model FLOPs utilization, all scores", one.full, "", one.peak);
    }
    if (record_.predicted && record_.predicted->tokens_per_second) add_predicted(*record_.predicted);
  }

 private:
  static double minutes(double seconds) { return seconds / 60.0; }

  // Where the time went: the phases of the last attempt, and what was before it.
  void add_phases(const TrainingMetrics& metrics) {
    if (!metrics.steps_seconds || ended_ <= started_) return;
    if (record_.precompile && record_.precompile->seconds)
      add("Time to compile", minutes(*record_.precompile->seconds), "minutes");
    if (record_.attempts.size() > 1) {
      add("Time in earlier attempts", minutes(earlier_), "minutes");
      add("Time between attempts", minutes(between_), "minutes");
    }
    add("Time to start", minutes(metrics.first_barrier_seconds), "minutes");
    add("Time in steps", minutes(*metrics.steps_seconds), "minutes");
    const double rest = ended_ - last_started_ - metrics.first_barrier_seconds - *metrics.steps_seconds;
    add("Time beside steps", minutes(std::max(0.0, rest)), "minutes");
  }

  void add_predicted(const Prediction& said) {
    add("Predicted throughput", *said.tokens_per_second, "tokens/s");
    if (!said.step_interval || said.step_interval->size() != 2 || !said.step_seconds) return;
    const double tokens = *said.tokens_per_second * *said.step_seconds;
    add("Predicted throughput, low end of 80 %", tokens / said.step_interval->at(1), "tokens/s");
    add("Predicted throughput, high end of 80 %", tokens / said.step_interval->at(0), "tokens/s");
  }

  void add(const char* name, double value, const char* units,
           std::optional<plan::PeakRate> of = std::nullopt) {
    results_.figures.push_back(
        {name, value, units, base::utc_text(ended_, "%Y-%m-%dT%H:%M:%SZ"), std::move(of)});
  }

  const RunRecord& record_;
  Results& results_;
  double started_ = 0.0, last_started_ = 0.0, ended_ = 0.0;
  double earlier_ = 0.0, between_ = 0.0;  // in the attempts before the last, and between two of them
};

}  // namespace

std::string to_results_json(const RunRecord& record, const spec::JobSpec* job) {
  Results results{record, job, {}};
  Figures(record, results).add_all();
  return base::json_of(results);
}

}  // namespace shardrun::record

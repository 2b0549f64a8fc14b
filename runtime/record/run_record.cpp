#include "runtime/record/run_record.h"

#include <ctime>

#include <fmt/format.h>

#include "runtime/base/json_fields.h"

namespace shardrun::record {
namespace {

constexpr base::Word<RunStatus> kStatuses[] = {{"running", RunStatus::kRunning},
                                               {"completed", RunStatus::kCompleted},
                                               {"failed", RunStatus::kFailed},
                                               {"refused", RunStatus::kRefused},
                                               {"preempted", RunStatus::kPreempted}};

std::string utc_time(double unix_seconds) {
  constexpr double kYear10000 = 253402300800.0;
  const auto seconds =
      static_cast<std::time_t>(unix_seconds >= 0.0 && unix_seconds < kYear10000 ? unix_seconds : 0.0);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Result<void> check_world_size(int ranks) {
  if (ranks >= 0 && ranks <= LaunchPlan::kLargestWorld) return {};
  return base::Error(base::Code::kCorrupt, fmt::format("record.json: {} is no number of ranks", ranks));
}

// summary.json: metrics that stand alone.
struct Summary {
  TrainingMetrics metrics;
};

void fields(auto& visit, base::Is<Summary> auto& summary) {
  visit.version(1);
  fields(visit, summary.metrics);
  visit.later("planned_memory_bytes", summary.metrics.planned);
}

// An entry of results.json.
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

// results.json.
struct Results {
  const RunRecord& record;
  std::vector<Figure> figures;
};

void fields(auto& visit, const Results& results) {
  const RunRecord& record = results.record;
  visit.object("results", [&](auto& inner) {
    inner.object("parameters", [&](auto& parameters) {
      parameters("Model", record.name);
      parameters("World size", record.world_size);
      parameters("Data parallel degree", record.batch.data_parallel);
      parameters("Batch size", record.batch.micro_batch);
      parameters("Gradient accumulation microsteps", record.batch.gradient_accumulation);
      if (record.metrics) parameters("Total steps", record.metrics->steps);
    });
    inner("metrics", results.figures);
  });
}

}  // namespace

void fields(auto& visit, base::Is<TrainingMetrics> auto& metrics) {
  visit("steps", metrics.steps);
  visit("first_loss", metrics.first_loss);
  visit("final_loss", metrics.final_loss);
  visit("validation_loss", metrics.validation_loss);
  visit("unigram_entropy", metrics.unigram_entropy);
  visit("tokens_per_second", metrics.tokens_per_second);
  visit.object("step_seconds", [&](auto& quantiles) {
    quantiles("p50", metrics.step_seconds_p50);
    quantiles("p99", metrics.step_seconds_p99);
  });
  visit.later("flops_per_token", metrics.flops_per_token.causal);
  visit.later("full_flops_per_token", metrics.flops_per_token.full);
  visit.derived("model_flops_utilization", metrics.utilization.empty()
                                               ? std::optional<double>()
                                               : std::optional(metrics.utilization.front().causal));
  visit.later("utilization", metrics.utilization);
  visit("checkpoint", metrics.checkpoint);
  visit("first_barrier_seconds", metrics.first_barrier_seconds);
  visit.later("versions", metrics.versions);
}

void fields(auto& visit, base::Is<Prediction> auto& prediction) {
  visit("step_seconds", prediction.step_seconds);
  visit("tokens_per_second", prediction.tokens_per_second);
  visit("memory_bytes", prediction.memory_bytes);
  visit("basis", prediction.basis);
  visit("unknown_because", prediction.unknown_because);
  visit.later("peaks", prediction.peaks);
  const plan::PeakRate first = prediction.peaks.empty() ? plan::PeakRate() : prediction.peaks.front();
  visit.derived("peak_flops", first.flops);
  visit.derived("peak_source", first.source);
}

void fields(auto& visit, base::Is<ExcludedNode> auto& node) {
  visit("node", node.node);
  visit("kind", node.kind);
  visit("reason", node.reason);
}

void fields(auto& visit, base::Is<PreflightNote> auto& note) {
  visit("seconds", note.seconds);
  visit("bytes_per_second", note.bytes_per_second);
  visit("usual_bytes_per_second", note.usual_bytes_per_second);
  visit.later("excluded", note.excluded);
  visit.later("warnings", note.warnings);
}

void fields(auto& visit, base::Is<FirstCause> auto& cause) {
  visit("kind", cause.kind);
  visit("node", cause.node);
  visit("global_rank", cause.global_rank);
  visit("signal", cause.signal);
  visit("exit_code", cause.exit_code);
}

void fields(auto& visit, base::Is<StragglerNote> auto& note) {
  visit("global_rank", note.global_rank);
  visit("node", note.node);
  visit("busy_seconds", note.busy_seconds);
  visit("median_seconds", note.median_seconds);
}

void fields(auto& visit, base::Is<Attempt> auto& attempt) {
  visit.later("attempt", attempt.number);
  visit("started", attempt.started);
  visit("ended", attempt.ended);
  visit("first_cause", attempt.first_cause);
  visit.later("verdict", attempt.verdict);
  visit.later("nodes", attempt.nodes);
  visit.later("world_size", attempt.world_size);
  visit.later("batch", attempt.batch);
  visit.later("also_lost", attempt.also_lost);
  visit("detection_seconds", attempt.detection_seconds);
  visit("checkpoint_step", attempt.checkpoint_step);
  visit.later("stragglers", attempt.stragglers);
  visit("preflight", attempt.preflight);
}

void fields(auto& visit, base::Is<PrecompileNote> auto& note) {
  visit("run", note.run);
  visit("seconds", note.seconds);
}

void fields(auto& visit, base::Is<RunRecord> auto& record) {
  visit.version(RunRecord::kFormatVersion);
  visit("name", record.name);
  visit("id", record.id);
  visit("scheduler", record.scheduler);
  visit.choice("status", record.status, kStatuses);
  visit.where_known("state", record.state);
  visit("verdict", record.verdict);
  visit("exit_code", record.exit_code);
  visit("world_size", record.world_size);
  visit.later("nodes", record.nodes);
  visit.later("batch", record.batch);
  visit.later("attempts", record.attempts);
  visit.object("metrics", [&](auto& metrics) {
    metrics.part("steps", record.metrics);
    metrics.later("peak_memory_bytes", record.peak_memory_bytes);
  });
  visit.object("planned", [&](auto& planned) {
    if (record.metrics) planned.later("memory_bytes", record.metrics->planned);
  });
  visit("predicted", record.predicted);
  visit("precompile", record.precompile);
  visit.later("versions", record.versions);
}

void fields(auto& visit, base::Is<RankExit> auto& exit) {
  visit.version(1);
  visit("global_rank", exit.global_rank);
  visit("node", exit.node);
  visit("ended", exit.ended);
  visit("exit_code", exit.exit_code);
  visit("signal", exit.signal);
  visit("peer_lost", exit.peer_lost);
  visit("stopped_on_request", exit.stopped_on_request);
  visit("peak_memory_bytes", exit.peak_memory_bytes);
  visit("out_of_memory", exit.out_of_memory);
  visit("last_words", exit.last_words);
}

const char* status_name(RunStatus status) {
  for (const auto& word : kStatuses) {
    if (word.value == status) return word.name;
  }
  return "unknown";
}

std::string to_json(const RunRecord& record) {
  return base::json_of(record);
}

std::string to_json(const std::vector<RunRecord>& records) {
  return base::json_of(records);
}

Result<RunRecord> parse_run_record(std::string_view text) {
  auto record = base::parse_fields<RunRecord>(text, "record.json");
  if (!record) return record;
  RETURN_IF_ERROR(check_world_size(record->world_size));
  for (const Attempt& attempt : record->attempts) RETURN_IF_ERROR(check_world_size(attempt.world_size));
  return record;
}

std::string to_json(const RankExit& exit) {
  return base::json_of(exit);
}

Result<RankExit> parse_rank_exit(std::string_view text) {
  return base::parse_fields<RankExit>(text, "the rank's exit file");
}

std::string to_json(const TrainingMetrics& metrics) {
  return base::json_of(Summary{metrics});
}

Result<TrainingMetrics> parse_training_metrics(std::string_view text) {
  ASSIGN_OR_RETURN(auto summary, base::parse_fields<Summary>(text, "summary.json"));
  return std::move(summary.metrics);
}

std::string to_results_json(const RunRecord& record) {
  Results results{record, {}};
  const double ended = record.attempts.empty() ? 0.0 : record.attempts.back().ended.value_or(0.0);
  const double started = record.attempts.empty() ? 0.0 : record.attempts.front().started;
  const auto add = [&](const char* name, double value, const char* units,
                       std::optional<plan::PeakRate> of = std::nullopt) {
    results.figures.push_back({name, value, units, utc_time(ended), std::move(of)});
  };
  if (record.metrics) {
    if (record.metrics->final_loss) add("Final loss", *record.metrics->final_loss, "");
    if (ended > started) add("Time to train", (ended - started) / 60.0, "minutes");
    if (record.metrics->tokens_per_second > 0.0)
      add("Average throughput", record.metrics->tokens_per_second, "tokens/s");
    for (const plan::Utilization& one : record.metrics->utilization) {
      add("Model FLOPs utilization", one.causal, "", one.peak);
      add("Model FLOPs utilization, all scores", one.full, "", one.peak);
    }
    if (record.predicted && record.predicted->tokens_per_second)
      add("Predicted throughput", *record.predicted->tokens_per_second, "tokens/s");
  }
  return base::json_of(results);
}

}  // namespace shardrun::record

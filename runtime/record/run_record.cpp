#include "runtime/record/run_record.h"

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"
#include "runtime/base/text.h"

namespace shardrun::record {
namespace {

constexpr base::Word<RunStatus> kStatuses[] = {{"running", RunStatus::kRunning},
                                               {"completed", RunStatus::kCompleted},
                                               {"failed", RunStatus::kFailed},
                                               {"refused", RunStatus::kRefused},
                                               {"preempted", RunStatus::kPreempted}};

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

}  // namespace

void fields(auto& visit, base::Is<BestEvaluation> auto& best) {
  visit("step", best.step);
  visit("loss", best.loss);
  visit("checkpoint", best.checkpoint);
}

void fields(auto& visit, base::Is<TrainingMetrics> auto& metrics) {
  visit("steps", metrics.steps);
  visit("first_loss", metrics.first_loss);
  visit("final_loss", metrics.final_loss);
  visit("validation_loss", metrics.validation_loss);
  visit("unigram_entropy", metrics.unigram_entropy);
  visit("tokens_per_second", metrics.tokens_per_second);
  visit.where_known("median_tokens_per_second", metrics.median_tokens_per_second);
  visit.where_known("peak_tokens_per_second", metrics.peak_tokens_per_second);
  visit.where_known("steps_seconds", metrics.steps_seconds);
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
  visit.where_known("evaluation_losses", metrics.evaluation_losses);
  visit.where_known("best", metrics.best);
  visit.where_known("ended_early", metrics.ended_early);
}

void fields(auto& visit, base::Is<Prediction> auto& prediction) {
  visit("step_seconds", prediction.step_seconds);
  visit("tokens_per_second", prediction.tokens_per_second);
  visit.where_known("step_interval", prediction.step_interval);
  visit.where_known("learned_from", prediction.learned_from);
  visit.where_known("basis_seconds", prediction.basis_seconds);
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
  visit.where_known("strangers", attempt.strangers);
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
  visit.where_known("output_losses", exit.output_losses);
  visit.where_known("steps_seconds", exit.steps_seconds);
  visit.where_known("waiting_seconds", exit.waiting_seconds);
}

const char* status_name(RunStatus status) {
  for (const auto& word : kStatuses) {
    if (word.value == status) return word.name;
  }
  return "unknown";
}

std::string step_text(const Prediction& prediction) {
  std::string text = fmt::format("step {:.4f} s", prediction.step_seconds.value_or(0.0));
  if (prediction.step_interval && prediction.step_interval->size() == 2)
    text +=
        fmt::format(" ({:.4f} to {:.4f})", prediction.step_interval->at(0), prediction.step_interval->at(1));
  const double rate = prediction.tokens_per_second.value_or(0.0);
  text += fmt::format(", {:.0f}", rate);
  if (prediction.step_interval && prediction.step_interval->size() == 2) {
    const double work = rate * prediction.step_seconds.value_or(0.0);
    text += fmt::format(" ({:.0f} to {:.0f})", work / prediction.step_interval->at(1),
                        work / prediction.step_interval->at(0));
  }
  return text + " tokens/s";
}

std::string basis_text(const Prediction& prediction) {
  const auto count = static_cast<int64_t>(prediction.learned_from ? prediction.learned_from->size() : 0);
  if (count == 0) return prediction.basis;
  return fmt::format("{} and {} of this job", prediction.basis, base::counted(count, "earlier run"));
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

Result<RunRecord> read_record(const RunDir& run) {
  ASSIGN_OR_RETURN(const auto text, base::read_file(run.record_json()));
  auto record = parse_run_record(text);
  if (!record) return std::move(record).error().context(run.record_json());
  return record;
}

std::string to_line(const RankExit& exit) {
  return base::json_of(exit, base::kJsonLine);
}

Result<RankExit> parse_rank_exit(std::string_view text) {
  return base::parse_fields<RankExit>(text, "how a rank ended");
}

std::string to_json(const TrainingMetrics& metrics) {
  return base::json_of(Summary{metrics});
}

Result<TrainingMetrics> parse_training_metrics(std::string_view text) {
  ASSIGN_OR_RETURN(auto summary, base::parse_fields<Summary>(text, "summary.json"));
  return std::move(summary.metrics);
}

}  // namespace shardrun::record

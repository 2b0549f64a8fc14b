#include "launcher/verbs/run_sample.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "launcher/watch/look.h"
#include "runtime/plan/rank_memory.h"
#include "runtime/plan/utilization.h"
#include "runtime/record/run_lines.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {
namespace {

// How far back an event is looked for: some ten thousand steps.
constexpr int64_t kFirstTailBytes = 64 << 10, kMostTailBytes = 16 << 20;

void keep_most(std::optional<double>& most, int64_t value) {
  if (value > 0) most = std::max(most.value_or(0.0), static_cast<double>(value));
}

// What the ranks of a run hold now; nothing where its conductor does not answer.
std::optional<double> resident_bytes(const record::RunDir& run, int attempt) {
  std::optional<double> most;
  if (const auto sights = look_at_ranks(run, attempt)) {
    for (const contract::RankSight& sight : *sights)
      if (!sight.left) keep_most(most, sight.beat.resident_bytes);
  }
  return most;
}

// The share of the first peak that is known, as `results` counts it, in the last step.
std::optional<double> utilization_of(const record::RunDir& run, const RunState& state,
                                     double tokens_per_second) {
  if (!(tokens_per_second > 0.0) || !state.record->predicted) return std::nullopt;
  const auto spec = spec::load_job_spec(run.job_toml(), state.plan.overrides);
  if (!spec || !spec->program.command.empty()) return std::nullopt;
  const auto flops =
      plan::flops_per_token(plan::rank_options(*spec, state.record->batch).model, spec->data.sequence_length);
  const auto shares =
      plan::utilizations(tokens_per_second, flops, state.record->predicted->peaks, state.record->world_size);
  return shares.empty() ? std::nullopt : std::optional(shares.front().causal);
}

// Adds the newest validation and the newest checkpoint. Most runs have both in the last lines; the others are read further and
// further back.
void add_newest_events(const record::RunDir& run, RunSample& sample) {
  std::error_code ignored;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(run.metrics_jsonl(), ignored));
  if (ignored) return;
  std::optional<record::MetricsLine> validation, checkpoint;
  for (int64_t bytes = kFirstTailBytes; bytes <= kMostTailBytes; bytes *= 4) {
    const std::string lines = record::last_lines(run.metrics_jsonl(), bytes);
    if (!validation) validation = record::last_event(lines, "validation");
    if (!checkpoint) checkpoint = record::last_event(lines, "checkpoint");
    if ((validation && checkpoint) || bytes >= size) break;
  }
  if (validation) sample.validation_loss = validation->loss;
  if (!checkpoint || !checkpoint->step) return;
  sample.checkpoint_step = static_cast<double>(*checkpoint->step);
  sample.checkpoint_time = checkpoint->time;
}

}  // namespace

RunSample sample_of(const record::RunDir& run, const RunState& state) {
  RunSample sample{
      .name = state.plan.name, .id = state.plan.id, .scheduler = state.plan.scheduler, .state = state.status};
  sample.last_step = read_last_step(run);
  add_newest_events(run, sample);
  if (!state.record) return sample;
  const record::RunRecord& record = *state.record;
  sample.ranks = record.world_size;
  sample.attempts = static_cast<int>(record.attempts.size());
  if (sample.last_step) sample.utilization = utilization_of(run, state, sample.last_step->tokens_per_second);
  for (const auto& bytes : record.peak_memory_bytes) keep_most(sample.peak_memory_bytes, bytes.value_or(0));
  if (record.predicted) keep_most(sample.planned_memory_bytes, record.predicted->memory_bytes.value_or(0));
  if (!record.attempts.empty() && !is_over(state))
    sample.resident_memory_bytes = resident_bytes(run, record.attempts.back().number);
  for (const record::Attempt& attempt : record.attempts) {
    sample.stragglers += static_cast<int>(attempt.stragglers.size());
    if (attempt.first_cause) ++sample.faults;
    if (attempt.detection_seconds) sample.detection_seconds = attempt.detection_seconds;
  }
  return sample;
}

}  // namespace shardrun::launcher

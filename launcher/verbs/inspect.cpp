// The verbs that look at runs: status, logs, results; and cancel, which ends one.
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "launcher/plan/batch.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/verbs/run_state.h"
#include "launcher/verbs/verbs.h"
#include "launcher/view/follower.h"
#include "launcher/view/progress.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

TrainingCurve read_curve(const record::RunDir& run) {
  TrainingCurve curve;
  if (auto text = base::read_file(run.metrics_jsonl())) add_metrics(*text, curve);
  return curve;
}

std::string row(const record::RunDir& run, const RunState& state) {
  const TrainingCurve curve = read_curve(run);
  const std::string step = curve.steps.empty() ? "-" : std::to_string(curve.steps.back().step);
  const std::string loss = curve.steps.empty() ? "-" : fmt::format("{:.4f}", curve.steps.back().loss);
  // "3/4": with fewer nodes than it asked for.
  std::string nodes = std::to_string(state.plan.nodes);
  const int ranks = state.record ? state.record->world_size : 0;
  if (ranks > 0 && ranks < state.plan.world_size())
    nodes = fmt::format("{}/{}", ranks / state.plan.ranks_per_node, nodes);
  return fmt::format("{:<20} {:<30} {:<9} {:>4} × {:<4} {:>8} {:>9}  {}\n", state.plan.name, state.plan.id,
                     state.plan.scheduler, nodes, state.plan.ranks_per_node, step, loss, state.status);
}

// What was said before the run, beside what came.
void print_predicted(const record::RunRecord& record) {
  if (!record.predicted || !record.metrics) return;
  const record::Prediction& said = *record.predicted;
  const record::TrainingMetrics& metrics = *record.metrics;
  if (said.step_seconds && metrics.step_seconds_p50 > 0.0) {
    fmt::print("predicted   step {:.4f} s, {:.0f} tokens/s: off by {:+.1f} %; from {}\n", *said.step_seconds,
               said.tokens_per_second.value_or(0.0),
               100.0 * (*said.step_seconds / metrics.step_seconds_p50 - 1.0), said.basis);
  } else if (!said.unknown_because.empty()) {
    fmt::print("predicted   nothing: {}\n", said.unknown_because);
  }
  int64_t highest = 0;
  for (const auto& bytes : record.peak_memory_bytes) highest = std::max(highest, bytes.value_or(0));
  if (said.memory_bytes && highest > 0)
    fmt::print("memory      {} at most on a rank, predicted {}: off by {:+.1f} %\n", bytes_text(highest),
               bytes_text(*said.memory_bytes),
               100.0 * (static_cast<double>(*said.memory_bytes) / static_cast<double>(highest) - 1.0));
}

}  // namespace

int status(const std::string& run_name, const CommonOptions& common) {
  if (!run_name.empty()) {
    auto run = find_run(run_name, common);
    if (!run) return fail(run.error(), common);
    if (common.json) return results(run_name, common);
    auto state = look_at(*run);
    if (!state) return fail(state.error(), common);
    fmt::print("{:<20} {:<30} {:<9} {:<11} {:>8} {:>9}  {}\n", "name", "id", "scheduler", "nodes×ranks",
               "step", "loss", "status");
    fmt::print("{}", row(*run, *state));
    if (state->record) fmt::print("{}\n", state->record->verdict);
    return contract::kExitDone;
  }
  const std::vector<record::RunDir> runs = all_runs(common);
  if (runs.empty() && !common.json) {
    fmt::print("no runs in {}; start one with `shardrun run job.toml`\n",
               absolute_path(common.runs_directory));
    return contract::kExitDone;
  }
  std::string out = fmt::format("{:<20} {:<30} {:<9} {:<11} {:>8} {:>9}  {}\n", "name", "id", "scheduler",
                                "nodes×ranks", "step", "loss", "status");
  std::vector<record::RunRecord> records;
  for (const record::RunDir& run : runs) {
    auto state = look_at(run);
    if (!state) continue;
    out += row(run, *state);
    if (state->record) records.push_back(std::move(*state->record));
  }
  fmt::print("{}", common.json ? to_json(records) : out);
  return contract::kExitDone;
}

int logs(const LogsOptions& options, const CommonOptions& common) {
  auto run = find_run(options.run, common);
  if (!run) return fail(run.error(), common);
  FollowOptions follow;
  follow.terminal = ::isatty(STDOUT_FILENO) == 1;
  follow.columns = terminal_columns(STDOUT_FILENO);
  follow.only_rank = options.rank;
  follow.only_node = options.node;
  bool broken = false;
  Follower follower(*run, follow, [&](const std::string& text) {
    broken = broken || !base::write_all(STDOUT_FILENO, text, "standard output");
  });
  RunWatcher watcher(*run);
  while (options.follow && !broken) {
    const auto state = watcher.look();  // asked first: what came before the end is still shown
    const bool over = !state || is_over(*state);
    follower.poll();
    if (over) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  follower.finish();
  return contract::kExitDone;
}

int cancel(const std::string& run_name, const CommonOptions& common) {
  auto run = find_run(run_name, common);
  if (!run) return fail(run.error(), common);
  auto plan = read_plan(*run);
  if (!plan) return fail(plan.error(), common);
  if (plan->scheduler == "slurm") {
    if (auto cancelled = cancel_job(plan->id); !cancelled) return fail(cancelled.error(), common);
    fmt::print("asked Slurm to cancel job {}\n", plan->id);
    return contract::kExitDone;
  }
  auto lock = base::read_file(run->root + "/conductor.lock", 4096);
  if (!lock) {
    return fail(base::Error(base::Code::kRefused, run->root + ": nobody conducts this run; it is over"),
                common);
  }
  std::istringstream fields(*lock);
  std::string host;
  pid_t pid = 0;
  fields >> host >> pid;
  char here[256] = {};
  ::gethostname(here, sizeof(here) - 1);
  if (host != here) {
    return fail(
        base::Error(base::Code::kRefused, fmt::format("the run is conducted on {}; cancel it there", host)),
        common);
  }
  if (pid <= 1 || ::kill(pid, SIGTERM) != 0) {
    return fail(
        base::errno_error(base::Code::kIo, fmt::format("process {} cannot be asked to stop", pid), errno),
        common);
  }
  fmt::print("asked process {} to stop the run\n", pid);
  return contract::kExitDone;
}

int results(const std::string& run_name, const CommonOptions& common) {
  auto run = find_run(run_name, common);
  if (!run) return fail(run.error(), common);
  auto record = find_record(*run);
  if (!record) return fail(record.error(), common);
  if (common.json) {
    fmt::print("{}", to_json(*record));
    return contract::kExitDone;
  }
  fmt::print("{} {}: {}, exit code {}\n{}\n", record->name, record->id, record::status_name(record->status),
             record->exit_code, record->verdict);
  fmt::print("ranks       {} on {} nodes, attempts {}\n", record->world_size, record->nodes.size(),
             record->attempts.size());
  fmt::print("batch       {}\n", describe_batch(record->batch));
  if (record->precompile && record->precompile->seconds)
    fmt::print("precompile  {:.1f} s in {}\n", *record->precompile->seconds, record->precompile->run);
  if (!record->metrics) return contract::kExitDone;
  const record::TrainingMetrics& metrics = *record->metrics;
  std::vector<double> losses;
  for (const StepPoint& point : read_curve(*run).steps) losses.push_back(point.loss);
  if (metrics.first_loss && metrics.final_loss) {
    fmt::print("loss        {:.4f} → {:.4f}  {}\n", *metrics.first_loss, *metrics.final_loss,
               sparkline(losses, 40));
  }
  if (metrics.validation_loss) {
    fmt::print("validation  {:.4f} nats{}\n", *metrics.validation_loss,
               metrics.unigram_entropy
                   ? fmt::format(" (unigram entropy of its text {:.4f})", *metrics.unigram_entropy)
                   : "");
  }
  fmt::print("speed       {:.0f} tokens/s, step {:.4f} s (p50) {:.4f} s (p99)\n", metrics.tokens_per_second,
             metrics.step_seconds_p50, metrics.step_seconds_p99);
  for (const plan::Utilization& utilization : metrics.utilization)
    fmt::print("utilization {}\n", to_string(utilization));
  print_predicted(*record);
  fmt::print("checkpoint  {}\n", metrics.checkpoint);
  return contract::kExitDone;
}

}  // namespace shardrun::launcher

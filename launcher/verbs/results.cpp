#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/plan/batch.h"
#include "launcher/runs/run_state.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "launcher/view/progress.h"
#include "runtime/base/unix_time.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

// What was said before the run, beside what came.
void print_predicted(const record::RunRecord& record) {
  if (!record.predicted || !record.metrics) return;
  const record::Prediction& said = *record.predicted;
  const record::TrainingMetrics& metrics = *record.metrics;
  if (said.step_seconds && metrics.step_seconds_p50 > 0.0) {
    print_text("predicted   {}: off by {:+.1f} %; from {}\n", record::step_text(said),
               100.0 * (*said.step_seconds / metrics.step_seconds_p50 - 1.0),
               base::visible(record::basis_text(said)));
  } else if (!said.unknown_because.empty()) {
    print_text("predicted   nothing: {}\n", base::visible(said.unknown_because));
  }
  int64_t highest = 0;
  for (const auto& bytes : record.peak_memory_bytes) highest = std::max(highest, bytes.value_or(0));
  if (said.memory_bytes && highest > 0)
    print_text("memory      {} at most on a rank, predicted {}: off by {:+.1f} %\n", bytes_text(highest),
               bytes_text(*said.memory_bytes),
               100.0 * (static_cast<double>(*said.memory_bytes) / static_cast<double>(highest) - 1.0));
}

// Who ran, for how long, and the batch, where the job counts sequences.
std::string summary_of(const record::RunDir& run, const record::RunRecord& record, bool runs) {
  std::string text = fmt::format("ranks       {} on {}, {}\n", record.world_size,
                                 counted(static_cast<int64_t>(record.nodes.size()), "node"),
                                 counted(static_cast<int64_t>(record.attempts.size()), "attempt"));
  if (!record.attempts.empty()) {
    const double begin = record.attempts.front().started;
    const auto end = record.attempts.back().ended;
    if (end || runs)
      text += fmt::format("duration    {}{}\n", clock_time(end.value_or(base::unix_now()) - begin),
                          end ? "" : " so far");
  }
  const auto spec = read_job(run);
  if (!spec || spec->has_batch()) text += fmt::format("batch       {}\n", describe_batch(record.batch));
  return text;
}

base::Result<int> results(const std::string& run_name, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto run, find_run(run_name, common));
  ASSIGN_OR_RETURN(auto state, look_at(run));
  if (!state.record) return not_started(state);
  say_unanswered(state);
  const record::RunRecord& record = *state.record;
  if (common.json) {
    print_text("{}", to_json(record));
    return contract::kExitDone;
  }
  print_text("{} {}: {}\n{}\n", base::visible(record.name), base::visible(record.id),
             base::visible(status_and_code(state)), base::visible(record.verdict));
  print_text(summary_of(run, record, !is_over(state)));
  if (record.precompile && record.precompile->seconds)
    print_text("precompile  {:.1f} s in {}\n", *record.precompile->seconds,
               base::visible(record.precompile->run));
  if (!record.metrics) return contract::kExitDone;
  const record::TrainingMetrics& metrics = *record.metrics;
  if (metrics.first_loss && metrics.final_loss) {
    print_text(fmt::format("loss        {:.4f} → {:.4f}  {}\n", *metrics.first_loss, *metrics.final_loss,
                           sparkline(read_outline(run), 40)));
  }
  if (metrics.validation_loss) {
    print_text("validation  {:.4f} nats{}\n", *metrics.validation_loss,
               metrics.unigram_entropy
                   ? fmt::format(" (unigram entropy of its text {:.4f})", *metrics.unigram_entropy)
                   : "");
  }
  if (metrics.best)
    print_text("best        {:.4f} nats at step {}{}\n", metrics.best->loss, metrics.best->step,
               metrics.best->checkpoint.empty() ? "" : ": " + base::visible(metrics.best->checkpoint));
  for (const auto& [set, loss] : metrics.evaluation_losses.value_or(std::map<std::string, double>()))
    print_text("evaluation  {:.4f} nats, perplexity {:.2f}: {}\n", loss, std::exp(loss), base::visible(set));
  if (metrics.steps > 0) print_text("steps       {}\n", metrics.steps);
  std::vector<std::string> speed;
  if (metrics.tokens_per_second > 0)
    speed.push_back(fmt::format("{:.0f} tokens/s", metrics.tokens_per_second));
  if (metrics.step_seconds_p50 > 0)
    speed.push_back(fmt::format("step {:.4f} s (p50) {:.4f} s (p99)", metrics.step_seconds_p50,
                                metrics.step_seconds_p99));
  if (!speed.empty()) print_text("speed       {}\n", fmt::join(speed, ", "));
  for (const plan::Utilization& utilization : metrics.utilization)
    print_text("utilization {}\n", base::visible(to_string(utilization)));
  print_predicted(record);
  if (!metrics.checkpoint.empty()) print_text("checkpoint  {}\n", base::visible(metrics.checkpoint));
  return contract::kExitDone;
}

}  // namespace

void add_results(CLI::App& app, CommandLine& line) {
  struct ResultsOptions {
    std::string run;
    bool fetch = false;
  };
  auto& options = line.keep<ResultsOptions>();
  CLI::App* verb = app.add_subcommand("results", "Show what came out of a run");
  add_run_name(*verb, options.run, line, true);
  add_common(*verb, line, true);
  verb->footer("Example:\n  shardrun results tiny-llama --json");
  add_host(*verb, line);
  verb->add_flag("--fetch", options.fetch,
                 "With --host: bring the run directory here, without checkpoints, code and profile");
  verb->callback([&] {
    if (options.fetch && line.remote.host.empty()) {
      line.end(usage_error("--fetch brings a run from the machine that --host names, and none is named"));
    } else if (options.fetch) {
      line.end(fetch_run(options.run, line));
    } else {
      line.end(line.remote.host.empty() ? results(options.run, line.common) : run_elsewhere(line));
    }
  });
}

}  // namespace shardrun::launcher

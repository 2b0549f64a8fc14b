#include "launcher/foresight/forecast.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "launcher/foresight/measured_runs.h"
#include "launcher/foresight/question.h"
#include "launcher/foresight/written.h"
#include "launcher/plan/batch.h"
#include "launcher/plan/scale.h"
#include "runtime/plan/mesh.h"

namespace shardrun::launcher {

using base::Code;
using base::Error;
using base::Result;

namespace {

constexpr int kMostPlans = 64;  // layouts whose exact memory is asked for

// The type that the job names, directly or through a queue of its cluster; empty: none that the catalogue has.
Result<std::string> machine_of_job(const spec::JobSpec& spec) {
  if (!spec.cluster.instance.empty() || spec.cluster.config.empty()) return spec.cluster.instance;
  ASSIGN_OR_RETURN(const auto machine, machine_of(spec));
  return machine ? machine->type : std::string();
}

Result<std::vector<std::string>> machine_names(const PlanOptions& options, const spec::JobSpec& spec) {
  std::vector<std::string> names;
  for (size_t at = 0; at < options.machines.size();) {
    const size_t comma = std::min(options.machines.find(',', at), options.machines.size());
    names.push_back(options.machines.substr(at, comma - at));
    at = comma + 1;
  }
  if (!names.empty()) return names;
  ASSIGN_OR_RETURN(auto own, machine_of_job(spec));
  if (!own.empty()) names.push_back(std::move(own));
  return names;
}

// Chooses, and with the built-in trainer plans what it would hold, until the choice fits.
Answer answer_of(const spec::JobSpec& spec, bool own, const Question& question, ForecastLine& line) {
  Answer answer = search(question);
  if (!own) return answer;
  for (int asked = 0; answer.best; ++asked) {
    if (asked == kMostPlans) {
      answer.best.reset();
      break;
    }
    if (is_refused(spec, question, answer.best->layout)) {
      const double bytes = answer.best->bytes;
      answer = without_best(std::move(answer), bytes);
      continue;
    }
    const OwnMemory memory = own_memory(spec, question, answer.best->layout);
    line.planned_bytes = memory.bytes;
    if (memory.fits) break;
    answer = without_best(std::move(answer), static_cast<double>(memory.bytes));
  }
  if (!answer.best) line.planned_bytes.reset();
  return answer;
}

// What a save holds up a step: the copy of a rank's state to the host, from which it is written beside training.
double held_up_seconds(const Question& question, const Layout& layout) {
  const double shards =
      static_cast<double>(layout.shard_degree) * layout.tensor_parallel * layout.given.pipeline;
  return question.traits.optimizer_bytes * question.model.parameters() / shards / question.machine.host_rate;
}

// "tensor degree 2 takes +3.1 % (-0.8 to +7.2)"
std::string reason_text(const Reason& reason, const Question& question, const Layout& best,
                        const Belief& belief) {
  if (!reason.layout)
    return fmt::format("{} does not fit: {:.1f} GB of {:.1f}", reason.choice, reason.bytes / 1e9,
                       question.machine.memory_bytes * kUsableMemory / 1e9);
  const double deviation = belief.ratio_deviation(run_of(question, *reason.layout), run_of(question, best));
  const Interval around = Estimate{1.0, deviation}.interval();
  const auto percent = [](double ratio) { return 100.0 * (ratio - 1.0); };
  return fmt::format("{} takes {:+.1f} % ({:+.1f} to {:+.1f})", reason.choice, percent(reason.ratio),
                     percent(reason.ratio * around.low), percent(reason.ratio * around.high));
}

void fill(ForecastLine& line, const PlanOptions& options, const Question& question, const Belief& belief,
          const Answer& answer) {
  line.combinations = static_cast<int64_t>(answer.candidates.size());
  if (!answer.best) {
    line.reasons = {answer.candidates.empty()
                        ? answer.why_none
                        : fmt::format("none of {} layouts fits {:.1f} GB", answer.candidates.size(),
                                      question.machine.memory_bytes * kUsableMemory / 1e9)};
    return;
  }
  line.best = answer.best;
  for (const Reason& reason : answer.reasons)
    line.reasons.push_back(reason_text(reason, question, answer.best->layout, belief));
  const Sure sure = foresee(question, answer.best->layout, belief);
  line.step = sure.step;
  line.estimate = sure.estimate;
  line.beyond = beyond_published(run_of(question, answer.best->layout));
  line.saving = best_saving(line.nodes, line.step.seconds, held_up_seconds(question, answer.best->layout));
  if (options.tokens <= 0.0) return;
  line.hours = options.tokens / line.step.tokens_per_second() / 3600.0 / (1.0 - line.saving.lost_share);
  if (question.machine.dollars_per_hour > 0.0)
    line.dollars = *line.hours * static_cast<double>(line.nodes) * question.machine.dollars_per_hour;
}

Result<std::vector<int64_t>> node_counts(const PlanOptions& options, const spec::JobSpec& spec) {
  if (options.nodes.empty()) return std::vector<int64_t>{spec.resources.nodes};
  return parse_node_counts(options.nodes);
}

// Sequences of a step of the job as it is, on the question's nodes.
Result<int64_t> own_batch(const spec::JobSpec& spec, const Question& question) {
  if (spec.batch.global_batch) return *spec.batch.global_batch;
  ASSIGN_OR_RETURN(const auto mesh, plan::solve_mesh(spec, question.nodes * question.machine.per_node,
                                                     question.machine.per_node));
  ASSIGN_OR_RETURN(const auto batch, solve_batch(spec, mesh.readers()));
  return batch.global_batch;
}

// Sequences of a step on the question's nodes, when it scales from `smallest` nodes: as `shardrun scale` has them.
Result<int64_t> batch_on(const spec::JobSpec& spec, const Question& question, bool weak, int64_t smallest) {
  if (weak && !spec.batch.global_batch) return own_batch(spec, question);
  Question first = question;
  first.nodes = smallest;
  ASSIGN_OR_RETURN(const auto batch, own_batch(spec, first));
  if (!weak) return batch;
  if (batch * question.nodes % smallest != 0)
    return Error(Code::kInvalid,
                 fmt::format("a batch of {} sequences on {} nodes is no whole number of them on {}; use "
                             "multiples of {} nodes",
                             batch, smallest, question.nodes, smallest));
  return batch * question.nodes / smallest;
}

// The speed of a node relative to the machine's first line that fits, and how sure that is.
void compare(ForecastLine& line, const Question& question, const Belief& belief, const ForecastLine* first,
             const Question& first_question) {
  if (!line.best) return;
  line.efficiency = 1.0;
  if (first == nullptr) return;
  const auto speed = [](const ForecastLine& one) {
    return one.step.tokens_per_second() / static_cast<double>(one.nodes);
  };
  line.efficiency = speed(line) / speed(*first);
  line.efficiency_deviation = belief.ratio_deviation(run_of(question, line.best->layout),
                                                     run_of(first_question, first->best->layout));
}

Result<void> add_machine(const PlanOptions& options, const LoadedSpec& loaded, const std::string& machine,
                         const Belief& belief, ForecastReport& report) {
  const spec::JobSpec& spec = loaded.spec;
  ASSIGN_OR_RETURN(auto question, question_of(options, loaded, machine));
  question.constants = belief.constants();
  ASSIGN_OR_RETURN(const auto counts, node_counts(options, spec));
  std::optional<ForecastLine> first;
  Question first_question = question;
  question.global_batch = 0;  // not known yet
  for (const int64_t nodes : counts) {
    question.nodes = nodes;
    ForecastLine line{.machine = machine, .nodes = nodes, .accelerators = nodes * question.machine.per_node};
    const auto batch = batch_on(spec, question, report.weak, counts.front());
    if (!batch) {
      line.reasons = {batch.error().to_string()};
      report.lines.push_back(std::move(line));
      continue;
    }
    question.global_batch = line.global_batch = *batch;
    if (question.fp8 && question.machine.fp8_peak == 0.0) {
      line.reasons = {fmt::format("{} does not multiply fp8; remove [precision] fp8", machine)};
      report.lines.push_back(std::move(line));
      continue;
    }
    fill(line, options, question, belief, answer_of(spec, options.software.empty(), question, line));
    compare(line, question, belief, first ? &*first : nullptr, first_question);
    if (line.best && !first) {
      first = line;
      first_question = question;
    }
    report.lines.push_back(std::move(line));
  }
  // Without --nodes the question is left as it was asked on the job's own.
  const bool can = (!question.fp8 || question.machine.fp8_peak > 0.0) && question.global_batch > 0;
  if (can && options.machines.find(',') == std::string::npos && options.nodes.empty())
    report.written = written_layout(spec, options.software.empty(), question, belief);
  return {};
}

}  // namespace

Run run_of(const Question& question, const Layout& layout) {
  return {question.machine, question.model, layout, question.traits};
}

Sure foresee(const Question& question, const Layout& layout, const Belief& belief) {
  const Run run = run_of(question, layout);
  Sure sure{forecast_step(run.machine, run.model, run.layout, run.traits, belief.constants()),
            belief.estimate(run)};
  sure.step.scale(1.0 / sure.estimate.factor);
  return sure;
}

bool wants_forecast(const PlanOptions& options, const LoadedSpec& loaded) {
  // Measured runs of a job on CPUs are about the machine that was calibrated.
  const bool on_cpus = loaded.spec.resources.device == spec::DeviceKind::kCpu && options.machines.empty() &&
                       loaded.spec.cluster.instance.empty();
  if (!options.machines.empty() || !options.nodes.empty() || !options.software.empty() ||
      !options.plot.empty() || options.tokens > 0.0 || (!options.measured.empty() && !on_cpus))
    return true;
  if (loaded.spec.program.trainer.empty()) return false;
  if (loaded.spec.resources.device == spec::DeviceKind::kCpu) return false;
  const auto machine = machine_of(loaded.spec);  // of whose errors load_spec() has told
  return machine && *machine && (*machine)->accelerator.has_value();
}

Result<ForecastReport> forecast_job(const PlanOptions& options, const LoadedSpec& loaded) {
  const spec::JobSpec& spec = loaded.spec;
  if (spec.program.trainer.empty() || spec.model.layers == 0)
    return Error(Code::kInvalid,
                 fmt::format("{}: a prediction needs a job of the built-in trainer, whose [model] says "
                             "what is computed",
                             spec.origin("program")));
  if (spec.precision.parameters != spec::DType::kBf16)
    return Error(Code::kInvalid,
                 fmt::format("{}: predictions are of bf16", spec.origin("precision.parameters")));
  ForecastReport report;
  report.job = spec.name;
  report.software = options.software.empty() ? "fsdp" : options.software;
  report.fp8 = spec.precision.fp8;
  report.weak =
      options.scaling.empty() ? spec.batch.scaling == spec::Scaling::kWeak : options.scaling == "weak";
  report.tokens = options.tokens;
  ASSIGN_OR_RETURN(const auto machines, machine_names(options, spec));
  if (machines.empty())
    return Error(Code::kInvalid,
                 "no machine to predict for; give --machine p4d.24xlarge, or [cluster] instance");
  if (machines.size() > 1 && options.dollars_per_hour > 0.0)
    return Error(Code::kInvalid,
                 "--dollars-per-hour is the price of one type; ask for one --machine at a time, or give "
                 "--prices");
  ASSIGN_OR_RETURN(auto measured, measured_runs(options, loaded));
  report.measured = static_cast<int64_t>(measured.size());
  const Belief belief(fitted_constants(), std::move(measured));
  for (const std::string& machine : machines)
    RETURN_IF_ERROR(add_machine(options, loaded, machine, belief, report));
  return report;
}

}  // namespace shardrun::launcher

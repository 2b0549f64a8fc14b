#include <cmath>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/foresight/calibration_file.h"
#include "launcher/foresight/earlier_runs.h"
#include "launcher/foresight/forecast_fields.h"
#include "launcher/foresight/measured_runs.h"
#include "launcher/plan/batch.h"
#include "launcher/plan/node_memory.h"
#include "launcher/plan/precompile.h"
#include "launcher/verbs/command_line.h"
#include "launcher/view/progress.h"
#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"
#include "runtime/contract/exit_code.h"
#include "runtime/plan/model_plan.h"
#include "runtime/plan/pipeline.h"

namespace shardrun::launcher {
namespace {

void print_model(const plan::ModelPlan& model, int64_t tokens_per_step, int64_t micro_steps) {
  print_text("a step       {} tokens, {:.4g} TFLOP\n", with_thousands(tokens_per_step),
             static_cast<double>(tokens_per_step) * model.flops_per_token.causal * 1e-12);
  print_text("model        {} parameters in {} blocks\n", with_thousands(model.parameters), model.blocks);
  if (model.trained > 0 && model.trained < model.parameters)
    print_text("trained      {} of them, in adapters\n", with_thousands(model.trained));
  print_text("sharding     a copy of the state on {}, copies {}, each matrix on {}\n",
             counted(model.shard_degree, "rank"), model.replicas, counted(model.tensor_parallel, "rank"));
  if (model.pipeline_parallel > 1)
    print_text(
        "pipeline     {} stages{}, which wait for each other {:.0f} % of a step; the one that holds most "
        "sends others {:.4g} MB in it:\n",
        model.pipeline_parallel,
        model.virtual_stages > 1 ? fmt::format(" of {} chunks", model.virtual_stages) : "",
        100.0 * plan::bubble_share(model.pipeline_parallel, model.virtual_stages, micro_steps),
        static_cast<double>(model.sent_to_stages) * 1e-6);
  const plan::MemoryPlan& memory = model.memory;
  struct Row {
    const char* kind;
    int64_t bytes;
    const char* what;
  };
  const bool on_gpu = memory.on_gpu != 0;
  std::vector<Row> rows = {
      {"masters", memory.masters, "fp32 parameters of its shard"},
      {"copies", memory.compute_copy, "the same in bf16"},
      {"gradients", memory.gradients, "fp32, of its shard"},
      {"moments", memory.moments, "of the optimizer"},
      {"gathered", memory.gathered, "whole blocks and their gradients, while they are used"},
      {"activations", memory.activations, "with scratch"},
      {"workspace", memory.workspace, on_gpu ? "of kernels" : "of kernels, on this machine"},
      {"sums", memory.communication, "parts of other ranks, while they are added"},
      {"saving", memory.saving, "copies that checkpoints are written from"},
      {"process", memory.process, "programs, libraries, connections"},
      {"total", memory.total(), "at its peak"}};
  if (memory.frozen > 0)
    rows.insert(rows.begin() + 2, {"frozen", memory.frozen, "parameters of its shard that stay as they are"});
  if (memory.offloaded > 0)
    rows.insert(rows.end() - 1,
                {"offloaded", memory.offloaded, "moments and activations, pinned on the host"});
  if (on_gpu) {
    rows.push_back({"on the GPU", memory.gpu_total(), "of the total"});
    rows.push_back({"on the host", memory.host_total(), "the rest of it"});
  }
  print_text("a rank holds\n");
  for (const auto& row : rows) print_text("  {:<11}{:>12}  {}\n", row.kind, bytes_text(row.bytes), row.what);
  if (memory.context > 0)
    print_text("  {:<11}{:>12}  of the total: CUDA and its libraries, on the GPU\n", "context",
               bytes_text(memory.context));
  if (memory.in_files > 0)
    print_text("  {:<11}{:>12}  not part of the total\n", "in files", bytes_text(memory.in_files));
}

// What the job's own layout takes on the machine that somebody calibrated, and the best one there; both moved by runs that
// were measured there, where the user named some.
struct OnMeasuredMachine {
  std::string basis;
  Sure written;
  std::optional<MeasuredChoice> best;  // absent: nothing can be said of any, or nothing fits
  Estimate of_best;
  std::vector<std::string> learned_from;
};

// The runs of --measured that can be replayed there. kInvalid: one that was named cannot be read.
base::Result<Learned> learned_there(const PlanOptions& options, const MeasuredMachine& machine) {
  std::vector<EarlierRun> runs;
  for (const std::string& text : measured_texts(options)) {
    auto run = read_earlier_run(text);
    if (!run) return std::move(run).error().context("--measured " + text);
    runs.push_back(std::move(*run));
  }
  return learn(runs, machine);
}

Sure corrected(StepForecast step, const Estimate& estimate) {
  step.scale(1.0 / estimate.factor);
  return {step, estimate};
}

// Absent where nobody has calibrated, or where nothing can be said of the job. Errors: of the runs of --measured.
base::Result<std::optional<OnMeasuredMachine>> on_measured_machine(const PlanOptions& options,
                                                                   const spec::JobSpec& spec,
                                                                   const record::LaunchPlan& plan) {
  const std::optional<OnMeasuredMachine> kNothing;
  const bool on_cpu = spec.resources.device == spec::DeviceKind::kCpu;  // what is calibrated
  if (spec.program.trainer.empty() || !on_cpu) return kNothing;
  const auto path = calibration_path(spec);
  if (!path) return kNothing;
  const auto machine = load_calibration(*path);
  if (!machine) warn({machine.error().to_string()});
  if (!machine || !*machine) return kNothing;
  const auto written = forecast_measured(spec, plan, **machine);
  if (!written) {
    warn({"no prediction from " + *path + ": " + written.error().to_string()});
    return kNothing;
  }
  auto run = run_on_calibrated(spec, plan);
  if (!run) return kNothing;
  ASSIGN_OR_RETURN(auto learned, learned_there(options, **machine));
  OnMeasuredMachine found{*path, corrected(*written, estimate_replayed(*run, learned.misses)), {}, {}, {}};
  found.learned_from = std::move(learned.from);
  auto best = best_measured(spec, plan, **machine);
  if (!best) {
    warn({"no best layout from " + *path + ": " + best.error().to_string()});
    return std::optional(std::move(found));
  }
  run->layout = best->layout;
  found.of_best = estimate_replayed(*run, learned.misses);
  best->step.scale(1.0 / found.of_best.factor);
  found.best = std::move(*best);
  return std::optional(std::move(found));
}

void print_measured(const OnMeasuredMachine& found) {
  const auto line = [](const char* name, const StepForecast& step, const Estimate& estimate) {
    const Interval rate = estimate.interval();
    print_text(
        "{:<13}step {:.4f} s ({:.4f} to {:.4f}), {} tokens/s ± {:.0f} %: kernels {:.4f} s, waits {:.4f} s, "
        "optimizer {:.4f} s\n",
        name, step.seconds, step.seconds / rate.high, step.seconds / rate.low,
        with_thousands(std::llround(step.tokens_per_second())), 100.0 * (rate.high - 1.0),
        step.phases.compute, step.phases.exposed, step.phases.optimizer);
  };
  const auto runs = static_cast<int64_t>(found.learned_from.size());
  print_text("predicted    from {}{}; intervals hold four of five runs\n", found.basis,
             runs == 0 ? "" : " and " + counted(runs, "measured run"));
  line("as written", found.written.step, found.written.estimate);
  if (!found.best) return;
  line("best", found.best->step, found.of_best);
  print_text("             {} of {} layouts\n", layout_text(found.best->layout), found.best->combinations);
}

void fields(auto& visit, const OnMeasuredMachine& found) {
  visit("basis", found.basis);
  if (!found.learned_from.empty()) visit("learned_from", found.learned_from);
  visit.object("written", [&](auto& written) {
    fields(written, found.written.step);
    interval_fields(written, found.written.step, found.written.estimate, [](auto&) {});
  });
  if (!found.best) return;
  visit("combinations", found.best->combinations);
  visit("best", found.best->layout);
  fields(visit, found.best->step);
  interval_fields(visit, found.best->step, found.of_best, [](auto&) {});
}

const char* device_name(const spec::JobSpec& spec) {
  return spec.resources.device == spec::DeviceKind::kGpu ? "gpu" : "cpu";
}

// What the ranks compute with and talk through, and what of it the machine decided.
void print_device(const LoadedSpec& loaded) {
  const spec::JobSpec& spec = loaded.spec;
  if (!spec.program.trainer.empty()) {
    const int gpus = spec.resources.gpus_per_node;
    print_text("device       {}{}, plugin {}, provider {}\n", device_name(spec),
               gpus > 0 ? fmt::format(", {} a node", gpus) : "", spec.communication.plugin,
               spec.communication.provider);
  }
  if (const std::string text = filled_in_text(loaded); !text.empty()) print_text("machine      {}\n", text);
}

// What the verb found out, for --json.
struct PlanReport {
  const LoadedSpec& loaded;
  const record::LaunchPlan& plan;
  int64_t tokens_per_step = 0;
  std::optional<plan::ModelPlan> model = {};  // of the built-in trainer
  std::optional<ForecastReport> forecast = {};
  std::optional<OnMeasuredMachine> calibrated = {};
};

void fields(auto& visit, const PlanReport& report) {
  visit("name", report.plan.name);
  visit("nodes", report.plan.nodes);
  visit("ranks_per_node", report.plan.ranks_per_node);
  visit("world_size", report.plan.world_size());
  visit("batch", report.plan.batch);
  const spec::JobSpec& spec = report.loaded.spec;
  visit("gpus_per_node", spec.resources.gpus_per_node);
  if (!spec.program.trainer.empty()) {
    visit("device", device_name(spec));
    visit("plugin", spec.communication.plugin);
    visit("provider", spec.communication.provider);
  }
  if (!report.loaded.filled_in.empty()) {
    visit("machine", report.loaded.machine);
    visit("filled_in", report.loaded.filled_in);
  }
  if (report.model) visit("tokens_per_step", report.tokens_per_step);
  visit.where_known("model", report.model);
  visit.where_known("forecast", report.forecast);
  visit.where_known("calibrated", report.calibrated);
}

void print(const PlanReport& report, const PlanContext& context) {
  const spec::JobSpec& spec = report.loaded.spec;
  const record::LaunchPlan& plan = report.plan;
  print_text("job          {}\n", spec.name);
  print_text("ranks        {} × {} = {}, {} each\n", counted(plan.nodes, "node"), plan.ranks_per_node,
             plan.world_size(), counted(plan.cpus_per_rank, "CPU"));
  print_device(report.loaded);
  print_text("batch        {}\n", describe_batch(plan.batch));
  if (compiles_by_command(spec)) {
    const record::LaunchPlan compile = compile_plan(spec, plan);
    print_text("precompile   {} on {}, {} each, into {}\n", fmt::join(spec.precompile.command, " "),
               counted(compile.nodes, "node"), counted(compile.cpus_per_rank, "CPU"), context.cache);
  }
  if (report.model)
    print_model(*report.model, report.tokens_per_step, report.plan.batch.gradient_accumulation);
  if (report.forecast) print_forecast(*report.forecast);
  if (report.calibrated) print_measured(*report.calibrated);
}

// The picture that --plot asks for.
base::Result<void> draw(const PlanOptions& options, const ForecastReport& forecast) {
  if (options.plot.empty()) return {};
  const std::string svg = forecast_svg(forecast);
  if (svg.empty())
    return base::Error(base::Code::kInvalid,
                       "--plot: nothing to draw; give --nodes two numbers on which the job can run");
  return base::write_file_atomically(options.plot, svg);
}

// kInvalid: options of forecasts, where none is made; what measured runs teach needs a prediction of either kind.
base::Result<void> check_unused(const PlanOptions& options, bool is_predicted) {
  const std::pair<const char*, bool> given[] = {{"--prices", !options.prices.empty()},
                                                {"--dollars-per-hour", options.dollars_per_hour > 0.0},
                                                {"--machine-file", !options.machine_file.empty()},
                                                {"--scaling", !options.scaling.empty()}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      return base::Error(
          base::Code::kInvalid,
          fmt::format("{}: has no effect, for no accelerators are predicted for; add --machine, "
                      "e.g. p4d.24xlarge, or leave it out",
                      name));
  if (!options.measured.empty() && !is_predicted)
    return base::Error(
        base::Code::kInvalid,
        "--measured: has no effect, for nothing is predicted of this job; run `shardrun calibrate`, add "
        "--machine, or leave it out");
  return {};
}

base::Result<int> plan(const PlanOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto loaded, load_spec(options.spec.path, options.spec.overrides));
  const spec::JobSpec& spec = loaded.spec;
  const bool slurm = spec.cluster.scheduler == spec::SchedulerKind::kSlurm;
  const auto installed = find_installation();  // without one, a rank's program is not measured
  ASSIGN_OR_RETURN(auto context, plan_context(spec, installed ? *installed : Installation{}, loaded.overrides,
                                              slurm ? "slurm" : "local"));
  ASSIGN_OR_RETURN(auto solved, solve_launch_plan(spec, context));
  PlanReport report{loaded, solved, solved.batch.global_batch * spec.data.sequence_length};
  if (spec.program.command.empty()) {
    ASSIGN_OR_RETURN(report.model, plan::job_memory(spec, solved.batch, measured_place(spec, solved)));
  }
  if (wants_forecast(options, loaded)) {
    ASSIGN_OR_RETURN(report.forecast, forecast_job(options, loaded));
    RETURN_IF_ERROR(draw(options, *report.forecast));
  } else {
    ASSIGN_OR_RETURN(report.calibrated, on_measured_machine(options, spec, solved));
    RETURN_IF_ERROR(check_unused(options, report.calibrated.has_value()));
  }
  if (common.json) {
    print_text("{}", base::json_of(report, base::kJsonReport));
  } else {
    print(report, context);
  }
  return contract::kExitDone;
}

CLI::Validator more_than_nothing() {
  const auto check = [](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool is_number = !text.empty() && *end == '\0' && std::isfinite(value);
    return is_number && value > 0.0 ? std::string()
                                    : fmt::format("{} is no number above 0", spec::printable(text));
  };
  return {check, "POSITIVE"};
}

}  // namespace

void add_plan(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<PlanOptions>();
  CLI::App* verb = app.add_subcommand(
      "plan", "Show ranks, batch and memory of a job, and predict its speed on machines; nothing is started");
  verb->add_option("spec", options.spec.path, "job.toml")->required();
  add_overrides(*verb, options.spec.overrides);
  verb->add_option("--machine", options.machines,
                   "Types to predict for, e.g. p4d.24xlarge,p5.48xlarge; default: [cluster] instance");
  verb->add_option("--nodes", options.nodes, "Numbers of nodes to predict for, e.g. 16,32,64,128");
  verb->add_option("--scaling", options.scaling, "strong or weak; default: the job's own")
      ->check(CLI::IsMember({"strong", "weak"}));
  verb->add_option("--software", options.software,
                   "Predict for another program's stack and its memory: smp, fsdp, torchtitan, …");
  CLI::Option* tokens = verb->add_option("--tokens", options.tokens, "Say how long so many tokens take")
                            ->check(more_than_nothing());
  CLI::Option* price = verb->add_option("--dollars-per-hour", options.dollars_per_hour,
                                        "Price of a node, for the cost of --tokens")
                           ->check(more_than_nothing())
                           ->needs(tokens);
  verb->add_option("--prices", options.prices, "TOML file of dollars an hour by type, for --tokens")
      ->needs(tokens)
      ->excludes(price);
  verb->add_option("--machine-file", options.machine_file,
                   "TOML file of types beside those that shardrun knows, in the catalogue's words");
  verb->add_option(
      "--measured", options.measured,
      "Learn from a run: its directory, a folder of runs, or tokens_per_second=…,nodes=…; may be repeated");
  verb->add_option("--plot", options.plot, "Write the scaling efficiency of --nodes as SVG to this file");
  add_common(*verb, line, true);
  verb->footer(
      "Example:\n  shardrun plan jobs/tiny-llama.toml --set resources.ranks_per_node=4\n"
      "  shardrun plan jobs/llama-2-7b-p4de.toml --nodes 16,32,64,128 --plot 7b.svg\n"
      "  shardrun plan jobs/llama-2-7b-p4de.toml --measured tokens_per_second=90000,nodes=4 --nodes 64");
  verb->callback([&] { line.end(plan(options, line.common)); });
}

}  // namespace shardrun::launcher

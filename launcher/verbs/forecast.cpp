#include "launcher/verbs/forecast.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "launcher/cluster/job_instance.h"
#include "launcher/cluster/rules.h"
#include "launcher/plan/node_memory.h"
#include "launcher/plan/scale.h"
#include "launcher/verbs/forecast_fields.h"
#include "launcher/view/progress.h"
#include "launcher/view/scale_plot.h"
#include "runtime/base/json_fields.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/model/network.h"

namespace shardrun::launcher {

using base::Code;
using base::Error;
using base::Result;
using spec::Checkpointing;

const char* name_of(Checkpointing kind) {
  return kind == Checkpointing::kNone ? "none" : kind == Checkpointing::kSelective ? "selective" : "full";
}

namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kHostPci4 = 12e9,
                 kHostPci5 = 50e9;  // bytes/s of one accelerator; p4d's pairs share a switch
constexpr double kNoLink = 25e9;    // of accelerators that only PCIe connects
constexpr int kMostPlans = 64;      // layouts whose exact memory is asked for

// The type that the job names, directly or through a queue of its cluster; empty: none that the catalogue has.
Result<std::string> machine_of_job(const spec::JobSpec& spec) {
  if (!spec.cluster.instance.empty() || spec.cluster.config.empty()) return spec.cluster.instance;
  auto config = load_cluster(spec.cluster.config);
  if (!config) return std::move(config).error().context(spec.origin("cluster.config"));
  const Catalogue catalogue = built_in_catalogue();
  ASSIGN_OR_RETURN(const auto instance, find_queue_instance(spec, *config, catalogue));
  return instance == nullptr ? std::string() : (instance)->type;
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

// Returns what lies on an accelerator: a GPU's memory, where the trainer computes on it.
int64_t accelerator_bytes(const plan::MemoryPlan& memory) {
  return memory.on_gpu != 0 ? memory.gpu_total() : memory.total();
}

bool fits(const plan::MemoryPlan& memory, const Machine& machine) {
  if (static_cast<double>(accelerator_bytes(memory)) > machine.memory_bytes * kUsableMemory) return false;
  if (memory.on_gpu == 0 || machine.host_memory == 0.0) return true;
  return static_cast<double>(memory.host_total()) * machine.per_node <= machine.host_memory * kUsableMemory;
}

// Whether the built-in trainer refuses what a layout has.
bool is_refused(const spec::JobSpec& spec, const Question& question, const Layout& layout) {
  return (layout.tensor_parallel > 1 && !question.model.architecture->sliceable) ||
         (layout.optimizer_offload && spec.optimizer.kind == spec::OptimizerKind::kLamb);
}

// Chooses, and with the built-in trainer plans what it would hold, until the choice fits.
Answer answer_of(const spec::JobSpec& spec, bool own, const Question& question, ForecastLine& line) {
  Answer answer = search(question);
  if (!own) return answer;
  const plan::RankPlace place = rank_place({.nodes = static_cast<int>(question.nodes),
                                            .ranks_per_node = question.machine.per_node,
                                            .cpus_per_rank = spec.resources.cpus_per_rank});
  const plan::RankOptions job = plan::rank_options(spec, {});
  for (int asked = 0; answer.best; ++asked) {
    if (asked == kMostPlans) {
      answer.best.reset();
      break;
    }
    if (is_refused(spec, question, answer.best->layout)) {
      const double bytes = answer.best->bytes;
      answer = without_best(question, std::move(answer), bytes);
      continue;
    }
    const plan::MemoryPlan memory = planned_memory(job, answer.best->layout, place);
    line.planned_bytes = accelerator_bytes(memory);
    if (fits(memory, question.machine)) break;
    answer = without_best(question, std::move(answer), static_cast<double>(*line.planned_bytes));
  }
  if (!answer.best) line.planned_bytes.reset();
  return answer;
}

void fill(ForecastLine& line, const PlanOptions& options, const Question& question, const Answer& answer) {
  line.combinations = static_cast<int64_t>(answer.candidates.size());
  if (!answer.best) {
    line.reasons = {answer.candidates.empty()
                        ? fmt::format("a batch of {} sequences does not divide over {} accelerators",
                                      question.global_batch, line.accelerators)
                        : fmt::format("none of {} layouts fits {:.1f} GB", answer.candidates.size(),
                                      question.machine.memory_bytes * kUsableMemory / 1e9)};
    return;
  }
  line.best = answer.best;
  line.reasons = answer.reasons;
  line.step = forecast_step(question.machine, question.model, answer.best->layout, question.traits,
                            question.constants);
  if (options.tokens <= 0.0) return;
  line.hours = options.tokens / line.step.tokens_per_second() / 3600.0;
  if (question.machine.dollars_per_hour > 0.0)
    line.dollars = *line.hours * static_cast<double>(line.nodes) * question.machine.dollars_per_hour;
}

// The layout that the spec asks for; nullopt where its mesh or batch cannot be solved on the machine.
std::optional<StepForecast> written_forecast(const spec::JobSpec& spec, const Question& question) {
  const int64_t world = question.nodes * question.machine.per_node;
  const auto mesh = plan::solve_mesh(spec, world, question.machine.per_node);
  if (!mesh) return std::nullopt;
  const auto batch = solve_batch(spec, mesh->data_parallel());
  if (!batch) return std::nullopt;
  Layout layout;
  layout.nodes = question.nodes;
  layout.shard_degree = mesh->shard_degree;
  layout.tensor_parallel = mesh->tensor_parallel;
  layout.strategy = spec.sharding.strategy;
  layout.micro_batch = batch->micro_batch;
  layout.accumulation = batch->gradient_accumulation;
  layout.sequence_length = question.sequence_length;
  layout.checkpointing = spec.memory.activation_checkpointing;
  layout.activation_offload = spec.memory.activation_offload;
  layout.optimizer_offload = spec.memory.optimizer_offload;
  layout.fp8 = question.fp8;
  return forecast_step(question.machine, question.model, layout, question.traits, question.constants);
}

// Without --software a prediction is of the built-in trainer, which must be able to compute on the accelerators and not
// be told to leave them alone.
Result<void> check_own(const LoadedSpec& loaded, const Instance& instance) {
  const spec::JobSpec& spec = loaded.spec;
  if (instance.accelerator && instance.accelerator->maker != "nvidia")
    return Error(Code::kInvalid,
                 fmt::format("the built-in trainer does not compute on the {} of {}; name the program that "
                             "does by --software, one of {}",
                             instance.accelerator->name, instance.type, stack_names()));
  if (spec.resources.device == spec::DeviceKind::kCpu && loaded.says("resources.device"))
    return Error(Code::kInvalid,
                 fmt::format("{}: the job trains on CPUs, and predictions are of accelerators; remove the "
                             "key, or name another program by --software",
                             spec.origin("resources.device")));
  return {};
}

Result<Question> question_of(const PlanOptions& options, const LoadedSpec& loaded,
                             const std::string& machine) {
  const spec::JobSpec& spec = loaded.spec;
  const Catalogue catalogue = built_in_catalogue();
  spec::JobSpec named = spec;
  named.cluster.instance = machine;
  named.origins["cluster.instance"] = "--machine";
  ASSIGN_OR_RETURN(const auto instance, find_job_instance(named, catalogue));
  ASSIGN_OR_RETURN(auto known, machine_of(*instance));
  const bool own = options.software.empty();
  if (own) RETURN_IF_ERROR(check_own(loaded, *instance));
  const auto stack = find_stack(options.software.empty() ? "fsdp" : options.software);
  if (!stack)
    return Error(Code::kInvalid,
                 fmt::format("--software {}: unknown; one of {}", options.software, stack_names()));
  Question question;
  question.machine = std::move(known);
  question.machine.dollars_per_hour = options.dollars_per_hour;
  if (spec.resources.device == spec::DeviceKind::kGpu && loaded.says("resources.ranks_per_node"))
    question.machine.per_node = std::min(question.machine.per_node, spec.resources.ranks_per_node);
  question.model = shape_of(plan::network_of(spec));
  question.traits = traits(*stack);
  question.traits.streams_moments = own;
  question.traits.delayed_scales = own;
  question.fp8 = spec.precision.fp8;
  question.constants = fitted_constants();
  question.nodes = spec.resources.nodes;
  question.sequence_length = spec.data.sequence_length;
  question.heads = spec.model.kv_heads > 0 ? spec.model.kv_heads : spec.model.heads;
  return question;
}

Result<std::vector<int64_t>> node_counts(const PlanOptions& options, const spec::JobSpec& spec) {
  if (options.nodes.empty()) return std::vector<int64_t>{spec.resources.nodes};
  return parse_node_counts(options.nodes);
}

// Sequences of a step on the job's own nodes.
Result<int64_t> batch_of(const spec::JobSpec& spec, const Question& question) {
  if (spec.batch.global_batch) return *spec.batch.global_batch;
  ASSIGN_OR_RETURN(const auto mesh, plan::solve_mesh(spec, question.nodes * question.machine.per_node,
                                                     question.machine.per_node));
  ASSIGN_OR_RETURN(const auto batch, solve_batch(spec, mesh.data_parallel()));
  return batch.global_batch;
}

Result<void> add_machine(const PlanOptions& options, const LoadedSpec& loaded, const std::string& machine,
                         ForecastReport& report) {
  const spec::JobSpec& spec = loaded.spec;
  ASSIGN_OR_RETURN(auto question, question_of(options, loaded, machine));
  ASSIGN_OR_RETURN(const auto counts, node_counts(options, spec));
  ASSIGN_OR_RETURN(const auto batch, batch_of(spec, question));
  double first = 0.0;
  for (const int64_t nodes : counts) {
    question.nodes = nodes;
    question.global_batch = report.weak ? batch / counts.front() * nodes : batch;
    ForecastLine line{.machine = machine,
                      .nodes = nodes,
                      .accelerators = nodes * question.machine.per_node,
                      .global_batch = question.global_batch};
    if (question.fp8 && question.machine.fp8_peak == 0.0) {
      line.reasons = {fmt::format("{} does not multiply fp8; remove [precision] fp8", machine)};
      report.lines.push_back(std::move(line));
      continue;
    }
    fill(line, options, question, answer_of(spec, options.software.empty(), question, line));
    if (line.best) {
      const double speed = line.step.tokens_per_second() / static_cast<double>(nodes);
      if (first == 0.0) first = speed;
      line.efficiency = speed / first;
    }
    report.lines.push_back(std::move(line));
  }
  question.nodes = spec.resources.nodes;
  const bool can = !question.fp8 || question.machine.fp8_peak > 0.0;
  if (can && options.machines.find(',') == std::string::npos && options.nodes.empty())
    report.written = written_forecast(spec, question);
  return {};
}

}  // namespace

std::string layout_text(const Layout& layout) {
  std::string text = fmt::format("{}, tensor {}, micro-batch {} x {}, checkpointing {}",
                                 sharding_text(layout), layout.tensor_parallel, layout.micro_batch,
                                 layout.accumulation, name_of(layout.checkpointing));
  if (layout.activation_offload) text += ", activations offloaded";
  if (layout.optimizer_offload) text += ", moments offloaded";
  return text;
}

namespace {

std::string step_text(const StepForecast& step) {
  return fmt::format("step {:.3f} s, {} tokens/s, {:.1f} TFLOP/s an accelerator", step.seconds,
                     with_thousands(std::llround(step.tokens_per_second())), step.model_flops / 1e12);
}

void print_parts(const StepForecast& step) {
  const Phases& phases = step.phases;
  const Volumes& volumes = step.volumes;
  fmt::print(
      "  seconds    kernels {:.3f}, transfers not hidden {:.3f}, optimizer {:.3f}, host {:.3f}, straggling "
      "{:.3f}\n",
      phases.compute, phases.exposed, phases.optimizer, phases.host, phases.straggle);
  fmt::print(
      "  transfers  gather {:.3f}, reduce {:.3f}, replicas {:.3f}, tensor {:.3f}, offload {:.3f}; hidden or "
      "not\n",
      phases.gather, phases.reduce, phases.replica, phases.tensor, phases.offload);
  fmt::print("  GB a rank  gather {:.2f}, reduce {:.2f}, replicas {:.2f}, tensor {:.2f}, offload {:.2f}\n",
             volumes.gather / 1e9, volumes.reduce / 1e9, volumes.replica / 1e9, volumes.tensor / 1e9,
             volumes.offload / 1e9);
}

void print_line(const ForecastLine& line) {
  if (!line.best) {
    fmt::print("{:<16}{:>6}  {}\n", line.machine, line.nodes, line.reasons.front());
    return;
  }
  fmt::print("{:<16}{:>6}{:>10.3f}{:>14}{:>9.1f}{:>10.1f} %{:>8.1f}  {}", line.machine, line.nodes,
             line.step.seconds, with_thousands(std::llround(line.step.tokens_per_second())),
             line.step.model_flops / 1e12, 100.0 * line.efficiency,
             (line.planned_bytes ? static_cast<double>(*line.planned_bytes) : line.best->bytes) / 1e9,
             layout_text(line.best->layout));
  if (line.hours) fmt::print("; {:.1f} h", *line.hours);
  if (line.dollars) fmt::print(", {} dollars", with_thousands(std::llround(*line.dollars)));
  fmt::print("\n");
}

}  // namespace

Result<Machine> machine_of(const Instance& instance) {
  if (!instance.accelerator)
    return Error(Code::kInvalid,
                 fmt::format("{} has no accelerators; predictions need a type that has some, e.g. "
                             "p4d.24xlarge, p5.48xlarge or trn1.32xlarge",
                             instance.type));
  const Accelerator& chip = *instance.accelerator;
  const double ranks = chip.ranks;
  Machine machine;
  machine.name = instance.type;
  const bool ampere = chip.name.starts_with("a10") || chip.name.starts_with("l4");
  machine.generation = chip.maker == "aws" ? Generation::kTrainium
                       : ampere            ? Generation::kAmpere
                                           : Generation::kHopper;
  machine.per_node = instance.ranks();
  machine.peak = chip.peak.bf16 * 1e12 / ranks;
  machine.fp8_peak = chip.peak.fp8 * 1e12 / ranks;
  machine.memory_bytes = static_cast<double>(chip.memory_mib) * kMiB / ranks;
  machine.memory_rate = chip.memory_gbytes_per_second * 1e9 / ranks;
  machine.link_rate =
      chip.link_gbytes_per_second > 0.0 ? chip.link_gbytes_per_second * 0.5e9 / ranks : kNoLink;
  machine.network_rate = instance.network_gbits_per_second * 1e9 / 8.0;
  machine.host_memory = static_cast<double>(instance.memory_mib) * kMiB;
  machine.host_rate = machine.generation == Generation::kHopper ? kHostPci5 : kHostPci4;
  return machine;
}

bool wants_forecast(const PlanOptions& options, const LoadedSpec& loaded) {
  if (!options.machines.empty() || !options.nodes.empty() || !options.software.empty() ||
      !options.plot.empty() || options.tokens > 0.0)
    return true;
  if (loaded.spec.program.trainer.empty()) return false;
  if (loaded.spec.resources.device == spec::DeviceKind::kCpu) return false;
  const auto type = machine_of_job(loaded.spec);
  if (!type) return false;  // load_spec() has told
  const Catalogue catalogue = built_in_catalogue();
  const Instance* instance = catalogue.find(*type);
  return instance != nullptr && instance->accelerator.has_value();
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
  ASSIGN_OR_RETURN(const auto named, machine_names(options, spec));
  const std::vector<std::string>& machines = named;
  if (machines.empty())
    return Error(Code::kInvalid,
                 "no machine to predict for; give --machine p4d.24xlarge, or [cluster] instance");
  if (machines.size() > 1 && options.dollars_per_hour > 0.0)
    return Error(Code::kInvalid,
                 "--dollars-per-hour is the price of one type; ask for one --machine at a time");
  for (const std::string& machine : machines) RETURN_IF_ERROR(add_machine(options, loaded, machine, report));
  return report;
}

void print_forecast(const ForecastReport& report) {
  fmt::print("predicted    {} scaling, software {}, {}; nothing of this is measured\n",
             report.weak ? "weak" : "strong", report.software,
             report.fp8 ? "bf16 with linear layers in fp8" : "bf16");
  if (report.written) {
    fmt::print("as written   {}\n", step_text(*report.written));
    print_parts(*report.written);
  }
  if (report.lines.size() == 1 && report.lines.front().best) {
    const ForecastLine& line = report.lines.front();
    fmt::print("best         {}\n             {}\n", layout_text(line.best->layout), step_text(line.step));
    print_parts(line.step);
    for (const std::string& reason : line.reasons) fmt::print("  because    {}\n", reason);
  }
  fmt::print("{:<16}{:>6}{:>10}{:>14}{:>9}{:>12}{:>8}  best layout{}\n", "machine", "nodes", "step s",
             "tokens/s", "TFLOP/s", "efficiency", "GB",
             report.tokens > 0.0 ? fmt::format("; {:.3g} tokens take", report.tokens) : "");
  for (const ForecastLine& line : report.lines) print_line(line);
}

std::string to_json(const ForecastReport& report) {
  return base::json_of(report, base::kJsonReport);
}

std::string forecast_svg(const ForecastReport& report) {
  std::vector<ScaleSeries> series;
  for (const ForecastLine& line : report.lines) {
    if (!line.best) continue;
    if (series.empty() || series.back().name != line.machine) series.push_back({line.machine, {}});
    series.back().points.push_back({line.nodes, line.efficiency});
  }
  return scale_plot_svg(series, fmt::format("{}: {} scaling efficiency, predicted ({})", report.job,
                                            report.weak ? "weak" : "strong", report.software));
}

}  // namespace shardrun::launcher

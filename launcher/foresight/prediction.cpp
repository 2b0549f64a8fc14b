#include "launcher/foresight/prediction.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "launcher/foresight/calibration_file.h"
#include "launcher/foresight/earlier_runs.h"
#include "launcher/foresight/forecast.h"
#include "launcher/foresight/measured_runs.h"
#include "launcher/foresight/question.h"
#include "runtime/plan/model/network.h"

namespace shardrun::launcher {

using base::Code;
using base::Error;
using base::Result;

namespace {

// Returns the peak of one rank on hardware that `ranks` ranks share; nothing where it has no path for the job's type.
std::optional<plan::PeakRate> datasheet_peak(const spec::JobSpec& spec, const PeakTflops& peak, double ranks,
                                             const std::string& whose) {
  const bool bf16 = spec.precision.parameters == spec::DType::kBf16;
  const double tflops = bf16 ? peak.bf16 : peak.fp32;
  if (tflops <= 0.0) return std::nullopt;
  if (spec.precision.fp8 && peak.fp8 > 0.0) {
    const ModelShape model = shape_of(plan::network_of(spec));
    const double share = model.linear_flops_per_token() / model.flops_per_token(spec.data.sequence_length);
    const double mixed = 1.0 / (share / peak.fp8 + (1.0 - share) / tflops);
    return plan::PeakRate{
        "datasheet", mixed * 1e12 / ranks,
        fmt::format("datasheet of {}, fp8 in {:.1f} % of the FLOPs and bf16", whose, 100.0 * share)};
  }
  return plan::PeakRate{"datasheet", tflops * 1e12 / ranks,
                        fmt::format("datasheet of {}, {}", whose, name_of(spec.precision.parameters))};
}

// Returns the peak of a rank on the machine that a job names, as far as the built-in trainer computes there.
std::optional<plan::PeakRate> peak_of_machine(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  const auto instance = machine_of(spec);
  if (!instance || !*instance) return std::nullopt;
  if (spec.resources.device == spec::DeviceKind::kCpu)
    return datasheet_peak(spec, (*instance)->cpu_peak, plan.ranks_per_node, (*instance)->type);
  const auto& unit = (*instance)->accelerator;
  if (!unit || unit->maker != "nvidia") return std::nullopt;
  return datasheet_peak(spec, unit->peak, spec.resources.ranks_per_gpu, (*instance)->type);
}

}  // namespace

std::optional<plan::PeakRate> peak_of_device(const spec::JobSpec& spec, const std::string& device) {
  if (spec.resources.device == spec::DeviceKind::kCpu) return std::nullopt;
  const Catalogue catalogue = built_in_catalogue();
  const Accelerator* const unit = catalogue.find_accelerator(device);
  if (unit == nullptr) return std::nullopt;
  return datasheet_peak(spec, unit->peak, spec.resources.ranks_per_gpu, unit->name);
}

namespace {

// A step, how sure it is, and what it rests on.
struct Foreseen {
  StepForecast step;
  Estimate estimate;
  std::vector<std::string> learned_from;
  std::string basis;
};

void set_step(record::Prediction& prediction, Foreseen foreseen) {
  const double seconds = foreseen.step.seconds / foreseen.estimate.factor;
  const Interval rate = foreseen.estimate.interval();
  prediction.step_seconds = seconds;
  prediction.tokens_per_second = foreseen.step.tokens / seconds;
  prediction.step_interval = std::vector{seconds / rate.high, seconds / rate.low};
  prediction.basis = std::move(foreseen.basis);
  if (foreseen.learned_from.empty()) return;
  prediction.basis_seconds = foreseen.step.seconds;
  prediction.learned_from = std::move(foreseen.learned_from);
}

// The runs beside this one, under the same scheduler, which have ended before.
std::vector<EarlierRun> runs_beside(const record::LaunchPlan& plan, double since) {
  std::vector<EarlierRun> runs =
      earlier_runs(std::filesystem::path(plan.run_directory).parent_path().string());
  std::erase_if(runs, [&](const EarlierRun& run) {
    return run.directory == plan.run_directory || run.plan.scheduler != plan.scheduler || run.started < since;
  });
  return runs;
}

// On a calibrated machine; what was measured before the calibration may have run on another network.
Result<Foreseen> foresee_on_cpus(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                 const std::string& path, const MeasuredMachine& machine) {
  ASSIGN_OR_RETURN(auto step, forecast_measured(spec, plan, machine));
  ASSIGN_OR_RETURN(const auto run, run_on_calibrated(spec, plan));
  const record::Calibration& calibration = machine.calibration();
  Learned learned =
      learn(runs_beside(plan, std::max(calibration.measured_at, calibration.network_measured_at)), machine);
  return Foreseen{step, estimate_replayed(run, learned.misses), std::move(learned.from), path};
}

// On a machine of the catalogue, by the constants of published runs.
Result<Foreseen> foresee_on_gpus(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  ASSIGN_OR_RETURN(const auto instance, machine_of(spec));
  if (!instance)
    return Error(Code::kInvalid,
                 "the job computes on GPUs of a machine that it does not name; write [cluster] instance");
  LoadedSpec loaded;
  loaded.spec = spec;
  const PlanOptions options;
  ASSIGN_OR_RETURN(auto question, question_of(options, loaded, instance->type));
  question.nodes = plan.nodes;
  question.machine.per_node = plan.ranks_per_node;
  const auto layout = layout_as_written(spec, question);
  if (!layout) return Error(Code::kInvalid, "its batch or sharding does not divide over its ranks");
  std::vector<MeasuredRun> measured;
  std::vector<std::string> from;
  for (const EarlierRun& earlier : runs_beside(plan, 0.0)) {
    auto run = measured_run(options, loaded, earlier.directory);
    if (!run) continue;
    measured.push_back(std::move(*run));
    from.push_back(earlier.directory);
  }
  const Belief belief(fitted_constants(), std::move(measured));
  const Run run = run_of(question, *layout);
  return Foreseen{forecast_step(run.machine, run.model, run.layout, run.traits, belief.constants()),
                  belief.estimate(run), std::move(from), "published runs"};
}

void predict_on_cpus(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                     record::Prediction& prediction) {
  const auto path = calibration_path(spec);
  if (!path) return;
  const auto machine = load_calibration(*path);
  if (!machine || !*machine) {
    prediction.unknown_because =
        machine ? "nobody has calibrated here: " + *path + " is not there" : machine.error().to_string();
    return;
  }
  const double share = (*machine)->cpu_share(plan.nodes, plan.ranks_per_node);
  if (const double peak = (*machine)->peak(name_of(spec.precision.parameters)); peak > 0.0) {
    prediction.peaks.insert(prediction.peaks.begin(),
                            {"measured", peak * share,
                             fmt::format("{} matrix products measured by shardrun calibrate, {}",
                                         name_of(spec.precision.parameters), *path)});
  }
  auto foreseen = foresee_on_cpus(spec, plan, *path, **machine);
  if (foreseen) {
    set_step(prediction, std::move(*foreseen));
  } else {
    prediction.unknown_because = foreseen.error().to_string();
  }
}

}  // namespace

record::Prediction predict_run(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  record::Prediction prediction;
  if (spec.program.trainer.empty()) return prediction;
  auto datasheet = peak_of_machine(spec, plan);
  if (datasheet) prediction.peaks.push_back(std::move(*datasheet));
  if (spec.resources.device == spec::DeviceKind::kCpu) {
    predict_on_cpus(spec, plan, prediction);
    return prediction;
  }
  auto foreseen = foresee_on_gpus(spec, plan);
  if (foreseen) {
    set_step(prediction, std::move(*foreseen));
  } else {
    prediction.unknown_because = foreseen.error().to_string();
  }
  return prediction;
}

}  // namespace shardrun::launcher

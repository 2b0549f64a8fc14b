#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "launcher/plan/batch.h"
#include "launcher/plan/node_memory.h"
#include "launcher/plan/precompile.h"
#include "launcher/verbs/calibration_file.h"
#include "launcher/verbs/forecast.h"
#include "launcher/verbs/verbs.h"
#include "launcher/view/progress.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"
#include "runtime/plan/model_plan.h"
#include "runtime/record/model_plan_json.h"

namespace shardrun::launcher {
namespace {

std::string batch_json(const plan::BatchPlan& batch) {
  return fmt::format(
      "{{\"global_batch\": {}, \"micro_batch\": {}, \"gradient_accumulation\": {}, \"data_parallel\": {}}}",
      batch.global_batch, batch.micro_batch, batch.gradient_accumulation, batch.data_parallel);
}

void print_model(const plan::ModelPlan& model, int64_t tokens_per_step) {
  fmt::print("a step       {} tokens, {:.4g} TFLOP\n", with_thousands(tokens_per_step),
             static_cast<double>(tokens_per_step) * model.flops_per_token.causal * 1e-12);
  fmt::print("model        {} parameters in {} blocks\n", with_thousands(model.parameters), model.blocks);
  fmt::print("sharding     {} ranks share a copy of the state, {} copies, {} ranks share each matrix\n",
             model.shard_degree, model.replicas, model.tensor_parallel);
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
  if (memory.offloaded > 0)
    rows.insert(rows.end() - 1,
                {"offloaded", memory.offloaded, "moments and activations, pinned on the host"});
  if (on_gpu) {
    rows.push_back({"on the GPU", memory.gpu_total(), "of the total"});
    rows.push_back({"on the host", memory.host_total(), "the rest of it"});
  }
  fmt::print("a rank holds\n");
  for (const auto& row : rows) fmt::print("  {:<11}{:>12}  {}\n", row.kind, bytes_text(row.bytes), row.what);
  if (memory.context > 0)
    fmt::print("  {:<11}{:>12}  of the total: CUDA and its libraries, on the GPU\n", "context",
               bytes_text(memory.context));
  if (memory.in_files > 0)
    fmt::print("  {:<11}{:>12}  not part of the total\n", "in files", bytes_text(memory.in_files));
}

// What the job's own layout takes on the machine that somebody calibrated, and the best one there.
struct OnMeasuredMachine {
  std::string basis;
  StepForecast written;
  MeasuredChoice best;
};

// Absent where nobody has calibrated, or where nothing can be said of the job.
std::optional<OnMeasuredMachine> on_measured_machine(const spec::JobSpec& spec,
                                                     const record::LaunchPlan& plan) {
  if (spec.program.trainer.empty()) return std::nullopt;
  const auto path = calibration_path(spec);
  if (!path) return std::nullopt;
  const auto machine = load_calibration(*path);
  if (!machine) warn({machine.error().to_string()});
  if (!machine || !*machine) return std::nullopt;
  const auto written = forecast_measured(spec, plan, **machine);
  if (!written) {
    warn({"no prediction from " + *path + ": " + written.error().to_string()});
    return std::nullopt;
  }
  const auto best = best_measured(spec, plan, **machine);
  if (!best) return std::nullopt;
  return OnMeasuredMachine{*path, *written, *best};
}

void print_measured(const OnMeasuredMachine& found) {
  const auto line = [](const char* name, const StepForecast& step) {
    fmt::print("{:<13}step {:.4f} s, {} tokens/s: kernels {:.4f} s, waits {:.4f} s, optimizer {:.4f} s\n",
               name, step.seconds, with_thousands(std::llround(step.tokens_per_second())),
               step.phases.compute, step.phases.exposed, step.phases.optimizer);
  };
  fmt::print("predicted    from {}\n", found.basis);
  line("as written", found.written);
  line("best", found.best.step);
  fmt::print("             {} of {} layouts\n", layout_text(found.best.layout), found.best.combinations);
}

std::string measured_json(const OnMeasuredMachine& found) {
  return fmt::format("{{\"basis\": \"{}\", \"written\": {{{}}}, \"combinations\": {}, {}, {}}}", found.basis,
                     phases_json(found.written), found.best.combinations, layout_json(found.best.layout),
                     phases_json(found.best.step));
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

}  // namespace

int plan(const PlanOptions& options, const CommonOptions& common) {
  auto loaded = load_spec(options.spec.path, options.spec.overrides);
  if (!loaded) return fail(loaded.error(), common);
  const spec::JobSpec& spec = loaded->spec;
  const bool slurm = spec.cluster.scheduler == spec::SchedulerKind::kSlurm;
  auto context = plan_context(spec, {}, loaded->overrides, slurm ? "slurm" : "local");
  if (!context) return fail(context.error(), common);
  auto solved = solve_launch_plan(spec, *context);
  if (!solved) return fail(solved.error(), common);
  std::optional<plan::ModelPlan> model;
  if (spec.program.command.empty()) {
    auto planned = plan::job_memory(spec, solved->batch, rank_place(*solved));
    if (!planned) return fail(planned.error(), common);
    model = *planned;
  }
  std::optional<ForecastReport> forecast;
  if (wants_forecast(options, *loaded)) {
    auto predicted = forecast_job(options, spec);
    if (!predicted) return fail(predicted.error(), common);
    forecast = std::move(predicted).value();
    if (const auto drawn = draw(options, *forecast); !drawn) return fail(drawn.error(), common);
  }
  const auto measured = forecast ? std::nullopt : on_measured_machine(spec, *solved);
  const plan::BatchPlan& batch = solved->batch;
  const int64_t tokens_per_step = batch.global_batch * spec.data.sequence_length;
  if (common.json) {
    fmt::print("{{\"name\": \"{}\", \"nodes\": {}, \"ranks_per_node\": {}, \"world_size\": {}, \"batch\": {}",
               spec.name, solved->nodes, solved->ranks_per_node, solved->world_size(), batch_json(batch));
    if (model)
      fmt::print(", \"tokens_per_step\": {}, \"model\": {}", tokens_per_step, record::to_json(*model));
    if (forecast) fmt::print(", \"forecast\": {}", forecast_json(*forecast));
    if (measured) fmt::print(", \"calibrated\": {}", measured_json(*measured));
    fmt::print("}}\n");
    return contract::kExitDone;
  }
  fmt::print("job          {}\n", spec.name);
  fmt::print("ranks        {} nodes × {} = {}, {} CPUs each\n", solved->nodes, solved->ranks_per_node,
             solved->world_size(), solved->cpus_per_rank);
  fmt::print("batch        {}\n", describe_batch(batch));
  if (compiles_by_command(spec)) {
    const record::LaunchPlan compile = compile_plan(spec, *solved);
    fmt::print("precompile   {} on {} nodes, {} CPUs each, into {}\n",
               fmt::join(spec.precompile.command, " "), compile.nodes, compile.cpus_per_rank, context->cache);
  }
  if (model) print_model(*model, tokens_per_step);
  if (forecast) print_forecast(*forecast);
  if (measured) print_measured(*measured);
  return contract::kExitDone;
}

}  // namespace shardrun::launcher

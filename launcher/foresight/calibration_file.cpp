#include "launcher/foresight/calibration_file.h"

#include <fmt/format.h>

#include "launcher/forecast/memory.h"
#include "launcher/forecast/replay.h"
#include "launcher/forecast/search.h"
#include "launcher/plan/node_memory.h"
#include "launcher/runs/common.h"
#include "runtime/base/io.h"
#include "runtime/base/state_folder.h"
#include "runtime/contract/rank_env.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/model/network.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr const char* kOfCpus = "shardrun calibrate measures CPUs, the job computes on GPUs";

Result<ReplayQuestion> question_of(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  if (spec.resources.device == spec::DeviceKind::kGpu) return Error(Code::kInvalid, kOfCpus);
  if (spec.sharding.pipeline_parallel > 1)
    return Error(Code::kInvalid, "the calibration has no measurements of stages of a pipeline");
  if (spec.sharding.context_parallel > 1)
    return Error(Code::kInvalid, "the calibration has no measurements of ranks that share a sequence");
  ASSIGN_OR_RETURN(const auto mesh, plan::solve_mesh(spec, plan.world_size(), plan.ranks_per_node));
  ReplayQuestion question;
  question.model = shape_of(plan::network_of(spec));
  question.ranks_per_node = plan.ranks_per_node;
  question.prefetch = spec.sharding.prefetch;
  question.wrap = spec.sharding.wrap;
  question.reduce_bytes = size_of(spec.precision.reduce);
  Layout& layout = question.layout;
  layout.nodes = plan.nodes;
  layout.shard_degree = mesh.shard_degree;
  layout.tensor_parallel = mesh.tensor_parallel;
  layout.strategy = spec.sharding.strategy;
  layout.micro_batch = plan.batch.micro_batch;
  layout.accumulation = plan.batch.gradient_accumulation;
  layout.global_batch = plan.batch.global_batch;
  layout.sequence_length = spec.data.sequence_length;
  layout.checkpointing = spec.memory.activation_checkpointing;
  layout.activation_offload = spec.memory.activation_offload;
  layout.optimizer_offload = spec.memory.optimizer_offload;
  return question;
}

}  // namespace

Result<Run> run_on_calibrated(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  ASSIGN_OR_RETURN(const auto question, question_of(spec, plan));
  return Run{Machine(), question.model, question.layout, Traits()};
}

Result<std::string> calibration_path(const spec::JobSpec& spec) {
  if (!spec.cluster.config.empty()) {
    std::string path = absolute_path(spec.cluster.config);
    if (path.ends_with(".toml")) path.resize(path.size() - 5);
    return path + ".calibration.toml";
  }
  ASSIGN_OR_RETURN(auto folder, base::state_folder());
  std::string name = contract::host_name();
  if (wants_slurm(spec))
    name = spec.resources.partition.empty() ? "slurm" : "slurm-" + spec.resources.partition;
  return fmt::format("{}/calibration/{}.toml", folder, name);
}

Result<std::optional<MeasuredMachine>> load_calibration(const std::string& path) {
  const auto text = base::read_file(path, /*limit_bytes=*/1 << 22);
  if (!text && text.error().code() == Code::kNotFound) return std::optional<MeasuredMachine>();
  if (!text) return text.error();
  ASSIGN_OR_RETURN(const auto calibration, record::parse_calibration(*text, path));
  auto machine = MeasuredMachine::of(calibration);
  if (!machine) return std::move(machine).error().context(path);
  return std::optional<MeasuredMachine>(std::move(*machine));
}

Result<StepForecast> forecast_measured(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                       const MeasuredMachine& machine) {
  const record::Calibration& calibration = machine.calibration();
  if (plan.cpus_per_rank != calibration.cpus_per_rank)
    return Error(Code::kInvalid, fmt::format("calibrated with {} CPUs a rank, the job has {}",
                                             calibration.cpus_per_rank, plan.cpus_per_rank));
  if (plan.nodes > 1 && plan.ranks_per_node != calibration.ranks_per_node)
    return Error(Code::kInvalid,
                 fmt::format("collectives are calibrated with {} ranks a node, the job has {}",
                             calibration.ranks_per_node, plan.ranks_per_node));
  if (spec.precision.parameters != spec::DType::kBf16)
    return Error(Code::kInvalid, "steps are calibrated in bf16, the job computes in fp32");
  ASSIGN_OR_RETURN(auto question, question_of(spec, plan));
  return replay_step(machine, question);
}

Result<MeasuredChoice> best_measured(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                     const MeasuredMachine& machine) {
  using spec::Checkpointing;
  ASSIGN_OR_RETURN(const auto written, question_of(spec, plan));
  const int64_t world = plan.world_size(), local = plan.batch.global_batch / world;
  const plan::RankOptions job = plan::rank_options(spec, plan.batch);
  const plan::RankPlace place = rank_place(plan);
  const double room = static_cast<double>(machine.calibration().memory_bytes) * kUsableMemory /
                      static_cast<double>(plan.ranks_per_node);
  if (plan.batch.global_batch % world != 0)
    return Error(Code::kInvalid,
                 fmt::format("no layout gives each of {} ranks as much of a batch of {} sequences", world,
                             plan.batch.global_batch));
  std::optional<MeasuredChoice> best;
  std::optional<Error> why;
  int64_t combinations = 0;
  for (const int64_t degree : divisors(world)) {
    for (const int64_t micro : micro_batches(local)) {
      for (const Checkpointing kind :
           {Checkpointing::kNone, Checkpointing::kSelective, Checkpointing::kFull}) {
        ReplayQuestion question = written;
        Layout& layout = question.layout;
        layout.shard_degree = degree;
        layout.tensor_parallel = 1;
        layout.strategy = spec::strategies_of(degree, world).front();
        layout.micro_batch = micro;
        layout.accumulation = local / micro;
        layout.checkpointing = kind;
        ++combinations;
        if (static_cast<double>(planned_memory(job, layout, place).total()) > room) continue;
        auto step = replay_step(machine, question);
        if (!step) {
          why = std::move(step).error();
        } else if (!best || step->seconds < best->step.seconds) {
          best = MeasuredChoice{layout, *step, 0};
        }
      }
    }
  }
  if (best) best->combinations = combinations;
  if (best) return std::move(*best);
  if (why) return std::move(*why);
  return Error(Code::kInvalid, fmt::format("none of {} layouts fits the memory of a node", combinations));
}

}  // namespace shardrun::launcher

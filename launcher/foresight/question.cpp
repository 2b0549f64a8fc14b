#include "launcher/foresight/question.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "launcher/cluster/job_instance.h"
#include "launcher/foresight/software.h"
#include "launcher/plan/batch.h"
#include "launcher/plan/node_memory.h"
#include "runtime/base/io.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/model/network.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {

using base::Code;
using base::Error;
using base::Result;

namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kHostPci4 = 12e9,
                 kHostPci5 = 50e9;  // bytes/s of one accelerator; p4d's pairs share a switch
constexpr double kNoLink = 25e9;    // of accelerators that only PCIe connects

// Kinds of accelerators that runs were published on.
constexpr std::string_view kPublished[] = {"a100", "h100", "h200", "trainium-trn1"};

// Returns what lies on an accelerator: a GPU's memory, where the trainer computes on it.
int64_t accelerator_bytes(const plan::MemoryPlan& memory) {
  return memory.on_gpu != 0 ? memory.gpu_total() : memory.total();
}

bool fits(const plan::MemoryPlan& memory, const Machine& machine) {
  if (static_cast<double>(accelerator_bytes(memory)) > machine.memory_bytes * kUsableMemory) return false;
  if (memory.on_gpu == 0 || machine.host_memory == 0.0) return true;
  return static_cast<double>(memory.host_total()) * machine.per_node <= machine.host_memory * kUsableMemory;
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

// The price of a node: of --dollars-per-hour, or of the table of --prices.
Result<double> price_of(const PlanOptions& options, const std::string& machine) {
  if (options.prices.empty()) return options.dollars_per_hour;
  ASSIGN_OR_RETURN(const auto text, base::read_file(options.prices));
  ASSIGN_OR_RETURN(const auto table, spec::parse_toml(text, options.prices));
  const spec::TomlValue* found = table.find(machine);
  const double price = found == nullptr                                 ? 0.0
                       : found->kind == spec::TomlValue::Kind::kInteger ? static_cast<double>(found->integer)
                                                                        : found->floating;
  if (!(price > 0.0) || !std::isfinite(price))
    return Error(Code::kInvalid,
                 fmt::format("{}: no price of {} above 0; write \"{}\" = dollars of a node for an hour",
                             options.prices, machine, machine));
  return price;
}

// The catalogue, with the types of --machine-file in front.
Result<Catalogue> catalogue_of(const PlanOptions& options) {
  Catalogue all = built_in_catalogue();
  if (options.machine_file.empty()) return all;
  ASSIGN_OR_RETURN(const auto text, base::read_file(options.machine_file));
  ASSIGN_OR_RETURN(auto own, parse_catalogue(text, options.machine_file));
  own.instances.insert(own.instances.end(), all.instances.begin(), all.instances.end());
  return own;
}

}  // namespace

Result<Machine> machine_of(const Instance& instance) {
  if (!instance.accelerator)
    return Error(Code::kInvalid,
                 fmt::format("{} has no accelerators; predictions need a type that has some, e.g. "
                             "p4d.24xlarge, p5.48xlarge or trn1.32xlarge",
                             instance.type));
  const Accelerator& chip = *instance.accelerator;
  if (chip.peak.bf16 <= 0.0)
    return Error(Code::kInvalid,
                 fmt::format("{}: its accelerator {} has no bf16 peak, and predictions are of bf16; "
                             "name another type",
                             instance.type, chip.name));
  const double ranks = chip.ranks;
  Machine machine;
  machine.name = instance.type;
  const bool ampere = chip.name.starts_with("a10") || chip.name.starts_with("l4");
  machine.generation = chip.maker == "aws" ? Generation::kTrainium
                       : ampere            ? Generation::kAmpere
                                           : Generation::kHopper;
  machine.published = std::any_of(std::begin(kPublished), std::end(kPublished),
                                  [&](std::string_view kind) { return chip.name.starts_with(kind); });
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

// Whether the built-in trainer refuses what a layout has.
bool is_refused(const spec::JobSpec& spec, const Question& question, const Layout& layout) {
  return (layout.tensor_parallel > 1 && !question.model.architecture->sliceable) ||
         (layout.optimizer_offload && spec.optimizer.kind == spec::OptimizerKind::kLamb);
}

OwnMemory own_memory(const spec::JobSpec& spec, const Question& question, const Layout& layout) {
  const plan::RankPlace place = rank_place({.nodes = static_cast<int>(question.nodes),
                                            .ranks_per_node = question.machine.per_node,
                                            .cpus_per_rank = spec.resources.cpus_per_rank});
  const plan::MemoryPlan memory = planned_memory(plan::rank_options(spec, {}), layout, place);
  return {accelerator_bytes(memory), fits(memory, question.machine)};
}

// The layout that the spec asks for; nullopt where its mesh or batch cannot be solved on the machine.
std::optional<Layout> layout_as_written(const spec::JobSpec& spec, const Question& question) {
  const int64_t world = question.nodes * question.machine.per_node;
  const auto mesh = plan::solve_mesh(spec, world, question.machine.per_node);
  if (!mesh) return std::nullopt;
  // Stages of another program's pipeline and ranks that share a sequence come out of the spec's data parallel ranks.
  const Given& given = question.given;
  const int64_t ranks = int64_t{mesh->data_parallel()} * mesh->pipeline_parallel, stages = given.pipeline;
  if (ranks % (stages * given.context_parallel) != 0) return std::nullopt;
  if (ranks / stages % given.expert_parallel != 0) return std::nullopt;
  const auto batch = solve_batch(spec, static_cast<int>(ranks / (stages * given.context_parallel)));
  if (!batch) return std::nullopt;
  Layout layout;
  layout.nodes = question.nodes;
  layout.shard_degree = std::min(int64_t{mesh->shard_degree}, ranks / stages);
  layout.given = question.given;
  layout.tensor_parallel = mesh->tensor_parallel;
  layout.strategy = spec.sharding.strategy;
  layout.micro_batch = batch->micro_batch;
  layout.accumulation = batch->gradient_accumulation;
  layout.global_batch = batch->global_batch;
  layout.sequence_length = question.sequence_length;
  layout.checkpointing = spec.memory.activation_checkpointing;
  layout.activation_offload = spec.memory.activation_offload;
  layout.optimizer_offload = spec.memory.optimizer_offload;
  layout.fp8 = question.fp8;
  return layout;
}

Result<Question> question_of(const PlanOptions& options, const LoadedSpec& loaded,
                             const std::string& machine) {
  const spec::JobSpec& spec = loaded.spec;
  ASSIGN_OR_RETURN(const auto catalogue, catalogue_of(options));
  spec::JobSpec named = spec;
  named.cluster.instance = machine;
  named.origins["cluster.instance"] = "--machine";
  ASSIGN_OR_RETURN(const auto instance, find_job_instance(named, catalogue));
  ASSIGN_OR_RETURN(auto known, machine_of(*instance));
  const bool own = options.software.empty();
  if (own) RETURN_IF_ERROR(check_own(loaded, *instance));
  ASSIGN_OR_RETURN(const auto software, parse_software(own ? "fsdp" : options.software));
  Question question;
  question.machine = std::move(known);
  ASSIGN_OR_RETURN(question.machine.dollars_per_hour, price_of(options, machine));
  if (spec.resources.device == spec::DeviceKind::kGpu && loaded.says("resources.ranks_per_node"))
    question.machine.per_node = std::min(question.machine.per_node, spec.resources.ranks_per_node);
  question.model = shape_of(plan::network_of(spec));
  if (question.model.adapted)
    return base::Error(
        base::Code::kInvalid,
        spec.origin("lora") + ": forecasts know no adapters yet; ask about the job without [lora]");
  if (question.model.experts > 0)
    return base::Error(base::Code::kInvalid,
                       spec.origin("model.experts") +
                           ": forecasts know no experts of a job yet; ask about the job without them");
  if (software.gpt_blocks) question.model.ffn_matrices = 2;
  question.traits = software.traits;
  question.given = software.given;
  if (options.software.empty() && spec.sharding.context_parallel > 1) {
    question.given.context_parallel = spec.sharding.context_parallel;
    question.given.gathers_context = true;
  }
  if (own) {
    question.given.pipeline = spec.sharding.pipeline_parallel;
    question.given.pipeline_chunks = spec.sharding.virtual_stages;
  }
  question.tensor_parallel = software.tensor_parallel;
  question.as_offered = !own;
  question.traits.streams_moments = own;
  question.traits.delayed_scales = own;
  if (own) question.traits.reduce_bytes = size_of(spec.precision.reduce);
  question.fp8 = spec.precision.fp8;
  question.constants = fitted_constants();
  question.nodes = spec.resources.nodes;
  question.sequence_length = spec.data.sequence_length;
  // The built-in trainer gives each rank whole heads of keys and values; others have a head on several ranks.
  question.heads = own && spec.model.kv_heads > 0 ? spec.model.kv_heads : spec.model.heads;
  return question;
}

}  // namespace shardrun::launcher

#include "launcher/cluster/job_instance.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {

namespace {

using base::Code;
using base::Error;
using base::Result;
using spec::DeviceKind;

bool has_gpus(const Instance& instance) {
  return instance.accelerator && instance.accelerator->maker == "nvidia";
}

// Where the spec names its machine.
std::string machine_origin(const spec::JobSpec& spec) {
  return spec.origin(spec.cluster.instance.empty() ? "cluster.config" : "cluster.instance");
}

// GPUs that the spec asks for, against those of the machine.
Result<void> check_gpus(const spec::JobSpec& spec, const Instance& instance) {
  const int there = has_gpus(instance) ? instance.accelerators : 0;
  if (spec.resources.gpus_per_node > there)
    return Error(Code::kInvalid,
                 fmt::format("{}: gpus_per_node = {}, but {} has {}; correct it, or name another instance",
                             spec.origin("resources.gpus_per_node"), spec.resources.gpus_per_node,
                             instance.type, there == 0 ? "no NVIDIA GPU" : std::to_string(there)));
  const bool on_gpu = spec.resources.device == DeviceKind::kGpu;
  if (on_gpu && there == 0)
    return Error(
        Code::kInvalid,
        fmt::format(
            "{}: device = \"gpu\", but {} has no NVIDIA GPU; name another instance, or set device = \"cpu\"",
            spec.origin("resources.device"), instance.type));
  return {};
}

// What the built-in trainer computes with there, where the spec does not say it.
Result<DeviceKind> device_of(const spec::JobSpec& spec, const Instance& instance) {
  if (spec.origins.contains("resources.device")) return spec.resources.device;
  if (!instance.accelerator) return DeviceKind::kCpu;
  if (!has_gpus(instance))
    return Error(Code::kInvalid,
                 fmt::format("{}: the built-in trainer does not compute on the {} of {}; write a [program] "
                             "command that does, or set [resources] device = \"cpu\" to train on its CPUs",
                             machine_origin(spec), instance.accelerator->name, instance.type));
  if (spec.origins.contains("resources.gpus_per_node") && spec.resources.gpus_per_node == 0)
    return Error(
        Code::kInvalid,
        fmt::format(
            "{}: without GPUs the built-in trainer would train on the CPUs of {}; remove the key, or set "
            "device = \"cpu\", too",
            spec.origin("resources.gpus_per_node"), instance.type));
  return DeviceKind::kGpu;
}

// Ranks of a node: one for each GPU, or as many as share one; of machines without GPUs what the catalogue counts.
int ranks_of(const spec::JobSpec& spec, const Instance& instance, int gpus, bool on_gpu) {
  if (spec.origins.contains("resources.ranks_per_node")) return spec.resources.ranks_per_node;
  if (gpus == 0) return instance.ranks();
  return on_gpu ? gpus * spec.resources.ranks_per_gpu : gpus;
}

}  // namespace

Result<std::vector<std::string>> instance_overrides(const spec::JobSpec& spec, const Instance& instance) {
  RETURN_IF_ERROR(check_gpus(spec, instance));
  const bool trains = !spec.program.trainer.empty();
  std::vector<std::string> overrides;
  const auto fill = [&](const std::string& key, const std::string& value) {
    if (!spec.origins.contains(key)) overrides.push_back(key + "=" + value);
  };
  bool on_gpu = false;
  if (trains) {
    ASSIGN_OR_RETURN(const auto device, device_of(spec, instance));
    on_gpu = device == DeviceKind::kGpu;
    fill("resources.device", on_gpu ? "gpu" : "cpu");
  }
  int gpus = spec.resources.gpus_per_node;
  if ((on_gpu || !trains) && !spec.origins.contains("resources.gpus_per_node")) {
    gpus = has_gpus(instance) ? instance.accelerators : 0;
    fill("resources.gpus_per_node", std::to_string(gpus));
  }
  const int ranks = ranks_of(spec, instance, gpus, on_gpu);
  fill("resources.ranks_per_node", std::to_string(ranks));
  fill("resources.cpus_per_rank", std::to_string(std::max(1, instance.cores() / ranks)));
  const bool own_gpus = spec.resources.nodes * ranks > 1 && spec.resources.ranks_per_gpu == 1;
  if (on_gpu) fill("communication.plugin", own_gpus ? "nccl" : "ofi");
  const bool between_nodes =
      spec.resources.nodes > 1 && (spec.cluster.scheduler == spec::SchedulerKind::kSlurm ||
                                   spec.cluster.scheduler == spec::SchedulerKind::kMpirun);
  if (between_nodes && instance.efa_interfaces > 0 && trains) fill("communication.provider", "efa");
  return overrides;
}

base::Result<const Instance*> find_job_instance(const spec::JobSpec& spec, const Catalogue& catalogue) {
  if (const Instance* found = catalogue.find(spec.cluster.instance)) return found;
  const std::string near = spec::nearest_name(spec.cluster.instance, catalogue.types());
  return base::Error(
      base::Code::kInvalid,
      fmt::format("{}: cluster.instance = \"{}\" is not in the catalogue; {}",
                  spec.origin("cluster.instance"), spec::printable(spec.cluster.instance),
                  near.empty() ? "cluster-configs/instances.toml lists what is; for any other, say "
                                 "resources.ranks_per_node and cpus_per_rank in its place"
                               : fmt::format("did you mean \"{}\"?", near)));
}

base::Result<const Instance*> find_queue_instance(const spec::JobSpec& spec, const ClusterConfig& config,
                                                  const Catalogue& catalogue) {
  const std::string& partition = spec.resources.partition;
  std::string names;
  for (const Queue& queue : config.queues) {
    if (partition.empty() || queue.name == partition)
      return catalogue.find(queue.resources.front().instances.front());
    names += (names.empty() ? "" : ", ") + queue.name;
  }
  return base::Error(
      base::Code::kInvalid,
      fmt::format("{}: cluster \"{}\" has no queue \"{}\"; its queues are {}",
                  spec.origin("resources.partition"), config.name, spec::printable(partition), names));
}

}  // namespace shardrun::launcher

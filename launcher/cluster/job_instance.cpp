#include "launcher/cluster/job_instance.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {

std::vector<std::string> instance_overrides(const spec::JobSpec& spec, const Instance& instance) {
  std::vector<std::string> overrides;
  int ranks = spec.resources.ranks_per_node;
  if (!spec.origins.contains("resources.ranks_per_node")) {
    ranks = instance.ranks();
    overrides.push_back(fmt::format("resources.ranks_per_node={}", ranks));
  }
  if (!spec.origins.contains("resources.cpus_per_rank"))
    overrides.push_back(fmt::format("resources.cpus_per_rank={}", std::max(1, instance.cores() / ranks)));
  const bool between_nodes =
      spec.resources.nodes > 1 && (spec.cluster.scheduler == spec::SchedulerKind::kSlurm ||
                                   spec.cluster.scheduler == spec::SchedulerKind::kMpirun);
  if (between_nodes && instance.efa_interfaces > 0 && !spec.program.trainer.empty() &&
      !spec.origins.contains("communication.provider"))
    overrides.emplace_back("communication.provider=efa");
  const bool compiles_for_gpus = spec.precompile.enabled && !spec.program.trainer.empty() &&
                                 spec.resources.device == spec::DeviceKind::kGpu && instance.accelerator;
  if (compiles_for_gpus && spec.precompile.architecture.empty() &&
      !instance.accelerator->architecture.empty())
    overrides.push_back("precompile.architecture=" + instance.accelerator->architecture);
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

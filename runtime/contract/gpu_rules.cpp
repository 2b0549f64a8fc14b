#include "runtime/contract/gpu_rules.h"

#include <fmt/format.h>

namespace shardrun::contract {
namespace {

// Settings that exist for the CPU alone so far.
void refuse_cpu_only(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  SectionReader memory(document, "memory", reading), precompile(document, "precompile", reading);
  const struct {
    bool is_set;
    std::string origin, what, mend;
  } kCpuOnly[] = {{spec.memory.optimizer_offload, memory.origin("optimizer_offload"), "optimizer_offload",
                   "shard the state over more ranks"},
                  {spec.memory.activation_offload, memory.origin("activation_offload"), "activation_offload",
                   "use activation_checkpointing"},
                  {spec.precompile.enabled, precompile.origin(), "[precompile]", "remove the section"}};
  for (const auto& setting : kCpuOnly) {
    if (!setting.is_set) continue;
    return reading.fail(setting.origin, setting.what + " does not run on GPUs yet",
                        setting.mend + ", or set [resources] device = \"cpu\"");
  }
}

}  // namespace

void check_gpu_training(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  if (reading.error) return;
  SectionReader section(document, "resources", reading);
  const ResourcesSpec& resources = spec.resources;
  if (!spec.program.command.empty() && (section.has("device") || section.has("ranks_per_gpu"))) {
    return reading.fail(section.origin(section.has("device") ? "device" : "ranks_per_gpu"),
                        "a command program chooses its device itself", "remove the key");
  }
  if (resources.device == TrainingDevice::kCpu) {
    if (section.has("ranks_per_gpu"))
      reading.fail(section.origin("ranks_per_gpu"), "ranks_per_gpu has no effect on CPUs",
                   "set device = \"gpu\", or remove the key");
    return;
  }
  const int places = resources.gpus_per_node * resources.ranks_per_gpu;
  if (resources.ranks_per_node > places) {
    return reading.fail(
        section.origin("device"),
        fmt::format("ranks_per_node = {}, but gpus_per_node = {} and ranks_per_gpu = {} make room for {}",
                    resources.ranks_per_node, resources.gpus_per_node, resources.ranks_per_gpu, places),
        resources.gpus_per_node == 0 ? "set gpus_per_node"
                                     : "lower ranks_per_node, or let ranks share GPUs with ranks_per_gpu");
  }
  refuse_cpu_only(document, reading, spec);
}

}  // namespace shardrun::contract

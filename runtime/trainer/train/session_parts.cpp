#include "runtime/trainer/train/session_parts.h"

#include <omp.h>
#include <unistd.h>

#include "runtime/trainer/kernels/workspace.h"

namespace shardrun::train {

shard::EngineOptions engine_options(const SessionOptions& options, kernels::Backend& backend) {
  return {plan::state_options(options), options.reduce, &backend};
}

model::ModelOptions model_options(const SessionOptions& options, const Groups& groups,
                                  kernels::Backend& backend) {
  return {plan::model_run(options),
          options.offload_directory,
          groups.tensor,
          groups.experts,
          &backend,
          groups.context};
}

OptimizerOptions optimizer_options(const SessionOptions& options) {
  return {options.optimizer, options.packed_moments, options.optimizer_offload, options.offload_directory,
          options.moment_piece};
}

plan::ModelPlan plan_model(const SessionOptions& options, const plan::Degrees& degrees) {
  const auto cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  plan::CpuNeeds cpu{.threads = ::omp_get_max_threads(), .crowd = {options.ranks_of_node, cpus}};
  if (options.device == kernels::DeviceKind::kCpu)
    cpu.product_bytes = kernels::product_bytes(plan::ops(options, degrees.tensor_parallel));
  return plan::rank_memory(options, degrees, cpu);
}

int64_t prepare_products(const SessionOptions& options, int tensor_parallel) {
  kernels::prepare(plan::ops(options, tensor_parallel));
  return kernels::compiled_products();
}

}  // namespace shardrun::train

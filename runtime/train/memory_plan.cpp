#include "runtime/train/memory_plan.h"

#include <vector>

namespace shardrun::train {

shard::EngineOptions engine_options(const SessionOptions& options) {
  return {.compute = options.compute,
          .prefetch = options.prefetch,
          .accumulates = options.gradient_accumulation > 1 || revisits_blocks(options.model),
          .keeps_parameters = options.keeps_parameters};
}

model::LlamaOptions model_options(const SessionOptions& options, comm::Communicator* tensor) {
  return {.compute = options.compute,
          .micro_batch = static_cast<int>(options.micro_batch),
          .sequence_length = options.sequence_length,
          .checkpointing = options.checkpointing,
          .offload_directory = options.activation_offload_directory,
          .tensor = tensor};
}

contract::ModelPlan plan_model(const SessionOptions& options, int shard_degree, int replicas,
                               int tensor_parallel) {
  contract::ModelPlan plan;
  plan.shard_degree = shard_degree;
  plan.replicas = replicas;
  plan.tensor_parallel = tensor_parallel;
  for (const model::BlockLayout& block : block_layouts(options.model, 0, 1)) {
    plan.parameters += block.elements;
    ++plan.blocks;
  }
  plan.flops_per_token = flops_per_token(options.model, options.sequence_length);

  std::vector<int64_t> elements;
  for (const model::BlockLayout& block : block_layouts(options.model, 0, tensor_parallel))
    elements.push_back(block.elements);
  const shard::ShardLayout layout = shard::make_layout(elements, shard_degree);
  contract::MemoryPlan& memory = plan.memory;
  memory.masters = shard::Arena::bytes_of<float>(layout.flat_shard_elements);
  memory.gradients = memory.masters;
  if (options.compute == kernels::DType::kBf16)
    memory.compute_copy = shard::Arena::bytes_of<uint16_t>(layout.flat_shard_elements);
  memory.gathered = shard::Engine::planned_bytes(layout, engine_options(options)) - memory.masters -
                    memory.gradients - memory.compute_copy;
  memory.moments = Optimizer::planned_bytes(layout);
  if (!options.optimizer.offload_directory.empty()) {
    memory.in_files += memory.moments;
    memory.moments = Optimizer::offload_window(layout);
  }
  const auto activations = activation_bytes(options.model, model_options(options, nullptr), tensor_parallel);
  memory.activations = activations.resident + activations.offload_window;
  memory.in_files += activations.offloaded;
  return plan;
}

}  // namespace shardrun::train

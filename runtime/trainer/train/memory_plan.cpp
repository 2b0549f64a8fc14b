#include "runtime/trainer/train/memory_plan.h"

#include <algorithm>
#include <vector>

#include "runtime/trainer/checkpoint/shard_file.h"
#include "runtime/trainer/comm/planned_bytes.h"
#include "runtime/trainer/kernels/gpu.h"
#include "runtime/trainer/model/fp8_state.h"

namespace shardrun::train {

shard::EngineOptions engine_options(const SessionOptions& options, kernels::Backend& backend) {
  return {{.compute_bytes = kernels::size_of(options.compute),
           .prefetch = options.prefetch,
           .accumulates = options.gradient_accumulation > 1,
           .revisits = revisits_blocks(options.model),
           .keeps_parameters = options.keeps_parameters,
           .keeps_compute_copy = !options.optimizer.offload_to_host},
          &backend};
}

model::ModelOptions model_options(const SessionOptions& options, comm::Communicator* tensor,
                                  kernels::Backend& backend) {
  return {.compute = options.compute,
          .micro_batch = static_cast<int>(options.micro_batch),
          .sequence_length = options.sequence_length,
          .checkpointing = options.checkpointing,
          .offload_directory = options.activation_offload_directory,
          .offload_to_host = options.activation_offload_to_host,
          .tensor = tensor,
          .most_targets = options.micro_batch * most_targets(options.model, options.sequence_length),
          .device = options.device,
          .backend = &backend,
          .fp8 = options.fp8,
          .accumulates = options.gradient_accumulation > 1};
}

int64_t staging_bytes(const plan::ShardLayout& layout, int replicas) {
  return checkpoint::ShardFileWriter::staging_elements(layout, replicas) *
         static_cast<int64_t>(sizeof(float));
}

void prepare_products(const SessionOptions& options, int tensor_parallel) {
  kernels::prepare(ops(options.model, model_options(options, nullptr), tensor_parallel));
}

int64_t gpu_workspace_bytes(const SessionOptions& options, int tensor_parallel) {
  return kernels::gpu_workspace_bytes(ops(options.model, model_options(options, nullptr), tensor_parallel),
                                      hidden(options.model));
}

int64_t cudnn_bytes(const SessionOptions& options, int tensor_parallel) {
  if (options.attention == spec::GpuAttention::kOwn || options.compute != kernels::DType::kBf16 ||
      !std::holds_alternative<model::LlamaConfig>(options.model))
    return 0;
  const int64_t bytes = kernels::cudnn_attention_bytes(
      ops(options.model, model_options(options, nullptr), tensor_parallel).attention);
  const bool is_asked = options.attention == spec::GpuAttention::kCudnn;
  return is_asked || bytes <= kernels::kMostCudnnBytes ? bytes : 0;
}

namespace {

// Of sums over ranks, in the channels of Groups.
int64_t communication_bytes(const SessionOptions& options, const plan::ShardLayout& layout, int replicas,
                            int tensor_parallel) {
  const auto fp32 = static_cast<int64_t>(sizeof(float));
  const int64_t shard = layout.largest_shard_elements * fp32;
  const int64_t tokens = options.micro_batch * options.sequence_length;
  const int64_t rows = tokens / tensor_parallel * hidden(options.model) * fp32;
  return comm::kRunningSums * comm::reduce_scatter_bytes(layout.group_size, shard) +
         comm::kRunningSums * comm::all_reduce_bytes(replicas, shard) +
         comm::reduce_scatter_bytes(tensor_parallel, rows);  // one at a time
}

}  // namespace

int64_t checkpoint_bytes(const Network& network) {
  constexpr int64_t kBytesOfParameter = 3 * sizeof(float);  // master and both moments
  int64_t elements = 0;
  for (const model::BlockLayout& block : block_layouts(network, 0, 1)) elements += block.elements;
  return kBytesOfParameter * elements;
}

plan::ModelPlan plan_model(const SessionOptions& options, int shard_degree, int replicas,
                           int tensor_parallel) {
  plan::ModelPlan plan;
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
  const plan::ShardLayout layout = plan::make_layout(elements, shard_degree);
  plan::MemoryPlan& memory = plan.memory;
  const plan::ShardedState state = plan::sharded_state(layout, engine_options(options).state);
  memory.masters = state.masters.bytes();
  memory.gradients = state.gradients.bytes();
  memory.compute_copy = state.compute_copy.bytes();
  memory.gathered = state.block_bytes();
  memory.on_gpu = options.device == kernels::DeviceKind::kGpu ? 1 : 0;
  int64_t& elsewhere = memory.on_gpu != 0 ? memory.offloaded : memory.in_files;
  if (options.optimizer.offload_directory.empty() && !options.optimizer.offload_to_host) {
    memory.moments = Optimizer::planned_bytes(layout);
  } else {
    elsewhere += Optimizer::offloaded_bytes(layout, options.optimizer);
    memory.moments = Optimizer::offload_window(layout, options.optimizer);
  }
  const auto activations = activation_bytes(options.model, model_options(options, nullptr), tensor_parallel);
  memory.activations = activations.resident + activations.offload_window;
  elsewhere += activations.offloaded;
  memory.workspace =
      memory.on_gpu != 0
          ? std::max(gpu_workspace_bytes(options, tensor_parallel), cudnn_bytes(options, tensor_parallel))
          : kernels::workspace_bytes(ops(options.model, model_options(options, nullptr), tensor_parallel));
  if (memory.on_gpu != 0) memory.context = kernels::kGpuContextBytes;
  constexpr auto kWriterBuffer =
      static_cast<int64_t>(checkpoint::ShardFileWriter::kChunkElements * sizeof(float));
  memory.saving = kWriterBuffer + (options.saves_while_training ? staging_bytes(layout, replicas) : 0);
  memory.communication = communication_bytes(options, layout, replicas, tensor_parallel);
  if (options.fp8) {  // the largest values that each rank saw
    const auto blocks = std::get<model::LlamaConfig>(options.model).layers;
    memory.communication += int64_t{shard_degree} * replicas * tensor_parallel * blocks *
                            model::kFp8TensorsOfBlock * static_cast<int64_t>(sizeof(float));
  }
  if (memory.on_gpu != 0) {
    const auto pinned = [](int size) {
      return comm::staging_bytes(size, comm::staging_piece_bytes(size, kLargestStagedPart));
    };
    memory.communication += 2 * pinned(shard_degree) + pinned(replicas) + pinned(tensor_parallel);
  }
  return plan;
}

}  // namespace shardrun::train

#include "runtime/plan/rank_memory.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "runtime/plan/workspace.h"

namespace shardrun::plan {
namespace {

constexpr int64_t kFp32 = sizeof(float);

// What sums over ranks receive: of shards and replicas two at a time, of a tensor group one.
int64_t sum_bytes(const RankOptions& options, const ShardLayout& layout, const Degrees& degrees) {
  const ShardLayout units = layout_of_units(layout, wrapping(options));
  const int64_t shard = units.largest_shard_elements * size_of(options.reduce);
  const int64_t tokens = options.micro_batch * options.sequence_length / options.context_parallel;
  const ModelShape shape = shape_of(options.model);
  const int64_t rows = tokens / degrees.tensor_parallel * shape.hidden * kFp32;
  const int64_t keys = tokens * 2 * shape.kv_width / degrees.tensor_parallel * kFp32;
  return kRunningSums * reduce_scatter_bytes(degrees.shard, shard) +
         kRunningSums * all_reduce_bytes(degrees.replicas, shard) +
         reduce_scatter_bytes(degrees.tensor_parallel, rows) +
         reduce_scatter_bytes(options.context_parallel, keys);
}

// Of the buffers for whole units, what no step ever writes: where units take turns in them, one may never have the largest.
int64_t untouched_bytes(const ShardedState& state, const ShardLayout& units, const ShardLayout& frozen,
                        const StepShape& shape) {
  if (units.group_size == 1) return 0;
  struct Use {
    const std::vector<Buffer>& buffers;
    std::vector<int64_t> most;  // elements in each

    explicit Use(const std::vector<Buffer>& all) : buffers(all), most(all.size(), 0) {}
    void put(int number, int64_t elements) {
      if (number >= 0) most[number] = std::max(most[number], elements);
    }
    int64_t untouched() const {
      int64_t bytes = 0;
      for (size_t i = 0; i < most.size(); ++i)
        bytes += buffers[i].bytes() - Buffer{most[i], buffers[i].element_bytes}.bytes();
      return bytes;
    }
  };
  Use gathered(state.gathered), gradients(state.whole_gradients), scratches(state.scratches);
  StepPlan plan(shape);
  while (const auto event = plan.next()) {
    using Kind = StepEvent::Kind;
    if (event->kind != Kind::kGather && event->kind != Kind::kReduce) continue;
    const BlockShards& unit = units.block(event->block);
    if (event->kind == Kind::kReduce) {
      gradients.put(event->gradient, unit.padded_elements);
      scratches.put(event->scratch, unit.shard_elements);
    } else {
      const bool is_frozen = !frozen.blocks.empty();
      gathered.put(event->slot,
                   unit.padded_elements + (is_frozen ? frozen.block(event->block).padded_elements : 0));
    }
  }
  return gathered.untouched() + gradients.untouched() + scratches.untouched();
}

// What passes through the memory that ranks of a node share, in their turn. Weights that are read at the start come from one.
int64_t passing_bytes(const RankOptions& options, const Degrees& degrees, NodeCrowd crowd) {
  const int64_t world = int64_t{degrees.shard} * degrees.replicas * degrees.tensor_parallel;
  const bool reads = !frozen_blocks(options.model).empty() && world > 1;
  const bool spreads = shape_of(options.model).expert_parallel > 1;
  const auto group = [&](int64_t size) {
    return node_gather_bytes(size, crowd) + node_sum_bytes(size, crowd);
  };
  return group(degrees.shard) + group(degrees.replicas) + (spreads ? group(degrees.shard) : 0) +
         group(degrees.tensor_parallel) + group(options.context_parallel) +
         (reads ? node_bytes(1, int64_t{512} << 10) : 0);
}

// What a stage sends to the next one and gets from it, and the same with the one before, lies in buffers of its own. A tied
// embedding's gradient is summed between the first stage and the last.
int64_t stage_bytes(const RankOptions& options, const ShardLayout& layout, const Degrees& degrees,
                    NodeCrowd crowd) {
  const Stage& stage = options.stage;
  const bool in_a_ring = stage.chunks > 1;  // the last one's next is the first
  const int neighbours = int{in_a_ring || !stage.is_first()} + int{in_a_ring || !stage.is_last()};
  const bool sums = shape_of(options.model).tied && stage.is_first() != stage.is_last();
  return neighbours * 2 * (message_bytes(options, degrees.tensor_parallel) + node_sum_bytes(2, crowd)) +
         (sums ? all_reduce_bytes(2, layout.block(0).shard_elements * kFp32) : 0);
}

// The largest values that each rank saw, of all ranks.
int64_t fp8_bytes(const RankOptions& options, const Degrees& degrees) {
  if (!options.fp8) return 0;
  return int64_t{degrees.shard} * degrees.replicas * degrees.tensor_parallel *
         shape_of(options.model).layers * kFp8TensorsOfBlock * kFp32;
}

// Pinned memory of the communicators of a GPU, two of which have the shard group.
int64_t pinned_bytes(const Degrees& degrees) {
  const auto pinned = [](int size) {
    return staging_bytes(size, staging_piece_bytes(size, kLargestStagedPart));
  };
  return 2 * pinned(degrees.shard) + pinned(degrees.replicas) + pinned(degrees.tensor_parallel);
}

// How many products oneDNN compiles for the list, each once.
int64_t distinct_products(const OpList& list, CpuProducts how) {
  std::set<std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, bool, bool>> products;
  for (const LinearCall& call : list.linears) {
    const Product p = product_of(call);
    if (packs(how, p, list.dtype)) continue;
    const bool is_narrow = p.is_narrow && list.dtype == DType::kBf16;
    products.emplace(p.M, p.K, p.N, p.a_transposed, p.b_transposed, is_narrow, p.bias, p.accumulate);
  }
  return static_cast<int64_t>(products.size());
}

MemoryPlan bytes_by_kind(const RankOptions& options, const Degrees& degrees, const CpuNeeds& cpu) {
  const bool on_gpu = options.device == DeviceKind::kGpu;
  const ModelRun run = model_run(options);
  const ShardLayout layout = shard_layout(
      blocks_of_stage(options.model, trained_blocks(options.model, 0, degrees.tensor_parallel), run.stage),
      degrees.shard);
  MemoryPlan memory;
  const ShardLayout frozen = shard_layout(frozen_blocks(options.model), degrees.shard);
  const ShardedState state = sharded_state(layout, state_options(options), frozen);
  memory.masters = state.masters.bytes();
  memory.gradients = state.gradients.bytes();
  memory.frozen = state.frozen.bytes();
  memory.compute_copy = state.compute_copy.bytes();
  memory.gathered = state.block_bytes();
  if (!on_gpu) {
    // Which buffer has what repeats itself after two rounds at the latest.
    const int64_t settled = std::min<int64_t>(options.gradient_accumulation, 4 * options.stage.stages);
    memory.gathered -= untouched_bytes(state, layout_of_units(layout, wrapping(options)),
                                       layout_of_units(frozen, wrapping(options)),
                                       step_shape(options, degrees, settled, /*backward=*/true));
  }
  const MomentBytes optimizer = moments(layout.flat_shard_elements, options.optimizer_offload, options.device,
                                        options.moment_piece, options.packed_moments);
  const ActivationBytes activations = activation_bytes(options.model, run, degrees.tensor_parallel);
  memory.moments = optimizer.resident;
  memory.activations = activations.resident + activations.offload_window;
  (on_gpu ? memory.offloaded : memory.in_files) = optimizer.elsewhere + activations.offloaded;
  const int64_t staged = options.saves_while_training ? staging_elements(layout, degrees.replicas) : 0;
  memory.saving = (kCheckpointChunk + staged) * kFp32;
  // A sum takes the one way or the other.
  memory.communication =
      std::max(sum_bytes(options, layout, degrees), on_gpu ? 0 : passing_bytes(options, degrees, cpu.crowd)) +
      stage_bytes(options, layout, degrees, cpu.crowd) + fp8_bytes(options, degrees);
  if (!on_gpu) {
    memory.workspace =
        cpu_workspace_bytes(ops(options, degrees.tensor_parallel), cpu.threads, cpu.product_bytes);
    return memory;
  }
  memory.on_gpu = 1;
  memory.context = kGpuContextBytes;
  memory.communication += pinned_bytes(degrees);
  memory.workspace = std::max(gpu_workspace_bytes(options, degrees.tensor_parallel),
                              cudnn_bytes(options, degrees.tensor_parallel));
  return memory;
}

// Those behind the embedding's; a layer's experts are a block of their own.
BlockRange layers_of(const ModelShape& shape) {
  return {1, 1 + shape.layers * (shape.experts > 0 ? 2 : 1)};
}

}  // namespace

ShardLayout shard_layout(const std::vector<BlockLayout>& blocks, int group_size) {
  std::vector<int64_t> elements;
  std::vector<bool> stays;
  for (const BlockLayout& block : blocks) {
    elements.push_back(block.elsewhere ? 0 : block.elements);
    stays.push_back(block.stays);
  }
  return make_layout(elements, group_size, stays);
}

RankOptions rank_options(const spec::JobSpec& spec, const BatchPlan& batch) {
  return {.model = network_of(spec),
          .compute = spec.precision.parameters,
          .reduce = spec.precision.reduce,
          .fp8 = spec.precision.fp8,
          .attention = spec.gpu.attention,
          .device = spec.resources.device,
          .prefetch = spec.sharding.prefetch,
          .wrap = spec.sharding.wrap,
          .keeps_parameters = spec::rules_of(spec.sharding.strategy).keeps_parameters,
          .checkpointing = spec.memory.activation_checkpointing,
          .activation_offload = spec.memory.activation_offload,
          .optimizer_offload = spec.memory.optimizer_offload,
          .packed_moments = spec.optimizer.kind == spec::OptimizerKind::kAdamW8,
          .sequence_length = spec.data.sequence_length,
          .context_parallel = spec.sharding.context_parallel,
          .stage = {0, spec.sharding.pipeline_parallel, spec.sharding.virtual_stages},
          .micro_batch = batch.micro_batch,
          .gradient_accumulation = batch.gradient_accumulation,
          .saves_while_training = spec.checkpoint.every_steps > 0};
}

ModelRun model_run(const RankOptions& options) {
  return {.compute = options.compute,
          .micro_batch = static_cast<int>(options.micro_batch),
          .sequence_length = options.sequence_length,
          .checkpointing = options.checkpointing,
          .offload = options.activation_offload,
          .most_targets = options.micro_batch * most_targets(options.model, options.sequence_length),
          .device = options.device,
          .fp8 = options.fp8,
          .accumulates = options.gradient_accumulation > 1,
          .context_parallel = options.context_parallel,
          .stage =
              stage_of(options.model, options.stage, options.sequence_length, options.gradient_accumulation)};
}

int64_t message_bytes(const RankOptions& options, int tensor_parallel) {
  const int64_t tokens = options.micro_batch * options.sequence_length / options.context_parallel;
  return tokens / tensor_parallel * shape_of(options.model).hidden * size_of(options.compute);
}

OpList ops(const RankOptions& options, int tensor_parallel) {
  return ops(options.model, model_run(options), tensor_parallel);
}

StateOptions state_options(const RankOptions& options) {
  const bool on_gpu = options.device == DeviceKind::kGpu;
  return {.compute_bytes = size_of(options.compute),
          .prefetch = options.prefetch,
          .accumulates = options.gradient_accumulation > 1,
          .revisits = shape_of(options.model).tied && options.stage.stages == 1,
          .keeps_parameters = options.keeps_parameters,
          .keeps_compute_copy = !(options.optimizer_offload && on_gpu),
          .wrapping = wrapping(options),
          .layers = layers_of(shape_of(options.model)),
          .tied = shape_of(options.model).tied};
}

Wrapping wrapping(const RankOptions& options) {
  if (options.wrap == 1) return {};
  const ModelShape shape = shape_of(options.model);
  SHARDRUN_CHECK(shape.experts == 0);
  const StageOfModel stage = model_run(options).stage;
  std::vector<BlockRange> layers;
  for (const LayerRange& chunk : stage.chunks) layers.push_back({1 + chunk.first, 1 + chunk.end()});
  if (stage.is_whole()) layers.push_back(layers_of(shape));
  return wrap_blocks(static_cast<int>(trained_blocks(options.model, 0, 1).size()), layers, options.wrap);
}

StepShape step_shape(const RankOptions& options, const Degrees& degrees, int64_t micro_steps, bool backward) {
  const StateOptions state = state_options(options);
  const StageOfModel stage = model_run(options).stage;
  const std::vector<BlockLayout> blocks = trained_blocks(options.model, 0, 1);
  const int count = static_cast<int>(blocks.size());
  std::vector<int> visits;
  for (const int visit : stage.visits(count + int{shape_of(options.model).tied}))
    visits.push_back(visit < count ? visit : 0);
  const UnitVisits units = unit_visits(state.wrapping, visits);
  std::vector<int> chunks;
  if (!stage.is_whole())
    for (const int begin : stage.visit_begins())
      chunks.push_back(
          static_cast<int>(std::ranges::lower_bound(units.numbers, begin) - units.numbers.begin()));
  std::vector<bool> stays;
  for (int unit = 0; unit < state.wrapping.units(count); ++unit)
    stays.push_back(blocks[state.wrapping.begin(unit)].stays);
  return {.visits = units.units,
          .stage = options.stage,
          .chunks = chunks,
          .micro_steps = micro_steps,
          .backward = backward,
          .prefetch = options.prefetch,
          .buffers = buffer_counts(degrees.shard, state.wrapping.units(count), state),
          .replicated = degrees.replicas > 1,
          .stays = stays,
          .looks_up = stage.has_embedding && shape_of(options.model).architecture->looks_up,
          .numbers = units.numbers};
}

ModelPlan rank_memory(const RankOptions& options, const Degrees& degrees, const CpuNeeds& cpu) {
  ModelPlan plan;
  plan.shard_degree = degrees.shard;
  plan.replicas = degrees.replicas;
  plan.tensor_parallel = degrees.tensor_parallel;
  plan.pipeline_parallel = options.stage.stages;
  plan.virtual_stages = options.stage.chunks;
  if (const Stage& stage = options.stage; stage.stages > 1)
    plan.sent_to_stages = options.gradient_accumulation * message_bytes(options, degrees.tensor_parallel) *
                          (2 * stage.chunks - int{stage.is_first()} - int{stage.is_last()});
  for (const BlockLayout& block : trained_blocks(options.model, 0, 1)) {
    plan.trained += block.elements;
    ++plan.blocks;
  }
  plan.parameters = plan.trained;
  for (const BlockLayout& block : frozen_blocks(options.model)) plan.parameters += block.elements;
  plan.flops_per_token = flops_per_token(options.model, options.sequence_length);
  plan.memory = bytes_by_kind(options, degrees, cpu);
  return plan;
}

namespace {

// Of a rank of the stage that the options name.
ModelPlan stage_memory(const RankOptions& options, const Degrees& degrees, const RankPlace& place) {
  CpuNeeds cpu{.threads = std::max(1, place.threads), .crowd = {place.ranks_per_node, place.cpus_per_node}};
  int64_t program = place.program ? place.program->bytes : program_bytes(place.world_size);
  if (options.device == DeviceKind::kCpu) {
    const OpList list = ops(options, degrees.tensor_parallel);
    cpu.product_bytes = expected_product_bytes(list, cpu.threads, place.products);
    if (place.program) {
      const int64_t products = distinct_products(list, place.products);
      if (products > 0) program += place.program->library_bytes;
      program += std::max<int64_t>(0, products - place.program->products) * place.program->product_bytes;
    }
  }
  ModelPlan plan = rank_memory(options, degrees, cpu);
  plan.memory.process = process_bytes(program, place.world_size, plan.memory.on_gpu != 0);
  return plan;
}

}  // namespace

ModelPlan job_memory(const RankOptions& options, const Degrees& degrees, const RankPlace& place) {
  return of_largest_stage(options,
                          [&](const RankOptions& stage) { return stage_memory(stage, degrees, place); });
}

Result<ModelPlan> job_memory(const spec::JobSpec& spec, const BatchPlan& batch, const RankPlace& place) {
  ASSIGN_OR_RETURN(const auto mesh, solve_mesh(spec, place.world_size, place.ranks_per_node));
  const Degrees degrees{mesh.shard_degree, mesh.replicas(), mesh.tensor_parallel};
  return job_memory(rank_options(spec, batch), degrees, place);
}

int64_t gpu_workspace_bytes(const RankOptions& options, int tensor_parallel) {
  return gpu_workspace_bytes(ops(options, tensor_parallel), shape_of(options.model).hidden);
}

int64_t cudnn_bytes(const RankOptions& options, int tensor_parallel) {
  if (options.attention == spec::GpuAttention::kOwn || options.compute != DType::kBf16 ||
      !shape_of(options.model).architecture->causal)
    return 0;
  const int64_t bytes = cudnn_attention_bytes(ops(options, tensor_parallel).attention);
  const bool is_asked = options.attention == spec::GpuAttention::kCudnn;
  return is_asked || bytes <= kMostCudnnBytes ? bytes : 0;
}

int64_t staging_elements(const ShardLayout& layout, int replicas) {
  int64_t elements = 0;
  for (const BlockShards& block : layout.blocks)
    elements += 3 * ((block.shard_elements + replicas - 1) / replicas);
  return elements;
}

int64_t checkpoint_bytes(const Network& network) {
  constexpr int64_t kBytesOfParameter = 3 * kFp32;  // master and both moments
  int64_t elements = 0;
  for (const BlockLayout& block : trained_blocks(network, 0, 1)) elements += block.elements;
  return kBytesOfParameter * elements;
}

}  // namespace shardrun::plan

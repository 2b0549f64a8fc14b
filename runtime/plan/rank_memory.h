// What a rank of the built-in trainer holds, by arithmetic: no memory is touched, so the plan of 70 billion parameters costs
// no more than any other. The trainer takes exactly these bytes; plans, searches over layouts and checks of a run call the
// same functions.
//
// Every rank of a mesh holds the same, but for padding. Units: bytes. Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "runtime/base/compute.h"
#include "runtime/plan/batch_plan.h"
#include "runtime/plan/communication.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/model/network.h"
#include "runtime/plan/model_plan.h"
#include "runtime/plan/optimizer_state.h"
#include "runtime/plan/shard_layout.h"
#include "runtime/plan/sharded_state.h"
#include "runtime/plan/step.h"
#include "runtime/plan/workspace.h"

namespace shardrun::plan {

// What of a job decides the bytes of a rank, beside the degrees of its mesh.
struct RankOptions {
  Network model;
  DType compute = DType::kFp32;
  DType reduce = DType::kFp32;  // of gradients that are summed over ranks
  bool fp8 = false;             // ModelRun
  spec::GpuAttention attention = spec::GpuAttention::kAuto;
  DeviceKind device = DeviceKind::kCpu;
  int prefetch = 1;
  int wrap = 1;                   // layers that are gathered and reduced together
  bool keeps_parameters = false;  // shard_grad_op
  Checkpointing checkpointing = Checkpointing::kNone;
  // What waits for its use lies in a file; a GPU's in pinned memory of the host.
  bool activation_offload = false, optimizer_offload = false;
  bool packed_moments = false;          // of AdamW, in 8 bits
  int64_t moment_piece = kMomentPiece;  // elements of a moment that come to a GPU at once
  int sequence_length = 256;
  int context_parallel = 1;  // ranks that share each sequence
  Stage stage{};             // of a pipeline that the rank belongs to
  int64_t micro_batch = 1, gradient_accumulation = 1;
  bool saves_while_training = false;  // reserves the memory that a save needs not to wait for a disk later
};

// How many ranks share a copy of the state, how many copies there are, and how many ranks share each matrix: of one stage.
struct Degrees {
  int shard = 1, replicas = 1, tensor_parallel = 1;
};

// Returns what a job of the built-in trainer asks for, on the first stage where it has several.
RankOptions rank_options(const spec::JobSpec& spec, const BatchPlan& batch);

// Returns the parts of it that the model, its ops and the sharding engine are planned by.
ModelRun model_run(const RankOptions& options);
// Returns the bytes of one micro-batch's activations, or of their gradient, on their way to the next stage.
int64_t message_bytes(const RankOptions& options, int tensor_parallel);
OpList ops(const RankOptions& options, int tensor_parallel);
StateOptions state_options(const RankOptions& options);
// Which blocks of this rank's stage are a unit.
Wrapping wrapping(const RankOptions& options);
// Returns what this rank's stage does with them in so many micro-steps.
StepShape step_shape(const RankOptions& options, const Degrees& degrees, int64_t micro_steps, bool backward);

// What a rank's CPUs add to what it holds; nothing of it counts on a GPU.
struct CpuNeeds {
  int threads = 1;  // of OpenMP
  NodeCrowd crowd;
  // What the largest matrix product needs: what oneDNN says, or plan::expected_product_bytes().
  int64_t product_bytes = 0;
};

// Returns what the rank holds but MemoryPlan::process, which nothing of this decides.
ModelPlan rank_memory(const RankOptions& options, const Degrees& degrees, const CpuNeeds& cpu);

// Returns the plan of the stage whose ranks hold most, of which there may be one; plan_of() plans for the stage that its options name.
template <typename Options, typename PlanOf>
ModelPlan of_largest_stage(Options options, const PlanOf& plan_of) {
  options.stage.number = 0;
  ModelPlan most = plan_of(options);
  while (++options.stage.number < options.stage.stages) {
    ModelPlan plan = plan_of(options);
    if (plan.memory.total() > most.memory.total()) most = std::move(plan);
  }
  return most;
}

// What a rank's program holds with some of oneDNN's products compiled, how many those are, and what one more adds: 85 KB with oneDNN
// 2.6, half a megabyte with 3.12. As `shardrun-rank footprint` measures it.
struct ProgramBytes {
  int64_t bytes = 0, products = 0, product_bytes = 0;
  int64_t library_bytes = 0;  // of oneDNN, which a program without one of its products has not touched
};

// Where a job's ranks run, as far as a launcher knows.
struct RankPlace {
  int64_t world_size = 1;
  int ranks_per_node = 1, cpus_per_node = 1, threads = 1;
  CpuProducts products = CpuProducts::kOneDnn;
  std::optional<ProgramBytes> program;  // as measured there
};
// Returns the same of a job, with an estimate of oneDNN's part and with process_bytes(). kInvalid as solve_mesh().
Result<ModelPlan> job_memory(const spec::JobSpec& spec, const BatchPlan& batch, const RankPlace& place);
// Returns the same with other options than the job's, on a mesh that is solved. Both are of the stage whose ranks hold most.
ModelPlan job_memory(const RankOptions& options, const Degrees& degrees, const RankPlace& place);

// Returns the bytes of a GPU's workspace for the ops that a rank runs, but for attention by cuDNN.
int64_t gpu_workspace_bytes(const RankOptions& options, int tensor_parallel);
// Returns the bytes planned for attention by cuDNN, which no one knows to be there before the ranks run; 0: it is not to be
// used.
int64_t cudnn_bytes(const RankOptions& options, int tensor_parallel);

// Elements that a checkpoint is read and written by at a time: 1 MiB.
inline constexpr int64_t kCheckpointChunk = int64_t{1} << 18;
// Returns the elements that are copied so that a checkpoint can be written beside training, on the rank of `replicas` that
// writes most of these shards.
int64_t staging_elements(const ShardLayout& layout, int replicas);
// Returns which rank of a group of so many owns what of the blocks; a block that is elsewhere has no elements.
ShardLayout shard_layout(const std::vector<BlockLayout>& blocks, int group_size);
// Returns the bytes of one checkpoint on the disk, without the little that headers take.
int64_t checkpoint_bytes(const Network& network);

}  // namespace shardrun::plan

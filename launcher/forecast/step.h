// The time of a training step, predicted: compute by roofline, collectives by volume and hops, and both laid over each
// other by an event simulation of one micro-step, block by block, as the sharding engine runs it.
//
// Sources: the cost model of sharded data parallelism (jax-ml/scaling-book, "How to scale your model"); NCCL's tuning.cc
// for hop latencies. Units: seconds, bytes of one rank, FLOP of one rank.
// Thread rule: pure functions; one call costs O(layers).
#pragma once

#include <cstdint>

#include "launcher/forecast/constants.h"
#include "launcher/forecast/machine.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// What of a layout the built-in trainer has no words for: it is given, and a search chooses the rest.
struct Given {
  int pipeline = 1, pipeline_chunks = 1;  // stages, and parts of the layers that each of them has
  bool zero_bubble = false;               // gradients of weights fill most of what stages wait for
  int context_parallel = 1;               // ranks that share a sequence
  bool gathers_context =
      false;  // keys and values come before attention begins, not one rank's after the other
  // Feed-forward networks beside each other in a layer, those that a token goes through, and ranks that share them out.
  int experts = 1, active_experts = 1, expert_parallel = 1;

  bool operator==(const Given&) const = default;
};

struct Layout {
  int64_t nodes = 1;
  int64_t shard_degree = 1;  // ranks that share a copy of the state
  int tensor_parallel = 1;
  Given given;
  spec::Strategy strategy = spec::Strategy::kFullShard;
  int64_t micro_batch = 1, accumulation = 1;  // sequences; micro-steps
  // Sequences of a step over all ranks, where the last micro-step may be less than full, as that of an uneven batch is. 0: as
  // many as full ones hold.
  int64_t global_batch = 0;
  int sequence_length = 4096;
  spec::Checkpointing checkpointing = spec::Checkpointing::kNone;
  bool activation_offload = false, optimizer_offload = false;
  bool fp8 = false;

  // Most sequences that one of so many data-parallel ranks has in the last micro-step.
  int64_t last_micro_batch(int64_t data_parallel) const;

  bool operator==(const Layout&) const = default;
};

// The seconds of one rank in one step; what one phase hides behind another is counted in both.
struct Phases {
  double compute = 0.0;  // kernels, and what multiprocessors that collectives hold cost them
  double gather = 0.0, reduce = 0.0, replica = 0.0, tensor = 0.0, offload = 0.0;  // transfers, hidden or not
  double exposed = 0.0;  // transfers that nothing hides
  double bubble = 0.0;   // waiting for other stages of a pipeline
  double optimizer = 0.0, host = 0.0, straggle = 0.0;
};

struct Volumes {  // bytes that a rank sends in a step
  double gather = 0.0, reduce = 0.0, replica = 0.0, tensor = 0.0, offload = 0.0;
};

struct StepForecast {
  double seconds = 0.0;
  double tokens = 0.0;  // of a step, over all ranks
  double tokens_per_second() const { return tokens / seconds; }
  double model_flops = 0.0;  // per second and accelerator
  Phases phases;
  Volumes volumes;

  // Makes the step and its parts last `factor` times as long.
  void scale(double factor);
};

// `model` is that of one expert, where the layout has several: the others have its feed-forward network again.
ModelShape whole_model(const ModelShape& model, const Layout& layout);
StepForecast forecast_step(const Machine& machine, const ModelShape& model, const Layout& layout,
                           const Traits& traits, const Constants& constants);

}  // namespace shardrun::launcher

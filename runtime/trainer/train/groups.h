// Groups: the communicators of one rank, by what the ranks of each share.
//
// Thread rule: plain values.
#pragma once

#include <span>

#include "runtime/plan/pipeline.h"
#include "runtime/plan/rank_memory.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::train {

// Communicators of this rank and the one that has its place in the stage before, and in the next; null where there is none. Where
// stages have several chunks, the first one is behind the last.
struct StageGroups {
  comm::Communicator *from_before = nullptr, *to_before = nullptr;  // activations, and their gradients
  comm::Communicator *from_next = nullptr, *to_next = nullptr;  // gradients of activations, and activations
  comm::Communicator* ends = nullptr;  // of the first and the last stage, where they share an embedding

  // `links`: of plan::Mesh::link_group(), even ones and then odd ones, and for chunks of end_group(), each for activations and for
  // gradients.
  static StageGroups of(const plan::Stage& stage, std::span<comm::Communicator* const> links);
};

// The communicators of one rank: `world` for the host's memory, the others for the backend's. They outlive the session unless
// an error made them useless. Null stands for a group of one.
struct Groups {
  comm::Communicator* world = nullptr;
  comm::Communicator* gather = nullptr;   // of the shard group
  comm::Communicator* reduce = nullptr;   // of the shard group
  comm::Communicator* replica = nullptr;  // the ranks with the same shard
  comm::Communicator* tensor = nullptr;   // the ranks that share each matrix
  comm::Communicator* experts = nullptr;  // of the shard group, where it shares experts
  comm::Communicator* context = nullptr;  // the ranks that share each sequence
  StageGroups stages{};  // of a pipeline; all others but the world are inside this rank's stage

  int shard_rank() const { return gather->rank(); }
  int shard_degree() const { return gather->size(); }
  int replica_rank() const { return replica == nullptr ? 0 : replica->rank(); }
  int replicas() const { return replica == nullptr ? 1 : replica->size(); }
  int tensor_rank() const { return tensor == nullptr ? 0 : tensor->rank(); }
  int tensor_parallel() const { return tensor == nullptr ? 1 : tensor->size(); }
  int data_rank() const { return replica_rank() * shard_degree() + shard_rank(); }
  int data_parallel() const { return replicas() * shard_degree(); }
  int context_rank() const { return context == nullptr ? 0 : context->rank(); }
  int context_parallel() const { return context == nullptr ? 1 : context->size(); }
  plan::Degrees degrees() const { return {shard_degree(), replicas(), tensor_parallel()}; }
  // Ranks, or groups of them, that read sequences of their own.
  int readers() const { return data_parallel() / context_parallel(); }
  int reader() const { return data_rank() / context_parallel(); }
};

}  // namespace shardrun::train

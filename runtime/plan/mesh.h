// Mesh: which ranks of a job share a shard, a replica and a tensor. This is pure arithmetic.
//
// Ranks are numbered with the tensor dimension innermost, then the shard dimension, then replicas, then stages of a pipeline, so
// that the groups that talk most are neighbours and, with a fitting degree, on one node:
//   global rank = ((stage · replicas + replica) · shard_degree + shard) · tensor_parallel + tensor
//
//   8 ranks, tensor_parallel 2, shard_degree 2:   replica 0: 0 1 | 2 3     replica 1: 4 5 | 6 7
//     tensor groups {0,1} {2,3} {4,5} {6,7}; shard groups {0,2} {1,3} {4,6} {5,7}; replica groups {0,4} {1,5} …
//
// Ranks of one tensor group read the same sequences: together they are one data-parallel rank. Neighbouring data-parallel
// ranks may share sequences, some tokens each: together they are one reader. Gradients are summed over readers and their
// ranks alike, so that a context group may lie in a shard group, across several, or across replicas. The same place in all
// stages reads the same sequences.
//
// Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::plan {

using base::Result;

struct Mesh {
  int world_size = 1, tensor_parallel = 1, shard_degree = 1, context_parallel = 1, pipeline_parallel = 1;

  int stage_ranks() const { return world_size / pipeline_parallel; }  // of each stage
  // Of one stage: all that follow are, but world_size and groups of ranks.
  int data_parallel() const { return stage_ranks() / tensor_parallel; }
  int replicas() const { return data_parallel() / shard_degree; }
  int readers() const { return data_parallel() / context_parallel; }

  int tensor_rank(int global_rank) const { return global_rank % tensor_parallel; }
  int stage(int global_rank) const { return global_rank / stage_ranks(); }
  int data_rank(int global_rank) const { return global_rank % stage_ranks() / tensor_parallel; }
  int shard_rank(int global_rank) const { return data_rank(global_rank) % shard_degree; }
  int replica_rank(int global_rank) const { return data_rank(global_rank) / shard_degree; }
  int context_rank(int global_rank) const { return data_rank(global_rank) % context_parallel; }

  // Return global ranks, in ascending order, with `global_rank` among them.
  std::vector<uint32_t> tensor_group(int global_rank) const;
  std::vector<uint32_t> shard_group(int global_rank) const;
  std::vector<uint32_t> replica_group(int global_rank) const;
  std::vector<uint32_t> context_group(int global_rank) const;
  // The ranks between which activations pass from stage l to l + 1, which have this one's place in their stages. l is the rank's
  // own stage or the one before, whichever is even, or odd; a rank that has no such neighbour is alone.
  std::vector<uint32_t> link_group(int global_rank, bool odd) const;
  // Those of the first and the last stage; a rank of another stage is alone.
  std::vector<uint32_t> end_group(int global_rank) const;
};

// Returns the mesh of [sharding] on `world_size` ranks with `ranks_per_node` of them on each node. hybrid_shard without
// a shard_degree shards inside a node. Errors: kInvalid, "file:line:column: what; mend" for degrees that do not divide.
Result<Mesh> solve_mesh(const spec::JobSpec& spec, int64_t world_size, int ranks_per_node);

}  // namespace shardrun::plan

// The kinds of operations, each made by the function that carries it out. plugins/common/collective.h says what their
// arguments mean; a group of one has no flows, and its operations are finished when they are made.
//
// Thread rule: as operation.h.
#pragma once

#include "plugins/ofi/operation.h"

namespace shardrun::ofi {

enum OperationKind : uint32_t {
  kGather = 0,
  kScatter,
  kReduceFloat,
  kReduceDouble,
  kBroadcast,
  kBarrier,
  kSmallGather,
  kSmallFloat,
  kSmallDouble,
  kAllToAll,
  kScatterBf16,
  kReduceBf16,
  kSmallBf16
};

// gather.cpp: parts go once to each node, straight into place, and are passed on there.
std::unique_ptr<Operation> make_all_gather(const Group& group, const OperationId& id, const void* mine,
                                           uint64_t bytes, void* all);
std::unique_ptr<Operation> make_broadcast(const Group& group, const OperationId& id, void* buffer,
                                          uint64_t bytes, uint32_t root);
// reduce.cpp: each node adds up what its ranks have for a part and sends that.
std::unique_ptr<Operation> make_reduce_scatter(const Group& group, const OperationId& id, const float* full,
                                               uint64_t count, float* mine);
std::unique_ptr<Operation> make_reduce_scatter(const Group& group, const OperationId& id,
                                               const common::Bf16* full, uint64_t count, common::Bf16* mine);
std::unique_ptr<Operation> make_sliced_all_reduce(const Group& group, const OperationId& id, float* buffer,
                                                  uint64_t count);
std::unique_ptr<Operation> make_sliced_all_reduce(const Group& group, const OperationId& id, double* buffer,
                                                  uint64_t count);
std::unique_ptr<Operation> make_sliced_all_reduce(const Group& group, const OperationId& id,
                                                  common::Bf16* buffer, uint64_t count);
// all_to_all.cpp: each part goes straight to its rank, through memory where that is on the same node.
std::unique_ptr<Operation> make_all_to_all(const Group& group, const OperationId& id, const void* send,
                                           const uint64_t* send_bytes, void* receive,
                                           const uint64_t* receive_bytes);
// exchange.cpp: few bytes in few messages: one rank of each node exchanges for all of them.
bool is_small_gather(const Group& group, uint64_t bytes);
bool is_small_reduce(const Group& group, uint64_t bytes);
std::unique_ptr<Operation> make_small_all_gather(const Group& group, const OperationId& id, const void* mine,
                                                 uint64_t bytes, void* all);
std::unique_ptr<Operation> make_small_all_reduce(const Group& group, const OperationId& id, float* buffer,
                                                 uint64_t count);
std::unique_ptr<Operation> make_small_all_reduce(const Group& group, const OperationId& id, double* buffer,
                                                 uint64_t count);
std::unique_ptr<Operation> make_small_all_reduce(const Group& group, const OperationId& id,
                                                 common::Bf16* buffer, uint64_t count);
std::unique_ptr<Operation> make_barrier(const Group& group, const OperationId& id);
// Returns whether operations of a kind are of these last ones, whose messages are few and small.
bool is_small(uint32_t kind);

}  // namespace shardrun::ofi

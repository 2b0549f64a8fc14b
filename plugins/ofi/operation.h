// Operation: one collective as a set of flows plus the local work between them. Knows nothing of libfabric.
//
// A flow is the ordered segments of one buffer to or from one peer. The engine posts segments while a flow's limit
// and window allow, marks them complete, and calls advance(), which sums what arrived and raises limits. Algorithms
// are direct: every contribution travels once, from the rank that has it to the rank that needs it, and sums are made
// by the receiver in ascending group rank (the promise of comm_v1.h). Broadcast is a binomial tree and barrier a
// dissemination (Hensgen, Finkel, Manber 1988), both by group rank.
//
// Thread rule: made by the calling thread, afterwards owned by the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/common/collective.h"
#include "plugins/common/keyed_hash.h"
#include "plugins/ofi/fabric.h"

namespace shardrun::ofi {

// The members of a channel. `mine` is this process's place among `global_ranks`.
struct Group {
  std::vector<uint32_t> global_ranks;
  uint32_t mine = 0;

  uint32_t size() const { return static_cast<uint32_t>(global_ranks.size()); }
};

struct Flow {
  uint32_t global_rank = 0;
  bool is_send = false;
  bool ring = false;        // base holds only `window` segments; segment k lies at slot k % window
  bool in_scratch = false;  // base is scratch_offset into the operation's scratch, once there is scratch
  uint64_t scratch_offset = 0;
  uint64_t tag = 0;
  std::byte* base = nullptr;
  uint64_t total_bytes = 0;
  uint64_t segment_bytes = 0;
  uint32_t window = 1;            // at most this many segments in flight
  uint64_t limit_bytes = 0;       // the engine may post up to here
  uint32_t granted = UINT32_MAX;  // segments; for a send: what the receiver has posted, where that matters
  uint32_t told = 0;              // for a receive: segments that the sender knows to be posted
  uint32_t posted = 0;            // segments
  uint32_t complete = 0;          // segments, without a gap from the first
  std::vector<bool> ahead;        // by slot: complete, but an earlier segment is not
  std::vector<Request> requests;  // by slot

  uint32_t segments() const;
  uint64_t complete_bytes() const;
  bool finished() const { return complete == segments(); }
  std::byte* segment_data(uint32_t segment) const;
  uint64_t segment_size(uint32_t segment) const;
  bool may_post() const;
  uint64_t largest_segment() const { return segment_bytes < total_bytes ? segment_bytes : total_bytes; }
  void mark_complete(uint32_t segment);
};

class Operation {
 public:
  virtual ~Operation() = default;
  // Does the local work that the completed segments allow.
  virtual void advance() {}
  // Returns whether all flows are finished and all local work is done.
  virtual bool finished() const;

  std::vector<Flow>& flows() { return flows_; }
  // Memory beside the caller's buffers that the operation needs, from before its first segment is posted until its
  // end.
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  void use_scratch(std::byte* scratch);
  // Returns the global ranks whose part has not come yet.
  std::vector<uint32_t> awaited() const;

  std::string name;  // "barrier"
  uint64_t ticket = 0;
  bool synchronises = false;  // its completion means that every member has started it

 protected:
  // Prepares a flow; its limit starts at `limit_bytes`.
  Flow& add_flow(const Group& group, uint32_t group_rank, bool is_send, uint64_t tag, void* base,
                 uint64_t total_bytes, uint64_t segment_bytes, uint64_t limit_bytes);
  // Places the flow's data in scratch: all of it, or the segments of its window.
  void put_in_scratch(Flow& flow, uint64_t bytes);
  void make_ring(Flow& flow);

  std::vector<Flow> flows_;

 private:
  uint64_t scratch_bytes_ = 0;
};

// Names one operation on the wire: the channel and its ticket, under the key of the job, which must outlive it.
struct OperationId {
  const common::KeyedHash& key;
  uint32_t channel = 0;
  uint64_t ticket = 0;
};

// Returns the tag of a message: 64 bits of HMAC-SHA256 over what the arguments say. Who does not hold the job's key can
// make none that a receive waits for (docs/decisions/0054).
uint64_t make_tag(const OperationId& id, uint32_t kind, uint32_t step, uint32_t sender_global_rank);
constexpr uint32_t kControlChannel = 255;
constexpr uint32_t kMostRanks = uint32_t{1} << 20;

// The operation copies what it keeps of the buffers' contents, and nothing of large ones.
std::unique_ptr<Operation> make_operation(const Group& group, const OperationId& id,
                                          const common::Collective& collective);

}  // namespace shardrun::ofi

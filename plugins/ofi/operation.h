// Operation: one collective as a set of flows between nodes, what passes through the memory of this node, and the local
// work between them. Knows nothing of libfabric.
//
// A flow is the ordered segments of one buffer to or from one rank of another node. The engine posts segments while a
// flow's limit and window allow, and its receiver's room, marks them complete, and calls advance(), which reads and writes
// the node's memory (node_memory.h), sums what arrived and raises limits. Who sends what to whom is common/layout.h's, the order of
// sums common/sum_tree.h's; operations carry that out: gather.cpp, reduce.cpp and exchange.cpp.
//
// Thread rule: made by the calling thread, afterwards owned by the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugins/common/collective.h"
#include "plugins/common/keyed_hash.h"
#include "plugins/common/layout.h"
#include "plugins/ofi/fabric.h"
#include "plugins/ofi/node_memory.h"

namespace shardrun::ofi {

using common::Layout;

// The members of a channel. `mine` is this process's place among `global_ranks`.
struct Group {
  std::vector<uint32_t> global_ranks;
  uint32_t mine = 0;
  Layout layout;

  uint32_t size() const { return static_cast<uint32_t>(global_ranks.size()); }
};

constexpr uint32_t kWindow = 4;  // segments of a flow in flight, where nothing else is said
// Bytes of a segment, which is a message: one costs as much as tens of KiB, and wakes a thread that takes its CPU from what computes.
constexpr uint64_t kMostMessage = 256 << 10;
// What is sent to a rank, by all others together, before it has said that it waits for it.
constexpr uint64_t kUnaskedBytes = 4 << 20;
// But nothing of flows of so many bytes at most in an operation that ends for a rank when all parts are there: such small ones
// come in a row, and a rank that is ahead by one would put its bytes before those that the others wait for. Parts of an
// all-gather come unasked where ranks share nodes: a rank ends with those of its node there, and is not ahead of all.
constexpr uint64_t kAskedBytes = 64 << 10;

// Returns the bytes of a message of a stream, `least` to kMostMessage. All streams that come to a rank share its link and end together,
// so that of each the last message is whole only then: one of `parts`, lest much is passed on or added up while links rest.
uint64_t message_of(uint64_t stream_bytes, uint64_t parts, uint64_t least);

struct Flow {
  uint32_t global_rank = 0;
  bool is_send = false;
  bool ring = false;        // base holds only `window` segments; segment k lies at slot k % window
  bool in_scratch = false;  // base is scratch_offset into the operation's scratch, once there is scratch
  uint64_t scratch_offset = 0;
  uint32_t step = 0;  // tells it from other flows of its operation between the same ranks
  uint64_t tag = 0;
  std::byte* base = nullptr;
  uint64_t total_bytes = 0;
  uint64_t segment_bytes = 0;
  uint32_t window = 1;            // at most this many segments in flight
  uint64_t limit_bytes = 0;       // the engine may post up to here
  uint32_t room = 0;              // segments, from the first, that the receiver is known to wait for
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
  void mark_complete(uint32_t segment);
};

// Names one operation on the wire: the channel and its ticket, under the key of the job, which must outlive it.
struct OperationId {
  const common::KeyedHash& key;
  uint32_t channel = 0;
  uint64_t ticket = 0;
};

// A chunk of the node's memory that is not this operation's: ranks call different operations.
struct Mismatch {
  uint32_t group_rank = 0;
  uint64_t sent = 0, expected = 0;
};

class Operation {
 public:
  virtual ~Operation() = default;
  // Does some of the local work that the completed segments and the node's memory allow: a chunk from or to each rank of the node,
  // of which these hear before the next call. Returns whether it did any.
  virtual bool advance() { return false; }
  // Returns whether all flows are finished and all local work is done.
  virtual bool finished() const;

  std::vector<Flow>& flows() { return flows_; }
  const std::vector<Flow>& flows() const { return flows_; }
  // Memory beside the caller's buffers that the operation needs, from before its first segment is posted until its
  // end.
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  virtual void use_scratch(std::byte* scratch);
  // What advance() passes through the node's memory; it is called only once use_region has been, if there is any.
  bool writes_to_all = false, writes_to_one = false;
  bool needs_region() const { return writes_to_all || writes_to_one; }
  void wait_for_region(const NodeRegion* region) { waiting_for_ = region; }
  void use_region(NodeRegion* region) { region_ = region; }
  const std::optional<Mismatch>& mismatch() const { return mismatch_; }
  // Returns the global ranks whose part has not come yet.
  std::vector<uint32_t> awaited() const;

  uint32_t kind() const { return kind_; }
  std::string name;  // "barrier"
  uint64_t ticket = 0;
  bool synchronises = false;  // its completion means that every member has started it

 protected:
  Operation(const Group& group, const OperationId& id, uint32_t kind, uint64_t total);
  const Layout& layout() const { return group_.layout; }
  uint32_t node() const { return layout().node_of[group_.mine]; }
  // The ranks of this node, and this rank's number among them, as NodeRegion counts.
  const std::vector<uint32_t>& near() const { return layout().members[node()]; }
  uint32_t near_mine() const { return layout().index_of[group_.mine]; }

  // Prepares a flow with a member of another node; its limit starts at `limit_bytes`. Both sides give the same `step`. At most
  // `window` segments are in flight.
  Flow& add_flow(uint32_t group_rank, bool is_send, uint32_t step, void* base, uint64_t total_bytes,
                 uint64_t segment_bytes, uint64_t limit_bytes, uint32_t window = kWindow);
  // Places the segments of the flow's window in scratch.
  void put_window_in_scratch(Flow& flow);
  // Returns the place of so many bytes in scratch.
  uint64_t reserve_scratch(uint64_t bytes);

  ChunkHead head(uint64_t offset, uint64_t bytes) const;
  // Returns whether a chunk is of this operation and within `limit` bytes; if not, notes whose it is.
  bool is_ours(const ChunkHead& head, uint32_t member, uint64_t limit);
  // Adds to `ranks` the members of this node whose chunks have not come yet.
  virtual void add_awaited(std::vector<uint32_t>* /*group_ranks*/) const {}

  const Group& group_;
  std::vector<Flow> flows_;
  NodeRegion* region_ = nullptr;

 private:
  const NodeRegion* waiting_for_ = nullptr;  // until all members have opened it
  const common::KeyedHash& key_;
  uint32_t channel_, kind_;
  uint64_t total_;
  uint64_t scratch_bytes_ = 0;
  std::optional<Mismatch> mismatch_;
};

// Returns the tag of a message: 64 bits of HMAC-SHA256 over what the arguments say. Who does not hold the job's key can
// make none that a receive waits for (docs/decisions/0054).
uint64_t make_tag(const OperationId& id, uint32_t kind, uint32_t step, uint32_t sender_global_rank);
constexpr uint32_t kControlChannel = 255;
constexpr uint32_t kMostRanks = uint32_t{1} << 20;

// The operation copies what it keeps of the buffers' contents, and nothing of large ones. `group` and the key outlive it.
std::unique_ptr<Operation> make_operation(const Group& group, const OperationId& id,
                                          const common::Collective& collective);

}  // namespace shardrun::ofi

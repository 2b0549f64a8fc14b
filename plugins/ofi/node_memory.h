// NodeMemory: the memory through which ranks of one node pass bytes to each other.
//
// Each rank has a file in /dev/shm, named by its cookie until all have it open, that this user alone can open. It holds
// a board of counters and, for each channel, two regions that operations use in turn. In a region its owner has a ring
// of chunks that all others of the group read ("to all"), and a ring for each of them alone. Each counter has one
// writer, so there is nothing to lock and nothing that a killed rank could leave locked. Who sleeps is woken by a bell
// (bell.h): `sleeping` says whether that is needed. Where the kernel lets ranks read in each other's memory a chunk may be lent:
// its head says where its bytes lie (docs/decisions/0139).
//
// Thread rule: open, connect and board calls as said there; a NodeRegion belongs to the engine's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plugins/ofi/ring_writer.h"
#include "plugins/ofi/status.h"

namespace shardrun::ofi {

// What precedes the bytes of a chunk. A reader compares ticket, kind and total with its own operation's.
struct ChunkHead {
  uint64_t ticket = 0;
  uint64_t total = 0;  // of the operation: its count, by which a mismatch is told
  uint64_t offset = 0, bytes = 0;
  const std::byte* lent = nullptr;  // where the bytes lie in the writer's memory; null: they follow the head
  uint32_t kind = 0;
};

// How large things are, with at most so many ranks on a node. What a rank reads before a slot is written again is larger than
// its CPU's own cache: to take a line away from there costs more than to have it from the cache that all share (0139).
struct NodeGeometry {
  uint32_t ranks = 1;

  explicit NodeGeometry(uint32_t rank_count) : ranks(rank_count) {}
  uint64_t chunk_to_all() const { return 64 << 10; }
  uint64_t slots_to_all() const { return 8; }
  uint64_t chunk_to_one() const;
  uint64_t slots_to_one() const;
  uint64_t counters_bytes() const;
  uint64_t ring_to_all_bytes() const;
  uint64_t ring_to_one_bytes() const;
  uint64_t region_bytes() const;
};

class NodeRegion;

class NodeMemory {
 public:
  static constexpr uint32_t kChannels = 255;

  // Removes the files of this user's ranks that were killed before theirs was forgotten, once they are ten minutes old. One rank of
  // a node does so.
  static void remove_left_behind();
  // Makes this rank's file. IO if /dev/shm refuses.
  static Status open(uint64_t cookie, std::unique_ptr<NodeMemory>* memory);
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  // Opens the files of all ranks of the node, of which this one is number `mine`. `crowd` is the most ranks that any node
  // of the job has, so that chunks are of one size everywhere. PEER_LOST names a file that is not there.
  Status connect(std::span<const uint64_t> cookies, uint32_t mine, uint32_t crowd);
  // Removes the file's name, once every rank of the node has it open.
  void forget_name();

  uint32_t ranks() const { return static_cast<uint32_t>(files_.size()); }
  uint32_t mine() const { return mine_; }
  // Returns the cookie of a rank of the node, by which its bell is known.
  uint64_t cookie(uint32_t rank) const { return files_[rank].cookie; }

  // The newest ticket that a rank of the node has given out on a channel. Any thread.
  void set_posted(uint32_t channel, uint64_t ticket);
  uint64_t posted(uint32_t rank, uint32_t channel) const;

  // Tells a rank of the node that there is something new for it. Returns whether it sleeps and needs its bell.
  bool notify(uint32_t rank);
  // Returns how often this rank was told so.
  uint64_t notices() const;
  // Says that this rank is about to sleep; false, and it must not, if it was told something since `notices` was read.
  bool may_sleep(uint64_t notices);
  void wake_up();

  // Says that nothing that this rank has lent may be read any more, before its callers get their buffers back after a failure.
  // Any thread.
  void withdraw();

 private:
  friend class NodeRegion;
  struct Board;
  // Copies from the memory of a rank of the node. Returns whether it could and the bytes are what they were when they were lent.
  bool read(uint32_t rank, std::byte* to, const std::byte* from, uint64_t bytes) const;
  bool may_read(uint32_t rank) const;
  struct File {
    uint64_t cookie = 0;
    int descriptor = -1;
    Board* board = nullptr;
  };
  NodeMemory() = default;

  std::vector<File> files_;  // by rank of the node
  File own_;                 // until connect
  uint32_t mine_ = 0;
  NodeGeometry geometry_{1};
  std::string name_;  // empty once forgotten
};

// One group's part of the memory. Ranks are numbered by their places in the group's list of this node's members.
class NodeRegion {
 public:
  // `half` is 0 or 1. `members` are numbers of the node's ranks, this rank's among them; `group` names the group alone.
  NodeRegion(NodeMemory* memory, uint32_t channel, uint32_t half, std::vector<uint32_t> members,
             uint64_t group);
  ~NodeRegion();
  NodeRegion(const NodeRegion&) = delete;
  NodeRegion& operator=(const NodeRegion&) = delete;

  // Opens what is not open yet, with memory for the rings that this rank will write. Sets *ready once all members have
  // opened theirs: they may be used from then on.
  Status attach(bool writes_to_all, bool writes_to_one, bool* ready);

  bool has_opened(uint32_t member) const { return opened_[member]; }

  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }
  uint32_t mine() const { return mine_; }

  // The ring that all others read. Returns where the next chunk's bytes go; null while there is no room.
  std::byte* room_to_all();
  void publish_to_all(const ChunkHead& head);
  // Returns the oldest chunk that this rank has not released; null if there is none. Its bytes follow it.
  const ChunkHead* next_from_all(uint32_t member) const;
  void release_from_all(uint32_t member);
  // Returns whether chunks to all may be lent: all ranks of the group can read in each other's memory.
  bool may_lend() const { return may_lend_; }
  // Copies the bytes of a chunk, wherever they are. False: their writer takes part no longer.
  bool copy_from_all(uint32_t member, const ChunkHead& head, std::byte* to) const;
  // Returns whether all have released all chunks to all. If not, this rank is told of each release.
  bool is_returned();

  // Returns whether a member has not released all chunks that this rank has published: to all, to it alone.
  bool lags_to_all(uint32_t member) const;
  bool lags_to_one(uint32_t member) const;

  // The rings between two, likewise.
  std::byte* room_to_one(uint32_t member);
  void publish_to_one(uint32_t member, const ChunkHead& head);
  const ChunkHead* next_from_one(uint32_t member) const;
  void release_from_one(uint32_t member);

  uint64_t chunk_to_all() const { return geometry_.chunk_to_all(); }
  uint64_t chunk_to_one() const { return geometry_.chunk_to_one(); }
  // Copies to the room of a chunk.
  void fill(std::byte* room, const std::byte* from, uint64_t bytes) { writer_.copy(room, from, bytes); }
  static const std::byte* bytes_of(const ChunkHead* head);

  // Moves the node's ranks for which there is something new since the last call to `ranks`.
  void take_news(std::vector<uint32_t>* ranks);

 private:
  struct Ring;
  struct Header;
  Status reserve_counters(uint32_t member);
  Status map(uint32_t member);
  Status reserve_rings(bool to_all, bool to_one);
  bool is_read();
  bool open_own();
  bool agree_on_lending();
  Header& header(uint32_t member) const;
  Ring& ring_to_all(uint32_t owner) const;
  Ring& ring_to_one(uint32_t owner, uint32_t reader) const;
  std::atomic<uint64_t>& tail_to_all(uint32_t owner, uint32_t reader) const;
  std::byte* slot_to_all(uint32_t owner, uint64_t number) const;
  std::byte* slot_to_one(uint32_t owner, uint32_t reader, uint64_t number) const;
  void tell(uint32_t member) { news_[member] = true; }

  NodeMemory* memory_;
  NodeGeometry geometry_;
  RingWriter writer_;
  uint64_t slots_to_all_, slots_to_one_;
  uint64_t offset_;
  std::vector<uint32_t> members_;
  uint32_t mine_ = 0;
  uint64_t group_;
  bool is_open_ = false;  // our own region is this group's
  bool has_tried_ = false, may_lend_ = false;
  bool has_to_all_ = false, has_to_one_ = false;
  std::vector<std::byte*> mapped_;   // by member
  std::vector<bool> opened_, news_;  // by member
};

}  // namespace shardrun::ofi

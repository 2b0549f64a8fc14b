// All-to-all: every rank has a part for every other one, of any size.
#include <algorithm>

#include "plugins/ofi/copy.h"
#include "plugins/ofi/operations.h"

namespace shardrun::ofi {
namespace {

constexpr uint64_t kPartSegmentBytes = 1 << 20;

class AllToAll final : public Operation {
 public:
  AllToAll(const Group& group, const OperationId& id, const void* send, const uint64_t* send_bytes,
           void* receive, const uint64_t* receive_bytes)
      : Operation(group, id, kAllToAll, 0),
        send_(parts(send, send_bytes)),
        receive_(parts(receive, receive_bytes)) {
    const uint32_t me = group.mine, size = group.size();
    const Part &from_me = send_[me], &to_me = receive_[me];
    if (const uint64_t bytes = std::min(from_me.bytes, to_me.bytes); bytes > 0)
      copy_bytes(to_me.memory, from_me.memory, bytes);
    writes_to_one = near().size() > 1;
    // The next rank first, so that not all turn to the same one.
    for (uint32_t step = 1; step < size; ++step) {
      const uint32_t to = (me + step) % size, from = (me + size - step) % size;
      if (layout().node_of[to] != node()) add_part(to, /*is_send=*/true, send_[to]);
      if (layout().node_of[from] != node()) add_part(from, /*is_send=*/false, receive_[from]);
    }
  }

  bool advance() override {
    if (region_ == nullptr) return false;
    bool moved = false;
    for (uint32_t step = 1; step < near().size(); ++step) {
      const auto size = static_cast<uint32_t>(near().size());
      moved |= give((near_mine() + step) % size);
      moved |= take((near_mine() + size - step) % size);
    }
    return moved;
  }

  // A rank without parts does not leave before it has opened its memory, for which the others wait.
  bool finished() const override {
    if (needs_region() && region_ == nullptr) return false;
    const auto through_memory = [this](uint32_t rank) {
      return rank == group_.mine || (send_[rank].done() && receive_[rank].done());
    };
    return std::all_of(near().begin(), near().end(), through_memory) && Operation::finished();
  }

 protected:
  void add_awaited(std::vector<uint32_t>* group_ranks) const override {
    for (uint32_t member = 0; member < near().size(); ++member) {
      const uint32_t rank = near()[member];
      const bool lags = region_ != nullptr && !send_[rank].done() && region_->lags_to_one(member);
      if (rank != group_.mine && (lags || !receive_[rank].done())) group_ranks->push_back(rank);
    }
  }

 private:
  struct Part {
    std::byte* memory = nullptr;
    uint64_t bytes = 0, moved = 0;  // through the node's memory
    bool done() const { return moved == bytes; }
  };

  std::vector<Part> parts(const void* memory, const uint64_t* bytes) const {
    std::vector<Part> parts(group_.size());
    auto* at = static_cast<std::byte*>(const_cast<void*>(memory));
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      parts[rank] = {at, bytes[rank]};
      at += bytes[rank];
    }
    return parts;
  }

  void add_part(uint32_t rank, bool is_send, const Part& part) {
    if (part.bytes > 0) add_flow(rank, is_send, 0, part.memory, part.bytes, kPartSegmentBytes, part.bytes);
  }

  bool give(uint32_t member) {
    Part& part = send_[near()[member]];
    std::byte* const room = part.done() ? nullptr : region_->room_to_one(member);
    if (room == nullptr) return false;
    const uint64_t bytes = std::min(region_->chunk_to_one(), part.bytes - part.moved);
    region_->fill(room, part.memory + part.moved, bytes);
    region_->publish_to_one(member, head(part.moved, bytes));
    part.moved += bytes;
    return true;
  }

  bool take(uint32_t member) {
    Part& part = receive_[near()[member]];
    const ChunkHead* const chunk = part.done() ? nullptr : region_->next_from_one(member);
    if (chunk == nullptr || !is_ours(*chunk, member, part.bytes)) return false;
    copy_bytes(part.memory + chunk->offset, NodeRegion::bytes_of(chunk), chunk->bytes);
    part.moved += chunk->bytes;
    region_->release_from_one(member);
    return true;
  }

  std::vector<Part> send_, receive_;  // by group rank
};

}  // namespace

std::unique_ptr<Operation> make_all_to_all(const Group& group, const OperationId& id, const void* send,
                                           const uint64_t* send_bytes, void* receive,
                                           const uint64_t* receive_bytes) {
  return std::make_unique<AllToAll>(group, id, send, send_bytes, receive, receive_bytes);
}

}  // namespace shardrun::ofi

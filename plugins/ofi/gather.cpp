// All-gather and broadcast of more than a few bytes.
#include <unistd.h>

#include <cstring>

#include "plugins/ofi/operations.h"
#include "plugins/ofi/spread.h"

namespace shardrun::ofi {
namespace {

std::byte* bytes_of(const void* pointer) {
  return static_cast<std::byte*>(const_cast<void*>(pointer));
}

// Returns whether the machine has a CPU for each of so many ranks.
bool has_cpu_each(size_t ranks) {
  static const auto cpus = static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN));  // reads a file
  return ranks <= cpus;
}

// An operation that passes blocks of one buffer on to the other ranks of the node.
class Spreading : public Operation {
 public:
  bool finished() const override { return spread_.finished() && Operation::finished(); }

 protected:
  Spreading(const Group& group, const OperationId& id, uint32_t kind, std::byte* buffer,
            uint64_t buffer_bytes, uint64_t total)
      : Operation(group, id, kind, total), buffer_(buffer), buffer_bytes_(buffer_bytes) {}

  bool spread() {
    if (region_ == nullptr) return false;
    const bool gave = spread_.give(*region_, buffer_,
                                   [this](uint64_t offset, uint64_t bytes) { return head(offset, bytes); });
    const bool took = spread_.take(*region_, buffer_, [this](const ChunkHead& chunk, uint32_t member) {
      return is_ours(chunk, member, buffer_bytes_);
    });
    return gave || took;
  }
  void add_awaited(std::vector<uint32_t>* group_ranks) const override {
    std::vector<uint32_t> members;
    spread_.add_awaited(region_, &members);
    for (const uint32_t member : members) group_ranks->push_back(near()[member]);
  }

  std::byte* buffer_;
  uint64_t buffer_bytes_;
  Spread spread_;
};

class AllGather final : public Spreading {
 public:
  AllGather(const Group& group, const OperationId& id, const void* mine, uint64_t bytes, void* all)
      : Spreading(group, id, kGather, bytes_of(all), bytes * group.size(), bytes) {
    const uint32_t me = group.mine;
    const bool shares = near().size() > 1 && bytes > 0;
    std::byte* own = buffer_ + me * bytes;
    const bool is_elsewhere = bytes > 0 && own != mine;
    if (is_elsewhere && !shares) std::memcpy(own, mine, bytes);
    const std::vector<common::NodeFlow> planned = common::gather_flows(layout(), me);
    constexpr uint64_t kStreamUnderWay = 2 << 20;
    const uint64_t message = message_of(bytes, /*parts=*/4, /*least=*/128 << 10);
    for (const common::NodeFlow& flow : planned) {
      std::byte* bytes_there = flow.is_send ? bytes_of(mine) : buffer_ + flow.part * bytes;
      Flow& added = add_flow(flow.peer, flow.is_send, 0, bytes_there, bytes, message, bytes,
                             static_cast<uint32_t>(kStreamUnderWay / message));
      if (bytes <= kAskedBytes && layout().size() == layout().nodes()) added.room = 0;
    }
    if (!shares) return;
    writes_to_all = true;
    // Who lends waits until the others have read: not where ranks share CPUs, nor where links bring parts, the last ones at once.
    if (layout().nodes() == 1 && has_cpu_each(near().size())) spread_.lend();
    spread_.add_block(me * bytes, bytes, is_elsewhere ? bytes_of(mine) : nullptr);
    spread_.set_ready(0, bytes);
    for (const common::NodeFlow& flow : planned) {
      if (flow.is_send) break;
      spread_.add_block(flow.part * bytes, bytes);
      ++received_;
    }
    for (uint32_t member = 0; member < near().size(); ++member) {
      if (near()[member] != me) spread_.expect(member, (1 + layout().led_by(near()[member]).size()) * bytes);
    }
  }

  bool advance() override {
    for (size_t i = 0; i < received_; ++i) spread_.set_ready(i + 1, flows_[i].complete_bytes());
    return spread();
  }

 private:
  size_t received_ = 0;  // flows whose parts are passed on, the first ones
};

// A binomial tree over the nodes, from that of the root; in each node one rank passes on to the others.
class Broadcast final : public Spreading {
 public:
  Broadcast(const Group& group, const OperationId& id, void* buffer, uint64_t bytes, uint32_t root)
      : Spreading(group, id, kBroadcast, bytes_of(buffer), bytes, bytes) {
    const uint32_t nodes = layout().nodes(), first = layout().node_of[root];
    const auto speaker_of = [&](uint32_t other) {
      return other == first ? root : layout().members[other][0];
    };
    const bool shares = near().size() > 1 && bytes > 0;
    writes_to_all = shares;
    if (speaker_of(node()) != group.mine) {
      spread_.expect(layout().index_of[speaker_of(node())], bytes);
      return;
    }
    const uint32_t place = (node() + nodes - first) % nodes;  // in the tree; the root's is 0
    const auto at_place = [&](uint32_t other) { return speaker_of((other + first) % nodes); };
    uint32_t span = 1;  // places place + 1 … place + span - 1 are below this one
    while (span < nodes && (place & span) == 0) span *= 2;
    from_parent_ = place != 0;
    if (from_parent_)
      add_flow(at_place(place - span), /*is_send=*/false, 0, buffer, bytes, kMostMessage, bytes);
    for (uint32_t distance = span / 2; distance > 0; distance /= 2) {
      if (place + distance >= nodes) continue;
      add_flow(at_place(place + distance), /*is_send=*/true, 0, buffer, bytes, kMostMessage,
               from_parent_ ? 0 : bytes);
    }
    if (shares) {
      spread_.add_block(0, bytes);
      if (!from_parent_) spread_.set_ready(0, bytes);
      gives_ = true;
    }
  }

  bool advance() override {
    if (from_parent_) {
      for (size_t i = 1; i < flows_.size(); ++i) flows_[i].limit_bytes = flows_[0].complete_bytes();
      if (gives_) spread_.set_ready(0, flows_[0].complete_bytes());
    }
    return spread();
  }

 private:
  bool from_parent_ = false, gives_ = false;
};

}  // namespace

std::unique_ptr<Operation> make_all_gather(const Group& group, const OperationId& id, const void* mine,
                                           uint64_t bytes, void* all) {
  return std::make_unique<AllGather>(group, id, mine, bytes, all);
}

std::unique_ptr<Operation> make_broadcast(const Group& group, const OperationId& id, void* buffer,
                                          uint64_t bytes, uint32_t root) {
  return std::make_unique<Broadcast>(group, id, buffer, bytes, root);
}

}  // namespace shardrun::ofi

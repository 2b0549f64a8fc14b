#include "plugins/ofi/operation.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "plugins/abi/comm_v1.h"

namespace shardrun::ofi {
namespace {

enum Kind : uint32_t { kGather = 0, kScatter, kReduceFloat, kReduceDouble, kBroadcast, kBarrier, kExchange };

constexpr uint64_t kDirectSegmentBytes = 1 << 20;  // straight into the caller's buffer
constexpr uint32_t kWindow = 4;
constexpr uint64_t kTreeSegmentBytes = 256 << 10;

// The contributions of all peers to one segment are in scratch at once, `kWindow` segments deep.
uint64_t sum_segment_bytes(uint32_t group_size) {
  const uint32_t size = std::max(2u, group_size);
  return shardrun_comm_v1_sum_bytes(size, UINT64_MAX) / (size - 1) / kWindow;
}

template <typename T>
void add_to(T* __restrict sum, const T* __restrict x, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) sum[i] += x[i];
}

// into = left + into
template <typename T>
void add_left(T* __restrict into, const T* __restrict left, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) into[i] = left[i] + into[i];
}

// Sums one slice in rank order from its peers' flows and this rank's own part, segment by segment. The sum of the
// ranks below ours grows where rank 0's part landed (in `out`, or in its scratch while `out` still holds our own
// part); from our own part on it grows in `out`.
template <typename T>
struct SliceSum {
  uint32_t group_size = 1, mine = 0;
  const T* own = nullptr;  // may equal out
  T* out = nullptr;
  uint64_t count = 0;
  uint64_t segment = 1;                // elements
  std::vector<uint32_t> flow_of_rank;  // where each peer's part comes in
  uint64_t summed = 0;                 // elements of out that are final
  uint32_t next_rank = 0;

  void advance(std::vector<Flow>& flows) {
    while (summed < count) {
      const uint64_t length = std::min(segment, count - summed);
      for (; next_rank < group_size; ++next_rank) {
        if (next_rank != mine &&
            flows[flow_of_rank[next_rank]].complete_bytes() < (summed + length) * sizeof(T)) {
          return;
        }
        add_part(flows, length);
      }
      next_rank = 0;
      summed += length;
      for (uint32_t rank = 0; rank < group_size; ++rank) {
        if (rank == mine) continue;
        Flow& flow = flows[flow_of_rank[rank]];
        if (flow.ring) flow.limit_bytes += segment * sizeof(T);
      }
    }
  }

 private:
  T* arrived(std::vector<Flow>& flows, uint32_t rank) {
    return reinterpret_cast<T*>(
        flows[flow_of_rank[rank]].segment_data(static_cast<uint32_t>(summed / segment)));
  }

  void add_part(std::vector<Flow>& flows, uint64_t length) {
    if (next_rank == mine) {
      if (mine == 0) {
        if (own != out) std::memcpy(out + summed, own + summed, length * sizeof(T));
      } else if (own == out) {
        add_left(out + summed, arrived(flows, 0), length);
      } else {
        add_to(out + summed, own + summed, length);
      }
    } else if (next_rank > 0) {
      T* sum = next_rank < mine && own == out ? arrived(flows, 0) : out + summed;
      add_to(sum, arrived(flows, next_rank), length);
    }
  }
};

// Visits peers in the order in which this rank turns to them: its right neighbour first, so that not all go to rank
// 0.
template <typename Visit>
void for_each_peer(const Group& group, Visit visit) {
  for (uint32_t step = 1; step < group.size(); ++step) visit((group.mine + step) % group.size());
}

std::byte* bytes_of(const void* pointer) {
  return static_cast<std::byte*>(const_cast<void*>(pointer));
}

class AllGather final : public Operation {
 public:
  AllGather(const Group& group, const OperationId& id, const void* mine, uint64_t bytes, void* all) {
    const auto tag_from = [&](uint32_t peer) { return make_tag(id, kGather, 0, group.global_ranks[peer]); };
    for_each_peer(group, [&](uint32_t peer) {
      add_flow(group, peer, /*is_send=*/false, tag_from(peer), bytes_of(all) + peer * bytes, bytes,
               kDirectSegmentBytes, bytes);
    });
    const uint64_t own_tag = tag_from(group.mine);
    for_each_peer(group, [&](uint32_t peer) {
      add_flow(group, peer, /*is_send=*/true, own_tag, bytes_of(mine), bytes, kDirectSegmentBytes, bytes);
    });
    std::byte* own = bytes_of(all) + group.mine * bytes;
    if (bytes > 0 && own != mine) std::memcpy(own, mine, bytes);
  }
};

class ReduceScatter final : public Operation {
 public:
  ReduceScatter(const Group& group, const OperationId& id, const float* full, uint64_t count, float* mine) {
    const uint64_t segment_bytes = sum_segment_bytes(group.size());
    const uint64_t bytes = count * sizeof(float);
    sum_ = {.group_size = group.size(),
            .mine = group.mine,
            .own = full + group.mine * count,
            .out = mine,
            .count = count,
            .segment = segment_bytes / sizeof(float)};
    sum_.flow_of_rank.resize(group.size());
    for_each_peer(group, [&](uint32_t peer) {
      sum_.flow_of_rank[peer] = static_cast<uint32_t>(flows_.size());
      Flow& flow =
          add_flow(group, peer, /*is_send=*/false, make_tag(id, kScatter, 0, group.global_ranks[peer]), mine,
                   bytes, segment_bytes, bytes);
      if (peer != 0) make_ring(flow);
    });
    const uint64_t own_tag = make_tag(id, kScatter, 0, group.global_ranks[group.mine]);
    for_each_peer(group, [&](uint32_t peer) {
      add_flow(group, peer, /*is_send=*/true, own_tag, bytes_of(full + peer * count), bytes, segment_bytes,
               bytes);
    });
  }
  void advance() override { sum_.advance(flows_); }
  bool finished() const override { return sum_.summed == sum_.count && Operation::finished(); }

 private:
  SliceSum<float> sum_;
};

// Small all-reduce: everyone gets everyone's whole buffer and sums it.
template <typename T>
class ExchangeAllReduce final : public Operation {
 public:
  ExchangeAllReduce(const Group& group, const OperationId& id, T* buffer, uint64_t count) {
    const uint64_t bytes = count * sizeof(T);
    sum_ = {.group_size = group.size(),
            .mine = group.mine,
            .own = buffer,
            .out = buffer,
            .count = count,
            .segment = std::max<uint64_t>(count, 1)};
    sum_.flow_of_rank.resize(group.size());
    for_each_peer(group, [&](uint32_t peer) {
      sum_.flow_of_rank[peer] = static_cast<uint32_t>(flows_.size());
      put_in_scratch(
          add_flow(group, peer, /*is_send=*/false, make_tag(id, kExchange, 0, group.global_ranks[peer]),
                   nullptr, bytes, std::max<uint64_t>(bytes, 1), bytes),
          bytes);
    });
    const uint64_t own_tag = make_tag(id, kExchange, 0, group.global_ranks[group.mine]);
    for_each_peer(group, [&](uint32_t peer) {
      add_flow(group, peer, /*is_send=*/true, own_tag, buffer, bytes, std::max<uint64_t>(bytes, 1), bytes);
    });
  }
  // The buffer is both sent from and summed into, so it may change only after the last send.
  void advance() override {
    if (Operation::finished()) sum_.advance(flows_);
  }
  bool finished() const override { return sum_.summed == sum_.count && Operation::finished(); }

 private:
  SliceSum<T> sum_;
};

// Large all-reduce: a reduce-scatter of slices, then an all-gather of the sums, both in place and overlapping.
template <typename T>
class SlicedAllReduce final : public Operation {
 public:
  SlicedAllReduce(const Group& group, const OperationId& id, uint32_t kind, T* buffer, uint64_t count)
      : peers_(group.size() - 1) {
    const uint64_t segment_bytes = sum_segment_bytes(group.size());
    const auto start = [&](uint64_t rank) {
      return rank * (count / group.size()) + std::min<uint64_t>(rank, count % group.size());
    };
    const auto bytes = [&](uint64_t rank) { return (start(rank + 1) - start(rank)) * sizeof(T); };
    const auto tag_from = [&](uint32_t step, uint32_t peer) {
      return make_tag(id, kind, step, group.global_ranks[peer]);
    };
    const uint32_t me = group.mine;
    T* own = buffer + start(me);
    sum_ = {.group_size = group.size(),
            .mine = me,
            .own = own,
            .out = own,
            .count = bytes(me) / sizeof(T),
            .segment = segment_bytes / sizeof(T)};
    sum_.flow_of_rank.resize(group.size());
    for_each_peer(group, [&](uint32_t peer) {
      sum_.flow_of_rank[peer] = static_cast<uint32_t>(flows_.size());
      make_ring(
          add_flow(group, peer, /*is_send=*/false, tag_from(0, peer), nullptr, bytes(me), segment_bytes, 0));
    });
    first_send_ = flows_.size();
    const uint64_t part_tag = tag_from(0, me), sum_tag = tag_from(1, me);
    for_each_peer(group, [&](uint32_t peer) {
      add_flow(group, peer, /*is_send=*/true, part_tag, buffer + start(peer), bytes(peer), segment_bytes,
               bytes(peer));
    });
    for_each_peer(group, [&](uint32_t peer) {
      add_flow(group, peer, /*is_send=*/false, tag_from(1, peer), buffer + start(peer), bytes(peer),
               segment_bytes, 0);
    });
    for_each_peer(group, [&](uint32_t peer) {
      add_flow(group, peer, /*is_send=*/true, sum_tag, own, bytes(me), segment_bytes, 0);
    });
  }

  void advance() override {
    sum_.advance(flows_);
    for (size_t i = 0; i < peers_; ++i) {
      // A slice's sums may land only where its parts have left, and leave only once they are made.
      flows_[first_send_ + peers_ + i].limit_bytes = flows_[first_send_ + i].complete_bytes();
      flows_[first_send_ + 2 * peers_ + i].limit_bytes = sum_.summed * sizeof(T);
    }
  }
  bool finished() const override { return sum_.summed == sum_.count && Operation::finished(); }

 private:
  const size_t peers_;
  SliceSum<T> sum_;
  size_t first_send_ = 0;
};

class Broadcast final : public Operation {
 public:
  Broadcast(const Group& group, const OperationId& id, void* buffer, uint64_t bytes, uint32_t root) {
    const uint32_t size = group.size();
    const uint32_t place = (group.mine + size - root) % size;  // in the tree; the root is 0
    const auto at_place = [&](uint32_t other) { return (other + root) % size; };
    uint32_t span = 1;  // places place + 1 ... place + span - 1 are below this one
    while (span < size && (place & span) == 0) span *= 2;
    from_parent_ = place != 0;
    if (from_parent_) {
      const uint32_t parent = at_place(place - span);
      add_flow(group, parent, /*is_send=*/false, make_tag(id, kBroadcast, 0, group.global_ranks[parent]),
               buffer, bytes, kTreeSegmentBytes, bytes);
    }
    const uint64_t own_tag = make_tag(id, kBroadcast, 0, group.global_ranks[group.mine]);
    for (uint32_t distance = span / 2; distance > 0; distance /= 2) {
      if (place + distance >= size) continue;
      add_flow(group, at_place(place + distance), /*is_send=*/true, own_tag, buffer, bytes, kTreeSegmentBytes,
               from_parent_ ? 0 : bytes);
    }
  }

  void advance() override {
    if (!from_parent_) return;
    for (size_t i = 1; i < flows_.size(); ++i) flows_[i].limit_bytes = flows_[0].complete_bytes();
  }

 private:
  bool from_parent_ = false;
};

class Barrier final : public Operation {
 public:
  Barrier(const Group& group, const OperationId& id) {
    synchronises = true;
    uint32_t step = 0;
    for (uint32_t distance = 1; distance < group.size(); distance *= 2, ++step) {
      const uint32_t from = (group.mine + group.size() - distance) % group.size();
      const uint32_t to = (group.mine + distance) % group.size();
      add_flow(group, from, /*is_send=*/false, make_tag(id, kBarrier, step, group.global_ranks[from]),
               &heard_, 1, 1, 1);
      add_flow(group, to, /*is_send=*/true, make_tag(id, kBarrier, step, group.global_ranks[group.mine]),
               &said_, 1, 1, step == 0 ? 1 : 0);
    }
  }

  void advance() override {
    for (size_t step = 1; 2 * step < flows_.size(); ++step) {
      if (!flows_[2 * step - 2].finished()) return;
      flows_[2 * step + 1].limit_bytes = 1;
    }
  }

 private:
  std::byte heard_{}, said_{};
};

template <typename T>
std::unique_ptr<Operation> make_all_reduce(const Group& group, const OperationId& id, T* buffer,
                                           uint64_t count) {
  if (count * sizeof(T) <= SHARDRUN_COMM_V1_WHOLE_BYTES || group.size() == 1)
    return std::make_unique<ExchangeAllReduce<T>>(group, id, buffer, count);
  const uint32_t kind = sizeof(T) == sizeof(float) ? kReduceFloat : kReduceDouble;
  return std::make_unique<SlicedAllReduce<T>>(group, id, kind, buffer, count);
}

}  // namespace

uint32_t Flow::segments() const {
  return static_cast<uint32_t>((total_bytes + segment_bytes - 1) / segment_bytes);
}

uint64_t Flow::complete_bytes() const {
  return std::min(complete * segment_bytes, total_bytes);
}

std::byte* Flow::segment_data(uint32_t segment) const {
  return base + (ring ? segment % window : segment) * segment_bytes;
}

uint64_t Flow::segment_size(uint32_t segment) const {
  return std::min(segment_bytes, total_bytes - segment * segment_bytes);
}

bool Flow::may_post() const {
  return posted < segments() && posted < granted && posted - complete < window &&
         posted * segment_bytes + segment_size(posted) <= limit_bytes;
}

void Flow::mark_complete(uint32_t segment) {
  ahead[segment % window] = true;
  while (complete < posted && ahead[complete % window]) ahead[complete++ % window] = false;
}

bool Operation::finished() const {
  return std::all_of(flows_.begin(), flows_.end(), [](const Flow& flow) { return flow.finished(); });
}

std::vector<uint32_t> Operation::awaited() const {
  std::vector<uint32_t> ranks;
  for (const bool is_send : {false, true}) {
    for (const Flow& flow : flows_) {
      if (flow.is_send == is_send && !flow.finished()) ranks.push_back(flow.global_rank);
    }
    if (!ranks.empty()) break;
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Flow& Operation::add_flow(const Group& group, uint32_t group_rank, bool is_send, uint64_t tag, void* base,
                          uint64_t total_bytes, uint64_t segment_bytes, uint64_t limit_bytes) {
  Flow& flow = flows_.emplace_back();
  flow.global_rank = group.global_ranks[group_rank];
  flow.is_send = is_send;
  flow.tag = tag;
  flow.base = bytes_of(base);
  flow.total_bytes = total_bytes;
  flow.segment_bytes = segment_bytes;
  flow.limit_bytes = limit_bytes;
  flow.window = std::max(1u, std::min(kWindow, flow.segments()));
  flow.ahead.resize(flow.window);
  flow.requests.resize(flow.window);
  return flow;
}

void Operation::put_in_scratch(Flow& flow, uint64_t bytes) {
  flow.in_scratch = true;
  flow.scratch_offset = scratch_bytes_;
  scratch_bytes_ += (bytes + 63) / 64 * 64;
}

void Operation::make_ring(Flow& flow) {
  flow.ring = true;
  flow.limit_bytes = flow.window * flow.segment_bytes;
  put_in_scratch(flow, std::min(flow.limit_bytes, flow.total_bytes));
}

void Operation::use_scratch(std::byte* scratch) {
  for (Flow& flow : flows_) {
    if (flow.in_scratch) flow.base = scratch + flow.scratch_offset;
  }
}

uint64_t make_tag(const OperationId& id, uint32_t kind, uint32_t step, uint32_t sender_global_rank) {
  const std::array<uint64_t, 4> numbers = {id.ticket, id.channel, uint64_t{kind} << 32 | step,
                                           sender_global_rank};
  const common::Digest digest = id.key({{reinterpret_cast<const char*>(numbers.data()), sizeof(numbers)}});
  uint64_t tag = 0;
  std::memcpy(&tag, digest.data(), sizeof(tag));
  return tag;
}

std::unique_ptr<Operation> make_operation(const Group& group, const OperationId& id,
                                          const common::Collective& collective) {
  const auto& [kind, in, out, count, root] = collective;
  std::unique_ptr<Operation> operation;
  const char* name = "";
  switch (kind) {
    case common::Kind::kAllGather:
      operation = std::make_unique<AllGather>(group, id, in, count, out);
      name = "all-gather";
      break;
    case common::Kind::kReduceScatter:
      operation = std::make_unique<ReduceScatter>(group, id, static_cast<const float*>(in), count,
                                                  static_cast<float*>(out));
      name = "reduce-scatter";
      break;
    case common::Kind::kAllReduceFloat:
      operation = make_all_reduce(group, id, static_cast<float*>(out), count);
      name = "all-reduce";
      break;
    case common::Kind::kAllReduceDouble:
      operation = make_all_reduce(group, id, static_cast<double*>(out), count);
      name = "all-reduce";
      break;
    case common::Kind::kBroadcast:
      operation = std::make_unique<Broadcast>(group, id, out, count, root);
      name = "broadcast";
      break;
    case common::Kind::kBarrier:
      operation = std::make_unique<Barrier>(group, id);
      name = "barrier";
      break;
  }
  operation->name = name;
  return operation;
}

}  // namespace shardrun::ofi

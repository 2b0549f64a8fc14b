// Reduce-scatter and all-reduce of more than a few bytes.
//
// The buffer is cut into one slice for each rank, its owner. On each node one rank leads a slice: the others hand it
// their pieces through memory, and it adds up the node's subtrees (sum_tree.h) and sends those sums to the owner, which
// makes the slice's sum of them. An all-reduce then gives the sums to all as an all-gather does. All of it goes segment
// by segment and overlaps.
#include <algorithm>

#include "plugins/abi/comm_v1.h"
#include "plugins/common/sum_tree.h"
#include "plugins/ofi/chunk_walk.h"
#include "plugins/ofi/operations.h"
#include "plugins/ofi/spread.h"

namespace shardrun::ofi {

using common::plan_sum;
using common::run_sum;
using common::Subtree;
using common::Sum;

namespace {

constexpr uint64_t kUnit = 64;
constexpr uint64_t kLeastMessage = 64 << 10;

uint64_t message_of_sums(uint64_t stream_bytes) {
  return message_of(stream_bytes, /*parts=*/8, kLeastMessage);
}

// The slices of a buffer, in bytes.
struct Slices {
  uint64_t count = 0, each = 0, longer = 0, element_bytes = 1;

  // `longer` slices, the first ones, have one element more than `each`.
  static Slices of(uint64_t elements, uint64_t slices, uint64_t element_bytes) {
    return {slices, elements / slices, elements % slices, element_bytes};
  }
  uint64_t begin(uint64_t slice) const { return (slice * each + std::min(slice, longer)) * element_bytes; }
  uint64_t bytes(uint64_t slice) const { return begin(slice + 1) - begin(slice); }
  uint64_t longest() const { return (each + (longer > 0 ? 1 : 0)) * element_bytes; }
};

// How the streams of sums are cut.
struct Cut {
  uint64_t segment = kUnit;  // bytes of a message
  uint64_t piece = kUnit;  // bytes that the ranks of a node hand each other at once; a segment has whole ones
  uint32_t window = kWindow;  // segments of a stream that a rank holds at once
};

// What a rank holds of sums at once fits into what comm_v1.h allows: most_rings streams, a window of each.
Cut cut_for(const Layout& layout, uint64_t slice_bytes) {
  constexpr uint64_t kMostSegments = 16;
  const uint32_t size = std::max(2u, layout.size());
  uint64_t stream = shardrun_comm_v1_sum_bytes(size, UINT64_MAX) / layout.most_rings;
  if (layout.most_rings >= size) {
    stream = std::min(
        stream, std::max(kUnit * kWindow, shardrun_comm_v1_sum_bytes(size, slice_bytes) / layout.most_rings));
  }
  Cut cut;
  cut.segment = std::clamp(stream / kWindow, std::min(stream, kLeastMessage), message_of_sums(slice_bytes)) /
                kUnit * kUnit;
  cut.piece = cut.segment;
  if (const uint64_t chunk = NodeGeometry(layout.crowd).chunk_to_one();
      layout.shares_memory() && cut.segment > chunk) {
    cut.piece = chunk;
    cut.segment = cut.segment / chunk * chunk;
  }
  cut.window = static_cast<uint32_t>(std::min(stream / cut.segment, kMostSegments));
  return cut;
}

template <typename T>
class SumOfSlices final : public Operation {
 public:
  // `out` is where the own slice's sum goes; with `gathers`, that is its place in `source`, and all sums go there.
  SumOfSlices(const Group& group, const OperationId& id, uint32_t kind, T* source, const Slices& slices,
              T* out, bool gathers)
      : Operation(group, id, kind, slices.longest()),
        source_(reinterpret_cast<std::byte*>(source)),
        out_(reinterpret_cast<std::byte*>(out)),
        slices_(slices),
        cut_(cut_for(group.layout, slices.longest())),
        segment_(cut_.segment),
        window_(cut_.window),
        own_bytes_(slices.bytes(group.mine)),
        shares_(near().size() > 1 && slices.longest() > 0),
        is_alone_(layout().nodes() == 1) {
    led_ = layout().led_by(group.mine);
    plan_flows();
    for (Flow& flow : flows_) {
      if (!gathers && slices.longest() <= kAskedBytes) flow.room = 0;
    }
    plan_node_sums();
    plan_own_sum();
    if (shares_) plan_handing();
    if (gathers) plan_gathering();
    ask();
  }

  void use_scratch(std::byte* scratch) override {
    Operation::use_scratch(scratch);
    scratch_ = scratch;
  }

  bool advance() override {
    bool moved = false;
    if (shares_) {
      moved |= hand_out();
      moved |= add_up_node();
    }
    moved |= add_up_own();
    ask();
    if (gathers_) moved |= gather();
    return moved;
  }

  bool finished() const override {
    return summed_ == own_bytes_ && handed_out() && (!shares_ || reading_.at_end()) && spread_.finished() &&
           Operation::finished();
  }

 private:
  // One of the sums that this node makes of a slice that this rank leads.
  struct NodeSum {
    Sum sum;
    std::vector<uint32_t> members;  // whose pieces it takes, by number in the node
  };
  // What makes the own slice's sum.
  struct Input {
    Subtree tree;
    int64_t flow = -1;  // the flow that brings it, or
    uint64_t ring = 0;  // its place in scratch, made here
    bool is_source = false;
  };
  struct Hand {
    std::vector<uint32_t> parts;  // the slices that this member leads, its own the last
    ChunkWalk walk;
  };

  std::byte* slice(uint32_t rank) const { return source_ + slices_.begin(rank); }
  const T* typed(const std::byte* bytes) const { return reinterpret_cast<const T*>(bytes); }
  T* typed(std::byte* bytes) const { return reinterpret_cast<T*>(bytes); }

  // To the owners of the slices that this rank leads, and from the leaders of its own.
  void plan_flows() {
    for (const common::NodeFlow& planned : common::sum_flows(layout(), group_.mine)) {
      if (planned.is_send) {
        const bool is_source = near().size() == 1;
        const uint64_t bytes = slices_.bytes(planned.part);
        Flow& flow = add_flow(planned.peer, /*is_send=*/true, planned.root, slice(planned.part), bytes,
                              segment_, is_source ? bytes : 0, window_);
        if (!is_source) put_window_in_scratch(flow);
      } else {
        const uint32_t other = layout().node_of[planned.peer];
        inputs_.push_back(
            {.tree = layout().roots[other][planned.root], .flow = static_cast<int64_t>(flows_.size())});
        Flow& flow = add_flow(planned.peer, /*is_send=*/false, planned.root, nullptr, own_bytes_, segment_, 0,
                              window_);
        put_window_in_scratch(flow);
      }
    }
  }

  // How this node adds up its pieces of the slices that this rank leads.
  void plan_node_sums() {
    const auto& roots = layout().roots[node()];
    node_sums_.resize(roots.size());
    for (uint32_t root = 0; root < roots.size(); ++root) {
      std::vector<Subtree> leaves;
      for (uint32_t member = 0; member < near().size(); ++member) {
        const uint32_t rank = near()[member];
        if (rank < roots[root].begin || rank >= roots[root].end) continue;
        leaves.push_back({rank, rank + 1});
        node_sums_[root].members.push_back(member);
      }
      node_sums_[root].sum = plan_sum(leaves, roots[root]);
    }
  }

  void plan_own_sum() {
    for (const Subtree& root : layout().roots[node()]) {
      Input input{root};
      if (near().size() == 1) {
        input.is_source = true;
      } else if (!is_alone_) {
        input.ring = reserve_scratch(std::min(window_ * segment_, own_bytes_));
      }
      inputs_.push_back(input);
    }
    std::sort(inputs_.begin(), inputs_.end(),
              [](const Input& a, const Input& b) { return a.tree.begin < b.tree.begin; });
    std::vector<Subtree> trees;
    for (const Input& input : inputs_) trees.push_back(input.tree);
    own_sum_ = plan_sum(trees, {0, layout().size()});
  }

  void plan_handing() {
    writes_to_one = true;
    const auto walk_of = [&](const std::vector<uint32_t>& parts) {
      std::vector<uint64_t> bytes;
      for (const uint32_t part : parts) bytes.push_back(slices_.bytes(part));
      return ChunkWalk(std::move(bytes), cut_.piece, NodeGeometry(layout().crowd).chunk_to_one());
    };
    hands_.resize(near().size());
    for (uint32_t member = 0; member < near().size(); ++member) {
      Hand& hand = hands_[member];
      hand.parts = layout().led_by(near()[member]);
      hand.parts.push_back(near()[member]);
      if (member == near_mine()) {
        reading_ = walk_of(hand.parts);
      } else {
        hand.walk = walk_of(hand.parts);
      }
    }
  }

  // The sums go to where the contributions were. No sum arrives before its contribution has been read, because it is
  // made of it; only what libfabric sends straight from the buffer must be known to have left.
  void plan_gathering() {
    constexpr uint64_t kUnderWay = 1 << 20;  // of a stream
    const uint64_t message = message_of_sums(slices_.longest());
    gathers_ = true;
    first_sum_ = flows_.size();
    for (const common::NodeFlow& planned : common::gather_flows(layout(), group_.mine)) {
      const uint64_t bytes = slices_.bytes(planned.part);
      const bool waits = planned.is_send || near().size() == 1;
      add_flow(planned.peer, planned.is_send, kSumStep, planned.is_send ? out_ : slice(planned.part), bytes,
               message, waits ? 0 : bytes, static_cast<uint32_t>(kUnderWay / message));
    }
    if (!shares_) return;
    writes_to_all = true;
    spread_.add_block(slices_.begin(group_.mine), own_bytes_);
    for (const uint32_t part : led_) spread_.add_block(slices_.begin(part), slices_.bytes(part));
    for (uint32_t member = 0; member < near().size(); ++member) {
      if (member == near_mine()) continue;
      for (const uint32_t part : hands_[member].parts) spread_.expect(member, slices_.bytes(part));
    }
  }

  bool handed_out() const {
    return std::all_of(hands_.begin(), hands_.end(), [](const Hand& hand) { return hand.walk.at_end(); });
  }

  // Hands each other rank of this node a chunk of its pieces of the slices that that one leads.
  bool hand_out() {
    bool moved = false;
    for (uint32_t step = 1; step < near().size(); ++step) {
      const auto member = static_cast<uint32_t>((near_mine() + step) % near().size());
      Hand& hand = hands_[member];
      std::byte* room = hand.walk.at_end() ? nullptr : region_->room_to_one(member);
      if (room == nullptr) continue;
      for (bool more = true; more; hand.walk.next()) {
        const Piece& piece = hand.walk.piece();
        region_->fill(room + piece.in_chunk, slice(hand.parts[piece.part]) + piece.offset, piece.bytes);
        more = !piece.ends_chunk;
      }
      region_->publish_to_one(member, head(0, 0));
      moved = true;
    }
    return moved;
  }

  // Returns where the node's sum number `root` of a piece goes; null while there is no room.
  std::byte* room_for(const Piece& piece, uint32_t root) {
    const bool is_own = piece.part == led_.size();
    if (is_own && is_alone_) return out_ + piece.offset;
    if (is_own) {
      if (piece.offset >= summed_ + window_ * segment_) return nullptr;
      return scratch_ + own_ring(root) + piece.offset % (window_ * segment_);
    }
    Flow& flow = flows_[piece.part * node_sums_.size() + root];
    const uint64_t segment = piece.offset / segment_;
    if (segment >= flow.complete + uint64_t{flow.window}) return nullptr;
    return flow.segment_data(static_cast<uint32_t>(segment)) + piece.offset % segment_;
  }

  uint64_t own_ring(uint32_t root) const {
    const Subtree& tree = layout().roots[node()][root];
    return std::find_if(inputs_.begin(), inputs_.end(),
                        [&](const Input& input) { return input.tree == tree; })
        ->ring;
  }

  // Adds up a chunk of what the ranks of this node have for the slices that this rank leads, if it has come.
  bool add_up_node() {
    bool moved = false;
    for (bool ended = false; !ended && !reading_.at_end(); reading_.next(), moved = true) {
      const Piece& piece = reading_.piece();
      if (!chunks_are_there()) break;
      std::vector<std::byte*> rooms;
      for (uint32_t root = 0; root < node_sums_.size(); ++root) rooms.push_back(room_for(piece, root));
      if (std::find(rooms.begin(), rooms.end(), nullptr) != rooms.end()) break;
      for (uint32_t root = 0; root < node_sums_.size(); ++root) add_piece(piece, root, rooms[root]);
      if (piece.part == led_.size()) {
        node_summed_ += piece.bytes;
        if (is_alone_) summed_ = node_summed_;
      }
      ended = piece.ends_chunk;
      if (ended) release_chunks();
    }
    return moved;
  }

  bool chunks_are_there() {
    for (uint32_t member = 0; member < near().size(); ++member) {
      if (member == near_mine()) continue;
      const ChunkHead* chunk = region_->next_from_one(member);
      if (chunk == nullptr || !is_ours(*chunk, member, 0)) return false;
    }
    return true;
  }

  void release_chunks() {
    for (uint32_t member = 0; member < near().size(); ++member) {
      if (member != near_mine()) region_->release_from_one(member);
    }
  }

  void add_piece(const Piece& piece, uint32_t root, std::byte* room) {
    const NodeSum& node_sum = node_sums_[root];
    pieces_.clear();
    for (const uint32_t member : node_sum.members) {
      const std::byte* bytes = member == near_mine()
                                   ? slice(hands_[member].parts[piece.part]) + piece.offset
                                   : NodeRegion::bytes_of(region_->next_from_one(member)) + piece.in_chunk;
      pieces_.push_back(typed(bytes));
    }
    run_sum<T>(node_sum.sum, pieces_, typed(room), piece.bytes / sizeof(T));
    if (piece.part < led_.size()) flows_[piece.part * node_sums_.size() + root].limit_bytes += piece.bytes;
  }

  // Asks the other nodes for all of their sums that there is room for.
  void ask() {
    for (const Input& input : inputs_) {
      if (input.flow >= 0) flows_[input.flow].limit_bytes = summed_ + window_ * segment_;
    }
  }

  // Makes the own slice's sum of what the nodes have added up.
  bool add_up_own() {
    if (is_alone_ && near().size() > 1) return false;  // add_up_node makes it
    bool moved = false;
    while (summed_ < own_bytes_) {
      const uint64_t length = std::min(segment_, own_bytes_ - summed_);
      const uint64_t segment = summed_ / segment_;
      if (near().size() > 1 && node_summed_ < summed_ + length) break;
      const bool there = std::all_of(inputs_.begin(), inputs_.end(), [&](const Input& input) {
        return input.flow < 0 || flows_[input.flow].complete_bytes() >= summed_ + length;
      });
      if (!there) break;
      pieces_.clear();
      for (const Input& input : inputs_) {
        const std::byte* bytes = input.is_source ? slice(group_.mine) + summed_
                                 : input.flow >= 0
                                     ? flows_[input.flow].segment_data(static_cast<uint32_t>(segment))
                                     : scratch_ + input.ring + segment % window_ * segment_;
        pieces_.push_back(typed(bytes));
      }
      run_sum<T>(own_sum_, pieces_, typed(out_ + summed_), length / sizeof(T));
      summed_ += length;
      moved = true;
    }
    return moved;
  }

  bool gather() {
    for (size_t i = 0; i < led_.size(); ++i) {
      Flow& flow = flows_[first_sum_ + i];
      if (near().size() == 1) flow.limit_bytes = flows_[i].complete_bytes();
      if (shares_) spread_.set_ready(i + 1, flow.complete_bytes());
    }
    for (size_t i = first_sum_ + led_.size(); i < flows_.size(); ++i) flows_[i].limit_bytes = summed_;
    if (!shares_) return false;
    spread_.set_ready(0, summed_);
    const bool gave = spread_.give(*region_, source_,
                                   [this](uint64_t offset, uint64_t bytes) { return head(offset, bytes); });
    const bool took = spread_.take(*region_, source_, [this](const ChunkHead& chunk, uint32_t member) {
      return is_ours(chunk, member, slices_.begin(slices_.count));
    });
    return gave || took;
  }

  void add_awaited(std::vector<uint32_t>* group_ranks) const override {
    std::vector<uint32_t> members;
    if (shares_ && region_ != nullptr && !reading_.at_end()) {
      for (uint32_t member = 0; member < near().size(); ++member) {
        if (member != near_mine() && region_->next_from_one(member) == nullptr) members.push_back(member);
      }
    }
    for (uint32_t member = 0; member < hands_.size(); ++member) {
      const bool lags = region_ != nullptr && region_->lags_to_one(member);
      if (!hands_[member].walk.at_end() && lags) members.push_back(member);
    }
    spread_.add_awaited(region_, &members);
    for (const uint32_t member : members) group_ranks->push_back(near()[member]);
  }

  static constexpr uint32_t kSumStep = 1u << 24;  // no node has so many roots

  std::byte* source_;
  std::byte* out_;
  Slices slices_;
  Cut cut_;
  uint64_t segment_;
  uint32_t window_;
  uint64_t own_bytes_;
  bool shares_, is_alone_, gathers_ = false;
  std::byte* scratch_ = nullptr;
  std::vector<uint32_t> led_;  // slices, in the order of their flows
  std::vector<NodeSum> node_sums_;
  std::vector<Input> inputs_;
  Sum own_sum_;
  std::vector<Hand> hands_;  // by member
  ChunkWalk reading_;        // of what the others hand to us
  uint64_t node_summed_ = 0, summed_ = 0;
  size_t first_sum_ = 0;
  Spread spread_;
  std::vector<const T*> pieces_;
};

template <typename T>
std::unique_ptr<Operation> make_all_reduce(const Group& group, const OperationId& id, uint32_t kind,
                                           T* buffer, uint64_t count) {
  const Slices slices = Slices::of(count, group.size(), sizeof(T));
  return std::make_unique<SumOfSlices<T>>(group, id, kind, buffer, slices,
                                          buffer + slices.begin(group.mine) / sizeof(T), /*gathers=*/true);
}

template <typename T>
std::unique_ptr<Operation> make_scatter(const Group& group, const OperationId& id, uint32_t kind,
                                        const T* full, uint64_t count, T* mine) {
  const Slices slices = Slices::of(count * group.size(), group.size(), sizeof(T));
  return std::make_unique<SumOfSlices<T>>(group, id, kind, const_cast<T*>(full), slices, mine,
                                          /*gathers=*/false);
}

}  // namespace

std::unique_ptr<Operation> make_reduce_scatter(const Group& group, const OperationId& id, const float* full,
                                               uint64_t count, float* mine) {
  return make_scatter(group, id, kScatter, full, count, mine);
}

std::unique_ptr<Operation> make_reduce_scatter(const Group& group, const OperationId& id,
                                               const common::Bf16* full, uint64_t count, common::Bf16* mine) {
  return make_scatter(group, id, kScatterBf16, full, count, mine);
}

std::unique_ptr<Operation> make_sliced_all_reduce(const Group& group, const OperationId& id, float* buffer,
                                                  uint64_t count) {
  return make_all_reduce(group, id, kReduceFloat, buffer, count);
}

std::unique_ptr<Operation> make_sliced_all_reduce(const Group& group, const OperationId& id, double* buffer,
                                                  uint64_t count) {
  return make_all_reduce(group, id, kReduceDouble, buffer, count);
}

std::unique_ptr<Operation> make_sliced_all_reduce(const Group& group, const OperationId& id,
                                                  common::Bf16* buffer, uint64_t count) {
  return make_all_reduce(group, id, kReduceBf16, buffer, count);
}

}  // namespace shardrun::ofi

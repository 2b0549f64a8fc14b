// Barriers, and all-gathers and all-reduces of few bytes: in each node one rank, the speaker, collects what its node
// has, exchanges that with the other speakers (common/layout.h), and gives all of them the result.
#include <algorithm>
#include <cstring>

#include "plugins/abi/comm_v1.h"
#include "plugins/common/sum_tree.h"
#include "plugins/ofi/operations.h"

namespace shardrun::ofi {

using common::NodeMessage;
using common::plan_exchange;
using common::plan_sum;
using common::run_sum;
using common::Subtree;

namespace {

// Above it the ways of gather.cpp and reduce.cpp carry fewer bytes.
using common::kMostExchanged;

class Exchange : public Operation {
 public:
  bool advance() override {
    bool moved = false;
    if (stage_ == Stage::kCollect) moved |= collect();
    if (stage_ == Stage::kExchange) moved |= exchange();
    if (stage_ == Stage::kGive) moved |= give();
    if (stage_ == Stage::kTake) moved |= take();
    return moved;
  }
  bool finished() const override { return stage_ == Stage::kDone && Operation::finished(); }

 protected:
  // `block_bytes` are what each node puts into the exchange.
  Exchange(const Group& group, const OperationId& id, uint32_t kind, uint64_t total,
           const std::vector<uint64_t>& block_bytes)
      : Operation(group, id, kind, total), is_speaker_(near_mine() == 0) {
    begins_.push_back(0);
    for (const uint64_t bytes : block_bytes) begins_.push_back(begins_.back() + bytes);
    table_.resize(begins_.back());
    const bool shares = near().size() > 1;
    if (shares && layout().nodes() == 1) writes_to_all = true;
    if (shares && layout().nodes() > 1) (is_speaker_ ? writes_to_all : writes_to_one) = true;
    if (is_speaker_) plan_messages();
  }

  // The part of this rank, `bytes` of it, and where the parts of this node's ranks go in the table.
  virtual uint64_t part_bytes() const = 0;
  virtual const std::byte* part() const = 0;
  // Makes this node's block of the parts of its ranks.
  virtual void make_block(const std::vector<const std::byte*>& parts, std::byte* block) = 0;
  // Makes the result of the table, in the caller's buffer.
  virtual void make_result(const std::byte* table) = 0;
  virtual std::byte* result() = 0;
  virtual uint64_t result_bytes() const = 0;

  uint64_t begin_of(uint32_t node_number) const { return begins_[node_number]; }

 private:
  enum class Stage { kCollect, kExchange, kGive, kTake, kDone };

  void plan_messages() {
    for (const NodeMessage& message : plan_exchange(layout().nodes(), node())) {
      const uint64_t begin = begins_[message.first_block],
                     end = begins_[message.first_block + message.blocks];
      // Two pieces of one message differ in their tags: the second one begins with block 0.
      const uint32_t step = 2 * message.step + (message.first_block == 0 ? 1 : 0);
      add_flow(layout().members[message.node][0], message.is_send, step, table_.data() + begin, end - begin,
               std::max<uint64_t>(end - begin, 1), message.is_send ? 0 : end - begin);
      steps_.push_back(message.step);
    }
  }

  // Gives the own part to those who need it, and collects what this rank needs.
  bool collect() {
    if (near().size() == 1) return finish_collecting({part()});
    const bool to_all = layout().nodes() == 1;
    bool moved = false;
    if (!has_given_ && (to_all || !is_speaker_)) {
      std::byte* room = to_all ? region_->room_to_all() : region_->room_to_one(0);
      if (room == nullptr) return false;
      if (part_bytes() > 0) std::memcpy(room, part(), part_bytes());
      to_all ? region_->publish_to_all(head(0, part_bytes()))
             : region_->publish_to_one(0, head(0, part_bytes()));
      has_given_ = moved = true;
    }
    if (!to_all && !is_speaker_) {
      stage_ = Stage::kTake;
      return moved;
    }
    std::vector<const std::byte*> parts;
    for (uint32_t member = 0; member < near().size(); ++member) {
      if (member == near_mine()) {
        parts.push_back(part());
        continue;
      }
      const ChunkHead* chunk = to_all ? region_->next_from_all(member) : region_->next_from_one(member);
      if (chunk == nullptr || !is_ours(*chunk, member, part_bytes())) return moved;
      parts.push_back(NodeRegion::bytes_of(chunk));
    }
    finish_collecting(parts);
    for (uint32_t member = 0; member < near().size(); ++member) {
      if (member == near_mine()) continue;
      to_all ? region_->release_from_all(member) : region_->release_from_one(member);
    }
    return true;
  }

  bool finish_collecting(const std::vector<const std::byte*>& parts) {
    make_block(parts, table_.data() + begins_[node()]);
    stage_ = Stage::kExchange;
    return true;
  }

  bool exchange() {
    uint32_t open = UINT32_MAX;  // the first step whose receives are not all there
    for (size_t i = 0; i < flows_.size(); ++i) {
      if (!flows_[i].is_send && !flows_[i].finished()) open = std::min(open, steps_[i]);
    }
    for (size_t i = 0; i < flows_.size(); ++i) {
      if (flows_[i].is_send && steps_[i] <= open) flows_[i].limit_bytes = flows_[i].total_bytes;
    }
    if (open != UINT32_MAX) return false;
    make_result(table_.data());
    stage_ = writes_to_all && layout().nodes() > 1 ? Stage::kGive : Stage::kDone;
    return true;
  }

  bool give() {
    std::byte* room = region_->room_to_all();
    if (room == nullptr) return false;
    if (result_bytes() > 0) std::memcpy(room, result(), result_bytes());
    region_->publish_to_all(head(0, result_bytes()));
    stage_ = Stage::kDone;
    return true;
  }

  bool take() {
    const ChunkHead* chunk = region_->next_from_all(0);
    if (chunk == nullptr || !is_ours(*chunk, 0, result_bytes())) return false;
    if (result_bytes() > 0) std::memcpy(result(), NodeRegion::bytes_of(chunk), result_bytes());
    region_->release_from_all(0);
    stage_ = Stage::kDone;
    return true;
  }

  void add_awaited(std::vector<uint32_t>* group_ranks) const override {
    if (stage_ == Stage::kTake) group_ranks->push_back(near()[0]);
    if (stage_ != Stage::kCollect || region_ == nullptr) return;
    for (uint32_t member = 0; member < near().size(); ++member) {
      if (member == near_mine()) continue;
      const bool to_all = layout().nodes() == 1;
      if ((to_all ? region_->next_from_all(member) : region_->next_from_one(member)) == nullptr)
        group_ranks->push_back(near()[member]);
    }
  }

  const bool is_speaker_;
  Stage stage_ = Stage::kCollect;
  bool has_given_ = false;
  std::vector<uint64_t> begins_;  // of nodes' blocks in the table
  std::vector<std::byte> table_;
  std::vector<uint32_t> steps_;  // by flow
};

std::vector<uint64_t> per_node(const Layout& layout, uint64_t bytes_of_a_rank) {
  std::vector<uint64_t> bytes;
  for (const auto& members : layout.members) bytes.push_back(members.size() * bytes_of_a_rank);
  return bytes;
}

std::vector<uint64_t> per_root(const Layout& layout, uint64_t bytes_of_a_sum) {
  std::vector<uint64_t> bytes;
  for (const auto& roots : layout.roots) bytes.push_back(roots.size() * bytes_of_a_sum);
  return bytes;
}

class SmallGather final : public Exchange {
 public:
  SmallGather(const Group& group, const OperationId& id, const void* mine, uint64_t bytes, void* all)
      : Exchange(group, id, kSmallGather, bytes, per_node(group.layout, bytes)),
        mine_(static_cast<const std::byte*>(mine)),
        all_(static_cast<std::byte*>(all)),
        bytes_(bytes) {}

 private:
  uint64_t part_bytes() const override { return bytes_; }
  const std::byte* part() const override { return mine_; }
  void make_block(const std::vector<const std::byte*>& parts, std::byte* block) override {
    for (size_t i = 0; i < parts.size(); ++i) std::memcpy(block + i * bytes_, parts[i], bytes_);
  }
  void make_result(const std::byte* table) override {
    for (uint32_t rank = 0; rank < layout().size(); ++rank) {
      std::memcpy(all_ + rank * bytes_,
                  table + begin_of(layout().node_of[rank]) + layout().index_of[rank] * bytes_, bytes_);
    }
  }
  std::byte* result() override { return all_; }
  uint64_t result_bytes() const override { return layout().size() * bytes_; }

  const std::byte* mine_;
  std::byte* all_;
  uint64_t bytes_;
};

template <typename T>
class SmallReduce final : public Exchange {
 public:
  SmallReduce(const Group& group, const OperationId& id, uint32_t kind, T* buffer, uint64_t count)
      : Exchange(group, id, kind, count * sizeof(T), per_root(group.layout, count * sizeof(T))),
        buffer_(buffer),
        count_(count) {}

 private:
  uint64_t part_bytes() const override { return count_ * sizeof(T); }
  const std::byte* part() const override { return reinterpret_cast<const std::byte*>(buffer_); }
  void make_block(const std::vector<const std::byte*>& parts, std::byte* block) override {
    for (const Subtree& root : layout().roots[node()]) {
      std::vector<Subtree> leaves;
      std::vector<const T*> inputs;
      for (size_t i = 0; i < parts.size(); ++i) {
        const uint32_t rank = near()[i];
        if (rank < root.begin || rank >= root.end) continue;
        leaves.push_back({rank, rank + 1});
        inputs.push_back(reinterpret_cast<const T*>(parts[i]));
      }
      run_sum<T>(plan_sum(leaves, root), inputs, reinterpret_cast<T*>(block), count_);
      block += part_bytes();
    }
  }
  void make_result(const std::byte* table) override {
    std::vector<std::pair<Subtree, const T*>> sums;
    for (const auto& roots : layout().roots) {
      for (const Subtree& root : roots) {
        sums.emplace_back(root, reinterpret_cast<const T*>(table));
        table += part_bytes();
      }
    }
    std::sort(sums.begin(), sums.end(),
              [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    std::vector<Subtree> trees;
    std::vector<const T*> inputs;
    for (const auto& [tree, values] : sums) {
      trees.push_back(tree);
      inputs.push_back(values);
    }
    run_sum<T>(plan_sum(trees, {0, layout().size()}), inputs, buffer_, count_);
  }
  std::byte* result() override { return reinterpret_cast<std::byte*>(buffer_); }
  uint64_t result_bytes() const override { return part_bytes(); }

  T* buffer_;
  uint64_t count_;
};

// Everybody has come when every node has said so with one byte.
class Barrier final : public Exchange {
 public:
  Barrier(const Group& group, const OperationId& id)
      : Exchange(group, id, kBarrier, 0, std::vector<uint64_t>(group.layout.nodes(), 1)) {
    synchronises = true;
  }

 private:
  uint64_t part_bytes() const override { return 0; }
  const std::byte* part() const override { return nullptr; }
  void make_block(const std::vector<const std::byte*>&, std::byte*) override {}
  void make_result(const std::byte*) override {}
  std::byte* result() override { return nullptr; }
  uint64_t result_bytes() const override { return 0; }
};

uint64_t sums_of_nodes(const Layout& layout) {
  uint64_t sums = 0;
  for (const auto& roots : layout.roots) sums += roots.size();
  return sums;
}

// A rank's part must fit into the smallest chunk of node_memory.h.
bool fits(const Layout& layout, uint64_t bytes) {
  return !layout.shares_memory() || bytes <= NodeGeometry(layout.crowd).chunk_to_one();
}

}  // namespace

bool is_small(uint32_t kind) {
  return kind == kBarrier || kind == kSmallGather || kind == kSmallFloat || kind == kSmallDouble ||
         kind == kSmallBf16;
}

bool is_small_gather(const Group& group, uint64_t bytes) {
  return bytes > 0 && group.size() * bytes <= kMostExchanged && fits(group.layout, bytes);
}

bool is_small_reduce(const Group& group, uint64_t bytes) {
  return bytes > 0 && bytes <= SHARDRUN_COMM_V1_WHOLE_BYTES &&
         sums_of_nodes(group.layout) * bytes <= kMostExchanged && fits(group.layout, bytes);
}

std::unique_ptr<Operation> make_small_all_gather(const Group& group, const OperationId& id, const void* mine,
                                                 uint64_t bytes, void* all) {
  return std::make_unique<SmallGather>(group, id, mine, bytes, all);
}

std::unique_ptr<Operation> make_small_all_reduce(const Group& group, const OperationId& id, float* buffer,
                                                 uint64_t count) {
  return std::make_unique<SmallReduce<float>>(group, id, kSmallFloat, buffer, count);
}

std::unique_ptr<Operation> make_small_all_reduce(const Group& group, const OperationId& id, double* buffer,
                                                 uint64_t count) {
  return std::make_unique<SmallReduce<double>>(group, id, kSmallDouble, buffer, count);
}

std::unique_ptr<Operation> make_small_all_reduce(const Group& group, const OperationId& id,
                                                 common::Bf16* buffer, uint64_t count) {
  return std::make_unique<SmallReduce<common::Bf16>>(group, id, kSmallBf16, buffer, count);
}

std::unique_ptr<Operation> make_barrier(const Group& group, const OperationId& id) {
  return std::make_unique<Barrier>(group, id);
}

}  // namespace shardrun::ofi

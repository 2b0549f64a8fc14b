#include "launcher/forecast/replay.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using spec::Strategy;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kRunning = 2;  // operations of a channel at once

enum Channel : size_t { kGather, kReduce, kReplica, kWorld, kChannels };

struct Operation {
  CollectiveSeconds seconds;
  Channel channel = kGather;
  bool running = false, over = false;
  double latency_left = 1.0, bytes_left = 1.0;  // shares of each
};

// What a rank does: computing on its main thread, and collectives beside it.
class Timeline {
 public:
  explicit Timeline(double cpu_share) : cpu_share_(cpu_share) {}

  size_t start(Channel channel, const CollectiveSeconds& seconds) {
    operations_.push_back({.seconds = seconds, .channel = channel});
    begin_queued(channel);
    return operations_.size() - 1;
  }
  // Until the operation is over; returns how long that was.
  double wait(size_t operation) {
    const double begin = now_;
    while (!operations_[operation].over) advance(/*computing=*/false, kNever);
    return now_ - begin;
  }
  // `seconds` of CPU.
  void compute(double seconds) {
    while (seconds > 0.0) seconds -= advance(/*computing=*/true, seconds);
  }
  double now() const { return now_; }

 private:
  void begin_queued(Channel channel) {
    size_t running = 0;
    for (const Operation& one : operations_) running += one.channel == channel && one.running;
    for (Operation& one : operations_) {
      if (running == kRunning) return;
      if (one.channel != channel || one.running || one.over) continue;
      one.running = true;
      ++running;
    }
  }

  // Shares of an operation's current part that a second does. Two were under way when it was measured: nothing keeps the
  // latencies of two from passing at once, so that one's is twice what each added, and bytes are shared.
  static double rate(const Operation& one, bool computing, double sharing) {
    const CollectiveSeconds& s = one.seconds;
    const double latency = computing ? s.beside_latency : s.latency;
    const double part =
        one.latency_left > 0.0 ? 2.0 * latency : ((computing ? s.beside : s.alone) - latency) * sharing;
    return part > 0.0 ? 1.0 / part : kNever;
  }

  // CPUs that an operation takes from computing: what its bytes cost at the speed that they have, and before them what one
  // of two costs.
  static double taken_by(const Operation& one, double speed) {
    const CollectiveSeconds& s = one.seconds;
    if (one.latency_left > 0.0) return s.beside > 0.0 ? s.cpu / (2.0 * s.beside) : 0.0;
    return speed == kNever ? 0.0 : s.cpu * speed;
  }

  // To the next event; returns the seconds of CPU that were computed, at most `wanted`.
  double advance(bool computing, double wanted) {
    double sharing = 0.0, taken = 0.0;
    for (const Operation& one : operations_) {
      if (!one.running) continue;
      if (one.latency_left <= 0.0) sharing += 1.0;
    }
    double until = kNever;
    for (const Operation& one : operations_) {
      if (!one.running) continue;
      const double speed = rate(one, computing, std::max(1.0, sharing));
      const double left = one.latency_left > 0.0 ? one.latency_left : one.bytes_left;
      until = std::min(until, speed == kNever ? 0.0 : left / speed);
      taken += taken_by(one, speed);
    }
    constexpr double kLeast = 0.05;  // of its share, that computing keeps
    const double speed = std::max(kLeast * cpu_share_, cpu_share_ - taken);
    if (computing) until = std::min(until, wanted / speed);
    move(computing, until, std::max(1.0, sharing));
    return computing ? until * speed : 0.0;
  }

  void move(bool computing, double seconds, double sharing) {
    constexpr double kDone = 1e-9;
    now_ += seconds;
    std::array<bool, kChannels> freed{};
    for (Operation& one : operations_) {
      if (!one.running) continue;
      const double speed = rate(one, computing, sharing);
      double& left = one.latency_left > 0.0 ? one.latency_left : one.bytes_left;
      left = speed == kNever ? 0.0 : left - seconds * speed;
      if (left < kDone) left = 0.0;
      if (one.latency_left > 0.0 || one.bytes_left > 0.0) continue;
      one.over = true;
      one.running = false;
      freed[one.channel] = true;
    }
    for (size_t channel = 0; channel < kChannels; ++channel)
      if (freed[channel]) begin_queued(static_cast<Channel>(channel));
  }

  double cpu_share_;
  double now_ = 0.0;
  std::vector<Operation> operations_;
};

struct Block {
  BlockSeconds seconds;
  double elements = 0.0;
  CollectiveSeconds gather, reduce, replica;
  Volumes sent;  // by one of each
};

// The sharding engine's bookkeeping, as far as it decides what is asked of the network and when.
class Step {
 public:
  Step(const MeasuredMachine& machine, const ReplayQuestion& question, std::vector<Block> blocks,
       double cpu_share)
      : machine_(machine), question_(question), blocks_(std::move(blocks)), line_(cpu_share) {
    const auto count = static_cast<int>(blocks_.size());
    slots_.resize(static_cast<size_t>(keeps() ? count : std::min(question.prefetch + 1, count)));
    for (int b = 0; b < count; ++b) order_.push_back(b);
    for (int b = count - 1; b >= 0; --b) order_.push_back(b);
  }

  double run(const CollectiveSeconds& norm, double updated) {
    const int64_t micro_steps = question_.layout.accumulation;
    for (int64_t micro = 0; micro < micro_steps; ++micro) {
      first_ = micro == 0;
      last_ = micro + 1 == micro_steps;
      for (size_t place = 0; place < order_.size(); ++place) visit(place);
    }
    complete(next_gradient_);
    complete(1 - next_gradient_);
    for (const size_t sum : replica_sums_) exposed_ += line_.wait(sum);
    exposed_ += line_.wait(line_.start(kWorld, norm));
    line_.compute(updated);
    return line_.now();
  }
  double exposed() const { return exposed_; }
  const Volumes& volumes() const { return volumes_; }

 private:
  struct Slot {
    int block = -1;
    std::optional<size_t> pending;
  };
  struct Gradient {
    int block = -1;
    std::optional<size_t> pending;
    bool adds = false, last = false;
  };

  bool alone() const { return question_.layout.shard_degree == 1; }
  bool keeps() const { return question_.layout.strategy == Strategy::kShardGradOp; }
  double shard_elements(int block) const {
    return blocks_[static_cast<size_t>(block)].elements / static_cast<double>(question_.layout.shard_degree);
  }

  void visit(size_t place) {
    const int block = order_[place];
    const Block& it = blocks_[static_cast<size_t>(block)];
    const bool forward = place < blocks_.size();
    if (!alone()) acquire(block, place);
    if (!forward) complete(alone() ? 0 : next_gradient_);
    line_.compute(forward ? it.seconds.forward : it.seconds.backward);
    if (!forward) reduce(block);
  }

  Slot* find(int block) {
    for (Slot& slot : slots_)
      if (slot.block == block) return &slot;
    return nullptr;
  }

  bool gather(int block, int acquired, const std::vector<int>& ahead) {
    Slot* free = keeps() ? &slots_[static_cast<size_t>(block)] : nullptr;
    for (size_t i = 0; i < slots_.size() && free == nullptr; ++i) {
      const int held = slots_[i].block;
      const bool wanted = held == acquired || std::find(ahead.begin(), ahead.end(), held) != ahead.end();
      if (held < 0 || !wanted) free = &slots_[i];
    }
    if (free == nullptr) return false;
    if (free->pending) exposed_ += line_.wait(*free->pending);
    volumes_.gather += blocks_[static_cast<size_t>(block)].sent.gather;
    *free = {block, line_.start(kGather, blocks_[static_cast<size_t>(block)].gather)};
    return true;
  }

  void acquire(int block, size_t place) {
    std::vector<int> ahead;
    for (size_t next = place + 1;
         next < order_.size() && ahead.size() < static_cast<size_t>(question_.prefetch); ++next)
      ahead.push_back(order_[next]);
    if (find(block) == nullptr) gather(block, block, ahead);
    for (const int next : ahead)
      if (find(next) == nullptr && !gather(next, block, ahead)) break;
    Slot* slot = find(block);
    if (slot == nullptr || !slot->pending) return;
    exposed_ += line_.wait(*slot->pending);
    slot->pending.reset();
  }

  void reduce(int block) {
    if (alone()) {
      if (last_) sum_over_replicas(block);
      return;
    }
    volumes_.reduce += blocks_[static_cast<size_t>(block)].sent.reduce;
    gradients_[next_gradient_] = {block, line_.start(kReduce, blocks_[static_cast<size_t>(block)].reduce),
                                  !first_, last_};
    next_gradient_ = 1 - next_gradient_;
  }

  void complete(size_t slot) {
    Gradient& it = gradients_[slot];
    if (it.block < 0) return;
    const int block = it.block;
    it.block = -1;
    exposed_ += line_.wait(*it.pending);
    if (it.adds) line_.compute(machine_.add(shard_elements(block)));
    if (it.last) sum_over_replicas(block);
  }

  void sum_over_replicas(int block) {
    const CollectiveSeconds& seconds = blocks_[static_cast<size_t>(block)].replica;
    volumes_.replica += blocks_[static_cast<size_t>(block)].sent.replica;
    if (seconds.alone > 0.0) replica_sums_.push_back(line_.start(kReplica, seconds));
  }

  const MeasuredMachine& machine_;
  const ReplayQuestion& question_;
  std::vector<Block> blocks_;
  Timeline line_;
  std::vector<int> order_;
  std::vector<Slot> slots_;
  std::array<Gradient, 2> gradients_;
  size_t next_gradient_ = 0;
  std::vector<size_t> replica_sums_;
  bool first_ = true, last_ = true;
  double exposed_ = 0.0;
  Volumes volumes_;
};

Placement placement_of(int64_t ranks, int64_t stride, const ReplayQuestion& question) {
  Placement placement;
  placement.ranks = ranks;
  const int64_t on_node = std::clamp<int64_t>(question.ranks_per_node / stride, 1, ranks);
  placement.nodes = (ranks + on_node - 1) / on_node;
  placement.nodes_at_it = question.layout.nodes;
  return placement;
}

std::optional<Error> not_measured(const ReplayQuestion& question) {
  const Layout& layout = question.layout;
  const char* what = nullptr;
  if (layout.tensor_parallel > 1) what = "tensor_parallel";
  if (layout.activation_offload || layout.optimizer_offload) what = "offloading";
  if (std::string_view(question.model.name) != ModelShape().name) what = question.model.name;
  if (question.model.tied) what = "tied embeddings";
  if (what == nullptr) return std::nullopt;
  return Error(Code::kInvalid, std::string("the calibration has no measurements of ") + what);
}

}  // namespace

Result<StepForecast> replay_step(const MeasuredMachine& machine, const ReplayQuestion& question) {
  if (auto missing = not_measured(question)) return std::move(*missing);
  const Layout& layout = question.layout;
  const ModelShape& model = question.model;
  const int64_t world = layout.nodes * question.ranks_per_node;
  const Placement shard = placement_of(layout.shard_degree, 1, question);
  const Placement replica = placement_of(world / layout.shard_degree, layout.shard_degree, question);
  const double tokens = static_cast<double>(layout.micro_batch) * layout.sequence_length;

  std::vector<Block> blocks;
  StepForecast forecast;
  Phases& phases = forecast.phases;
  const auto micro = static_cast<double>(layout.accumulation);
  for (int b = 0; b < model.layers + 2; ++b) {
    Block block;
    const bool table = b == 0, head = b == model.layers + 1;
    block.elements = table || head ? model.table_parameters() : model.layer_parameters();
    if (head) block.elements += model.hidden;
    block.seconds = table  ? machine.table(model, tokens)
                    : head ? machine.head(model, tokens)
                           : machine.layer(model, tokens, layout.sequence_length, layout.checkpointing);
    const struct {
      CollectiveKind kind;
      const Placement& placement;
      double bytes, times;
      CollectiveSeconds& out;
      double& sent;
    } collectives[] = {
        {CollectiveKind::kAllGather, shard, 2.0 * block.elements, 1.0, block.gather, block.sent.gather},
        {CollectiveKind::kReduceScatter, shard, 4.0 * block.elements, 1.0, block.reduce, block.sent.reduce},
        {CollectiveKind::kAllReduce, replica, 4.0 * block.elements / static_cast<double>(layout.shard_degree),
         2.0, block.replica, block.sent.replica}};
    for (const auto& one : collectives) {
      auto seconds = machine.collective(one.kind, one.placement, one.bytes);
      if (!seconds) return std::move(seconds).error();
      one.out = *seconds;
      const auto ranks = static_cast<double>(one.placement.ranks);
      one.sent = one.times * one.bytes * (ranks - 1.0) / ranks;
    }
    phases.compute += micro * (block.seconds.forward + block.seconds.backward);
    phases.gather += 2.0 * micro * block.gather.alone;
    phases.reduce += micro * block.reduce.alone;
    phases.replica += block.replica.alone;
    blocks.push_back(block);
  }
  const auto norm = machine.collective(CollectiveKind::kAllReduce, placement_of(world, 1, question), 64.0);
  if (!norm) return norm.error();
  const double share = machine.cpu_share(layout.nodes, question.ranks_per_node);
  const double updated = machine.update(model.parameters() / static_cast<double>(layout.shard_degree));
  Step step(machine, question, std::move(blocks), share);
  forecast.seconds = step.run(*norm, updated);
  phases.compute /= share;
  phases.optimizer = updated / share;
  phases.exposed = step.exposed();
  forecast.volumes = step.volumes();
  forecast.tokens = tokens * micro * static_cast<double>(world);
  forecast.model_flops = forecast.tokens * model.flops_per_token(layout.sequence_length) / forecast.seconds /
                         static_cast<double>(world);
  return forecast;
}

}  // namespace shardrun::launcher

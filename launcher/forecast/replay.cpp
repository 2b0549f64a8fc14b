#include "launcher/forecast/replay.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/step.h"
#include "runtime/plan/wrapping.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using plan::StepEvent;
using Kind = StepEvent::Kind;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNormBytes = 64.0;
constexpr size_t kRunning = 2;  // operations of a channel at once

enum Channel : size_t { kGather, kReduce, kReplica, kWorld, kChannels };

struct Operation {
  CollectiveSeconds seconds;
  Channel channel = kGather;
  bool running = false, over = false;
  double latency_left = 1.0, bytes_left = 1.0;  // shares of each
};

// What a rank does: computing on its main thread, at its share of the CPUs, and collectives beside it.
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
  static double rate(const Operation& one, double sharing, bool computing) {
    const CollectiveSeconds& s = one.seconds;
    const double part = one.latency_left > 0.0 ? 2.0 * s.latency : (s.wall - s.latency) * sharing;
    return part > 0.0 ? (computing ? s.pace : 1.0) / part : kNever;
  }

  // CPUs that an operation takes from computing: what its bytes cost at the speed that they have, and before them what one
  // of two costs.
  static double taken_by(const Operation& one, double speed) {
    const CollectiveSeconds& s = one.seconds;
    if (one.latency_left > 0.0) return s.wall > 0.0 ? s.cpu / (2.0 * s.wall) : 0.0;
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
      const double speed = rate(one, std::max(1.0, sharing), computing);
      const double left = one.latency_left > 0.0 ? one.latency_left : one.bytes_left;
      until = std::min(until, speed == kNever ? 0.0 : left / speed);
      taken += taken_by(one, speed);
    }
    constexpr double kLeast = 0.05;  // of its share, that computing keeps
    const double speed = std::max(kLeast * cpu_share_, cpu_share_ - taken);
    if (computing) until = std::min(until, wanted / speed);
    move(until, std::max(1.0, sharing), computing);
    return computing ? until * speed : 0.0;
  }

  void move(double seconds, double sharing, bool computing) {
    constexpr double kDone = 1e-9;
    now_ += seconds;
    std::array<bool, kChannels> freed{};
    for (Operation& one : operations_) {
      if (!one.running) continue;
      const double speed = rate(one, sharing, computing);
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

// The step that the sharding engine would execute.
plan::StepShape shape_of(const ReplayQuestion& question, int blocks, bool replicated) {
  const Layout& layout = question.layout;
  plan::StepShape shape{.micro_steps = layout.accumulation,
                        .prefetch = question.prefetch,
                        .replicated = replicated,
                        .looks_up = question.model.architecture->looks_up};
  for (int block = 0; block < blocks; ++block) shape.visits.push_back(block);
  shape.buffers = plan::buffer_counts(static_cast<int>(layout.shard_degree), blocks,
                                      {.prefetch = question.prefetch,
                                       .accumulates = layout.accumulation > 1,
                                       .keeps_parameters = spec::rules_of(layout.strategy).keeps_parameters});
  return shape;
}

// What the events of a step take.
class Step {
 public:
  Step(const MeasuredMachine& machine, double shard_degree, std::vector<Block> blocks,
       const plan::BufferCounts& buffers, double cpu_share)
      : machine_(machine),
        shard_degree_(shard_degree),
        blocks_(std::move(blocks)),
        gathers_(buffers.gathered),
        reductions_(buffers.whole_gradients),
        replica_sums_(blocks_.size()),
        line_(cpu_share) {}

  void time(const StepEvent& event) {
    if (event.kind == Kind::kTurnEnds) return;
    const Block& block = blocks_[event.block];
    switch (event.kind) {
      case Kind::kGather:
        volumes_.gather += block.sent.gather;
        return start(gathers_, event.slot, kGather, block.gather);
      case Kind::kAwaitGather:
        return wait(gathers_, event.slot);
      case Kind::kForward:
        return line_.compute(block.seconds.forward);
      case Kind::kBackward:
        return line_.compute(block.seconds.backward);
      case Kind::kReduce:
        volumes_.reduce += block.sent.reduce;
        return start(reductions_, event.gradient, kReduce, block.reduce);
      case Kind::kAwaitReduce:
        return wait(reductions_, event.gradient);
      case Kind::kAdd:
        return line_.compute(machine_.add(block.elements / shard_degree_));
      case Kind::kSumReplicas:
        volumes_.replica += block.sent.replica;
        return start(replica_sums_, event.block, kReplica, block.replica);
      case Kind::kAwaitReplicas:
        return wait(replica_sums_, event.block);
      case Kind::kTurnEnds:
        return;
    }
  }
  // The update of the parameters, once the norm of their gradients is known; returns the seconds of the step.
  double update(const CollectiveSeconds& norm, double seconds) {
    exposed_ += line_.wait(line_.start(kWorld, norm));
    line_.compute(seconds);
    return line_.now();
  }
  double exposed() const { return exposed_; }
  const Volumes& volumes() const { return volumes_; }

 private:
  using Operations = std::vector<size_t>;  // the one that was started last, by buffer or block

  void start(Operations& operations, int index, Channel channel, const CollectiveSeconds& seconds) {
    operations[index] = line_.start(channel, seconds);
  }
  void wait(const Operations& operations, int index) { exposed_ += line_.wait(operations[index]); }

  const MeasuredMachine& machine_;
  double shard_degree_;
  std::vector<Block> blocks_;
  Operations gathers_, reductions_, replica_sums_;
  Timeline line_;
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
  std::string_view what;
  if (layout.tensor_parallel > 1) what = "tensor_parallel";
  if (layout.activation_offload || layout.optimizer_offload) what = "offloading";
  if (question.model.architecture != ModelShape().architecture) what = question.model.architecture->called;
  if (question.model.adapted) what = "adapters";
  if (question.model.experts > 0) what = "experts";
  if (question.model.tied) what = "tied embeddings";
  if (what.empty()) return std::nullopt;
  return Error(Code::kInvalid, "the calibration has no measurements of " + std::string(what));
}

// The collectives of a job's groups.
struct Collectives {
  CollectiveCurve gather, reduce, replica, norm;
};

Result<Collectives> collectives_of(const MeasuredMachine& machine, const ReplayQuestion& question) {
  const int64_t world = question.layout.nodes * question.ranks_per_node,
                degree = question.layout.shard_degree;
  const Placement shard = placement_of(degree, 1, question);
  const Placement replica = placement_of(world / degree, degree, question);
  Collectives all;
  ASSIGN_OR_RETURN(all.gather, machine.collective(CollectiveKind::kAllGather, shard));
  ASSIGN_OR_RETURN(all.reduce, machine.collective(CollectiveKind::kReduceScatter, shard));
  ASSIGN_OR_RETURN(all.replica, machine.collective(CollectiveKind::kAllReduce, replica));
  ASSIGN_OR_RETURN(all.norm,
                   machine.collective(CollectiveKind::kAllReduce, placement_of(world, 1, question)));
  return all;
}

// The seconds and bytes of a block's collectives.
void add_collectives(Block& block, const Collectives& all, const ReplayQuestion& question) {
  const auto shard_degree = static_cast<double>(question.layout.shard_degree);
  const double gathered = 2.0 * block.elements, summed = question.reduce_bytes * block.elements;
  block.gather = all.gather.at(gathered);
  block.reduce = all.reduce.at(summed);
  block.replica = all.replica.at(summed / shard_degree);
  block.sent.gather = all.gather.sent(gathered);
  block.sent.reduce = all.reduce.sent(summed);
  block.sent.replica = all.replica.sent(summed / shard_degree);
}

std::vector<Block> blocks_of(const MeasuredMachine& machine, const ReplayQuestion& question,
                             const Collectives& all) {
  const Layout& layout = question.layout;
  const ModelShape& model = question.model;
  const double tokens = static_cast<double>(layout.micro_batch) * layout.sequence_length;
  std::vector<Block> blocks;
  const plan::Wrapping wrapping = plan::wrap_blocks(model.layers + 2, {{1, model.layers + 1}}, question.wrap);
  for (int unit = 0; unit < wrapping.units(model.layers + 2); ++unit) {
    Block block;
    const int b = wrapping.begin(unit), together = wrapping.end(unit) - b;
    const bool table = b == 0, head = b == model.layers + 1;
    block.elements = table || head ? model.table_parameters() : together * model.layer_parameters();
    if (head) block.elements += model.hidden;
    block.seconds = table  ? machine.table(model, tokens)
                    : head ? machine.head(model, tokens)
                           : machine.layer(model, tokens, layout.sequence_length, layout.checkpointing);
    block.seconds.forward *= together;
    block.seconds.backward *= together;
    add_collectives(block, all, question);
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace

Result<StepForecast> replay_step(const MeasuredMachine& machine, const ReplayQuestion& question) {
  if (auto missing = not_measured(question)) return std::move(*missing);
  const Layout& layout = question.layout;
  const ModelShape& model = question.model;
  const int64_t world = layout.nodes * question.ranks_per_node;
  ASSIGN_OR_RETURN(const auto collectives, collectives_of(machine, question));
  std::vector<Block> blocks = blocks_of(machine, question, collectives);
  StepForecast forecast;
  Phases& phases = forecast.phases;
  const auto micro = static_cast<double>(layout.accumulation);
  for (const Block& block : blocks) {
    phases.compute += micro * (block.seconds.forward + block.seconds.backward);
    phases.gather += 2.0 * micro * block.gather.wall;
    phases.reduce += micro * block.reduce.wall;
    phases.replica += block.replica.wall;
  }
  const double share = machine.cpu_share(layout.nodes, question.ranks_per_node);
  const double updated = machine.update(model.parameters() / static_cast<double>(layout.shard_degree));
  plan::StepShape shape =
      shape_of(question, static_cast<int>(blocks.size()), /*replicated=*/world > layout.shard_degree);
  Step step(machine, static_cast<double>(layout.shard_degree), std::move(blocks), shape.buffers, share);
  plan::StepPlan plan(std::move(shape));
  while (const auto event = plan.next()) step.time(*event);
  forecast.seconds = step.update(collectives.norm.at(kNormBytes), updated);
  phases.compute /= share;
  phases.optimizer = updated / share;
  phases.exposed = step.exposed();
  forecast.volumes = step.volumes();
  forecast.tokens = static_cast<double>(layout.micro_batch * layout.sequence_length * world) * micro;
  forecast.model_flops = forecast.tokens * model.flops_per_token(layout.sequence_length) / forecast.seconds /
                         static_cast<double>(world);
  return forecast;
}

}  // namespace shardrun::launcher

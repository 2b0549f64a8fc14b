#include "launcher/forecast/replay.h"

#include <algorithm>
#include <array>
#include <deque>
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

// Of an operation that was started: operations of a channel are numbered as they come, over all channels.
struct Started {
  Channel channel = kGather;
  int64_t number = -1;
};

struct Operation {
  CollectiveSeconds seconds;
  Started started;
  double latency_left = 1.0, bytes_left = 1.0;  // shares of each

  bool is_over() const { return latency_left <= 0.0 && bytes_left <= 0.0; }
};

// How many operations move their bytes over the nodes' links, and how many through a node's memory.
struct Sharing {
  double links = 0.0, memory = 0.0;

  void add(const Operation& one) {
    if (one.latency_left <= 0.0) (one.seconds.over_network ? links : memory) += 1.0;
  }
  double of(const Operation& one) const { return std::max(1.0, one.seconds.over_network ? links : memory); }
};

// What a rank does: computing on its main thread, at its share of the CPUs, and collectives beside it. It holds what is under
// way and what waits for that, and forgets what is over, so that a step of many micro-steps costs each of them the same.
class Timeline {
 public:
  explicit Timeline(double cpu_share) : cpu_share_(cpu_share) {}

  Started start(Channel channel, const CollectiveSeconds& seconds) {
    const Started started{channel, next_++};
    queued_[channel].push_back({.seconds = seconds, .started = started});
    begin_queued(channel);
    return started;
  }
  // Until the operation is over; returns how long that was.
  double wait(const Started& started) {
    const double begin = now_;
    while (is_under_way(started)) advance(/*computing=*/false, kNever);
    return now_ - begin;
  }
  // `seconds` of CPU.
  void compute(double seconds) {
    while (seconds > 0.0) seconds -= advance(/*computing=*/true, seconds);
  }
  double now() const { return now_; }

 private:
  bool is_under_way(const Started& started) const {
    const std::deque<Operation>& queued = queued_[started.channel];
    if (!queued.empty() && started.number >= queued.front().started.number) return true;
    return std::any_of(running_.begin(), running_.end(),
                       [&](const Operation& one) { return one.started.number == started.number; });
  }

  // Those that run stay in the order in which they were started, of all channels.
  void begin_queued(Channel channel) {
    std::deque<Operation>& queued = queued_[channel];
    auto running =
        static_cast<size_t>(std::count_if(running_.begin(), running_.end(), [&](const Operation& one) {
          return one.started.channel == channel;
        }));
    for (; running < kRunning && !queued.empty(); ++running) {
      const int64_t number = queued.front().started.number;
      const auto behind = std::find_if(running_.begin(), running_.end(),
                                       [&](const Operation& one) { return one.started.number > number; });
      running_.insert(behind, queued.front());
      queued.pop_front();
    }
  }

  // Shares of an operation's current part that a second does. Two were under way when it was measured: nothing keeps the
  // latencies of two from passing at once, so that one's is twice what each added, and what their bytes go through is shared.
  static double rate(const Operation& one, const Sharing& sharing, bool computing) {
    const CollectiveSeconds& s = one.seconds;
    const double part = one.latency_left > 0.0 ? 2.0 * s.latency : (s.wall - s.latency) * sharing.of(one);
    return part > 0.0 ? (computing ? s.pace : 1.0) / part : kNever;
  }

  // CPUs that an operation takes at the speed that it has: all of it costs s.cpu, and its latency as much of that as of its time.
  static double taken_by(const Operation& one, double speed) {
    const CollectiveSeconds& s = one.seconds;
    if (speed == kNever) return 0.0;
    const double latency_share = s.wall > 0.0 ? s.latency / s.wall : 1.0;
    return s.cpu * speed * (one.latency_left > 0.0 ? latency_share : 1.0 - latency_share);
  }

  // To the next event; returns the seconds of CPU that were computed, at most `wanted`.
  double advance(bool computing, double wanted) {
    Sharing sharing;
    for (const Operation& one : running_) sharing.add(one);
    double taken = 0.0;
    for (const Operation& one : running_) taken += taken_by(one, rate(one, sharing, computing));
    constexpr double kLeast = 0.05;  // of its share, that computing keeps
    const double most = computing ? (1.0 - kLeast) * cpu_share_ : cpu_share_;
    const double slowed = taken > most ? most / taken : 1.0;  // by this much all wait for the CPUs
    double until = kNever;
    for (const Operation& one : running_) {
      const double speed = slowed * rate(one, sharing, computing);
      const double left = one.latency_left > 0.0 ? one.latency_left : one.bytes_left;
      until = std::min(until, speed == kNever ? 0.0 : left / speed);
    }
    const double speed = cpu_share_ - slowed * taken;
    if (computing) until = std::min(until, wanted / speed);
    move(until, sharing, computing, slowed);
    return computing ? until * speed : 0.0;
  }

  void move(double seconds, const Sharing& sharing, bool computing, double slowed) {
    constexpr double kDone = 1e-9;
    now_ += seconds;
    std::array<bool, kChannels> freed{};
    for (Operation& one : running_) {
      const double speed = slowed * rate(one, sharing, computing);
      double& left = one.latency_left > 0.0 ? one.latency_left : one.bytes_left;
      left = speed == kNever ? 0.0 : left - seconds * speed;
      if (left < kDone) left = 0.0;
      if (one.is_over()) freed[one.started.channel] = true;
    }
    std::erase_if(running_, [](const Operation& one) { return one.is_over(); });
    for (size_t channel = 0; channel < kChannels; ++channel)
      if (freed[channel]) begin_queued(static_cast<Channel>(channel));
  }

  double cpu_share_;
  double now_ = 0.0;
  int64_t next_ = 0;
  std::vector<Operation> running_;
  std::array<std::deque<Operation>, kChannels> queued_;
};

struct Block {
  BlockSeconds seconds, last;  // last: of the last micro-step
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
                                       .keeps_parameters = spec::rules_of(layout.strategy).keeps_parameters,
                                       .layers = {1, blocks - 1}});
  return shape;
}

// What the events of a step take.
class Step {
 public:
  Step(const MeasuredMachine& machine, double shard_degree, std::vector<Block> blocks, int64_t micro_steps,
       const plan::BufferCounts& buffers, double cpu_share)
      : machine_(machine),
        shard_degree_(shard_degree),
        micro_steps_left_(micro_steps),
        blocks_(std::move(blocks)),
        updated_(blocks_.size()),
        gathers_(buffers.gathered),
        reductions_(buffers.whole_gradients),
        replica_sums_(blocks_.size()),
        line_(cpu_share) {}

  void time(const StepEvent& event) {
    if (event.kind == Kind::kTurnEnds) {
      --micro_steps_left_;
      return;
    }
    const Block& block = blocks_[event.block];
    const BlockSeconds& seconds = micro_steps_left_ == 1 ? block.last : block.seconds;
    switch (event.kind) {
      case Kind::kGather:
        update(event.block);
        volumes_.gather += block.sent.gather;
        return start(gathers_, event.slot, kGather, block.gather);
      case Kind::kAwaitGather:
        update_rest();
        return wait(gathers_, event.slot);
      case Kind::kForward:
        update(event.block);
        return line_.compute(seconds.forward);
      case Kind::kBackward:
        return line_.compute(seconds.backward);
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
  // What is left when the plan is over: the norm of the gradients, by which the next step's update begins. Returns the seconds of
  // the step.
  double finish(const CollectiveSeconds& norm) {
    exposed_ += line_.wait(line_.start(kWorld, norm));
    return line_.now();
  }
  double exposed() const { return exposed_; }
  const Volumes& volumes() const { return volumes_; }

 private:
  using Operations = std::vector<Started>;  // the one that was started last, by buffer or block

  void start(Operations& operations, int index, Channel channel, const CollectiveSeconds& seconds) {
    operations[index] = line_.start(channel, seconds);
  }
  void wait(const Operations& operations, int index) { exposed_ += line_.wait(operations[index]); }
  // As shard::Engine makes the last step's change of the masters: a block's before it is gathered, the rest beside the first gathers.
  void update(int block) {
    if (updated_[block]) return;
    updated_[block] = true;
    line_.compute(machine_.update(blocks_[block].elements / shard_degree_));
  }
  void update_rest() {
    for (size_t block = 0; block < blocks_.size(); ++block) update(static_cast<int>(block));
  }

  const MeasuredMachine& machine_;
  double shard_degree_;
  int64_t micro_steps_left_;  // with the one that is under way
  std::vector<Block> blocks_;
  std::vector<bool> updated_;  // by block
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

// The seconds of `together` layers, or of a table or head, with so many sequences.
BlockSeconds seconds_of(const MeasuredMachine& machine, const ReplayQuestion& question, int first,
                        int together, int64_t sequences) {
  const Layout& layout = question.layout;
  const ModelShape& model = question.model;
  const double tokens = static_cast<double>(sequences) * layout.sequence_length;
  BlockSeconds seconds = first == 0 ? machine.table(model, tokens)
                         : first == model.layers + 1
                             ? machine.head(model, tokens)
                             : machine.layer(model, tokens, layout.sequence_length, layout.checkpointing);
  seconds.forward *= together;
  seconds.backward *= together;
  return seconds;
}

std::vector<Block> blocks_of(const MeasuredMachine& machine, const ReplayQuestion& question,
                             const Collectives& all) {
  const Layout& layout = question.layout;
  const ModelShape& model = question.model;
  const int64_t last = layout.last_micro_batch(layout.nodes * question.ranks_per_node);
  std::vector<Block> blocks;
  const plan::Wrapping wrapping = plan::wrap_blocks(model.layers + 2, {{1, model.layers + 1}}, question.wrap);
  for (int unit = 0; unit < wrapping.units(model.layers + 2); ++unit) {
    Block block;
    const int b = wrapping.begin(unit), together = wrapping.end(unit) - b;
    const bool table = b == 0, head = b == model.layers + 1;
    block.elements = table || head ? model.table_parameters() : together * model.layer_parameters();
    if (head) block.elements += model.hidden;
    block.seconds = seconds_of(machine, question, b, together, layout.micro_batch);
    block.last = seconds_of(machine, question, b, together, last);
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
  const double share = machine.cpu_share(layout.nodes, question.ranks_per_node);
  StepForecast forecast;
  Phases& phases = forecast.phases;
  const auto micro = static_cast<double>(layout.accumulation);
  for (const Block& block : blocks) {
    const double full = block.seconds.forward + block.seconds.backward;
    phases.compute += micro * full - (full - block.last.forward - block.last.backward);
    phases.gather += 2.0 * micro * block.gather.wall;
    phases.reduce += micro * block.reduce.wall;
    phases.replica += block.replica.wall;
    phases.optimizer += machine.update(block.elements / static_cast<double>(layout.shard_degree)) / share;
  }
  plan::StepShape shape =
      shape_of(question, static_cast<int>(blocks.size()), /*replicated=*/world > layout.shard_degree);
  Step step(machine, static_cast<double>(layout.shard_degree), std::move(blocks), layout.accumulation,
            shape.buffers, share);
  plan::StepPlan plan(std::move(shape));
  while (const auto event = plan.next()) step.time(*event);
  forecast.seconds = step.finish(collectives.norm.at(kNormBytes));
  phases.compute /= share;
  phases.exposed = step.exposed();
  forecast.volumes = step.volumes();
  const int64_t sequences =
      layout.global_batch > 0 ? layout.global_batch : layout.micro_batch * layout.accumulation * world;
  forecast.tokens = static_cast<double>(sequences * layout.sequence_length);
  forecast.model_flops = forecast.tokens * model.flops_per_token(layout.sequence_length) / forecast.seconds /
                         static_cast<double>(world);
  return forecast;
}

}  // namespace shardrun::launcher

#include "launcher/forecast/step.h"

#include <algorithm>
#include <cmath>

#include "launcher/forecast/collective.h"
#include "runtime/plan/pipeline.h"

namespace shardrun::launcher {
namespace {

constexpr double kBf16 = 2.0;
constexpr double kMemoryReached = 0.8;
// Seconds to launch a layer's forward, from Python or not.
constexpr double kEagerLayer = 2e-4, kLaunchedLayer = 2e-5;
// Bytes that the optimizer moves for a parameter: master, moments and gradient read, all but the gradient written.
constexpr double kOptimizerBytes = 28.0;
// Bytes moved for a gathered parameter in a micro-step, where flat buffers are between the collectives and the kernels: gathered
// weights copied out twice, or the gradient put together and divided; and the gradient cast before it is reduced in fp32.
constexpr double kCopiedBytes = 8.0, kCastBytes = 6.0;
constexpr double kOffloadedBytes = 16.0;  // of a parameter's moments, there and back
constexpr double kConvertedBytes = 6.0;   // of a parameter that is made from its master: read and written

// Bytes of an element: read for its largest, read and written in fp8; and turned round for the gradient of weights.
// Tables stay in bf16 (torchtitan's converter skips the output, llmq's head has no scales).
constexpr double kFp8Cast = 5.0, kFp8Transpose = 2.0;

// Bytes of an element of a layer in fp8 that are read and written to quantize it: in forward, and in backward.
struct Fp8Bytes {
  double input = 0.0, weight = 0.0;
  double input_again = 0.0, weight_again = 0.0, gradient = 0.0;
};

Fp8Bytes fp8_bytes(const Layout& layout, const Traits& traits) {
  if (!layout.fp8) return {};
  // One pass with a scale that is known: two bytes read, one written, of a gradient in rows and in columns.
  if (traits.delayed_scales)
    return {.input = 3.0, .weight = 3.0, .input_again = 3.0, .weight_again = 3.0, .gradient = 4.0};
  return {.input = kFp8Cast, .input_again = kFp8Transpose, .gradient = kFp8Cast + kFp8Transpose};
}

// Returns the bytes that are gathered of a layer's parameter: cast before it is gathered (torchtitan's float8.md, Megatron's
// fp8-param-gather), or where it is used.
double gathered_bytes(const Layout& layout, const Traits& traits) {
  return layout.fp8 && !traits.delayed_scales ? 1.0 : kBf16;
}

// One kind of block: seconds of its kernels on one micro-batch, and of its collectives.
struct Block {
  double forward = 0.0, backward = 0.0;
  double gather = 0.0, reduce = 0.0, replica = 0.0;
};

struct Groups {
  Group shard, replica, context, experts;
};

Groups groups_of(const Machine& machine, const Layout& layout) {
  const int64_t world = layout.nodes * machine.per_node;
  const int tensor = layout.tensor_parallel;
  const auto spread = [&](int64_t ranks, int64_t stride) {
    Group group;
    group.ranks = ranks;
    group.per_node = static_cast<int>(std::clamp<int64_t>(machine.per_node / stride, 1, ranks));
    group.nodes = (ranks + group.per_node - 1) / group.per_node;
    group.beside = std::max(1, machine.per_node / group.per_node);
    return group;
  };
  Groups groups;
  groups.shard = spread(layout.shard_degree, tensor);
  groups.replica =
      spread(world / (layout.shard_degree * tensor * layout.given.pipeline), layout.shard_degree * tensor);
  groups.context = spread(layout.given.context_parallel, tensor);
  groups.experts = spread(layout.given.expert_parallel, tensor);
  return groups;
}

// What turns counts of a model into seconds of an accelerator.
struct Rates {
  double gemm = 0.0, head = 0.0, attention = 0.0;  // FLOP/s
  double memory = 0.0, copy = 0.0;                 // bytes/s, of activations and of casts
};

Rates rates_of(const Machine& machine, const ModelShape& model, const Layout& layout, const Traits& traits,
               const Constants& constants) {
  const double making = constants.making[static_cast<size_t>(traits.stack)];
  Rates rates;
  const double share = constants.gemm[static_cast<size_t>(machine.generation)] * making;
  const double width = static_cast<double>(model.hidden) / layout.tensor_parallel;
  rates.gemm = machine.peak * share * width / (width + constants.narrow);
  rates.head = machine.peak * share;
  if (layout.fp8 && machine.fp8_peak > 0.0) rates.gemm *= machine.fp8_peak / machine.peak * constants.fp8;
  const bool hopper = machine.generation == Generation::kHopper;
  rates.attention =
      machine.peak * constants.attention * making * (hopper ? traits.attention_hopper : traits.attention);
  rates.copy = machine.memory_rate * kMemoryReached / (traits.fused ? constants.fused : 1.0);
  rates.memory = machine.memory_rate * kMemoryReached * making /
                 (constants.elementwise * (traits.fused ? constants.fused : 1.0));
  return rates;
}

// How often a layer's stream of activations is read or written beside its products, in forward: two norms and two sums, and of
// gated networks the rotation of queries and keys and norms that go through fp32, of encoders two dropouts with their masks.
double stream_passes(const ModelShape& model) {
  constexpr double kNormsAndSums = 10.0, kRotationAndNorms = 6.0, kDropouts = 6.0;
  if (!model.architecture->causal) return kNormsAndSums + kDropouts;
  return model.ffn_matrices == 3 ? kNormsAndSums + kRotationAndNorms : kNormsAndSums;
}

// Heads are 64 wide in small models and 128 in others.
double heads_of(const ModelShape& model) {
  return model.hidden / (model.hidden < 2048 ? 64.0 : 128.0);
}

// Seconds that ranks of a tensor group exchange activations in one pass over one layer.
double tensor_seconds(const Machine& machine, const ModelShape& model, const Layout& layout, double link,
                      double tokens) {
  const int tensor = layout.tensor_parallel;
  if (tensor == 1) return 0.0;
  const Group group{tensor, (tensor + machine.per_node - 1) / machine.per_node,
                    std::min(tensor, machine.per_node), 1};
  const Links links{machine.link_rate * link, machine.network_rate, true};
  return 4.0 * gather_seconds(kBf16 * tokens * model.hidden, group, links);
}

// Seconds of a pass over one layer in which ranks of a context group wait for keys and values of the others. They come one rank
// after the other while attention computes on what is there, or all before it begins.
double context_exposed(const ModelShape& model, const Layout& layout, const Groups& groups,
                       const Links& links, double tokens, double attention) {
  if (layout.given.context_parallel == 1) return 0.0;
  const double bytes = 2.0 * kBf16 * model.kv_width * tokens * layout.given.context_parallel;
  const double seconds = gather_seconds(bytes / layout.tensor_parallel, groups.context, links);
  return layout.given.gathers_context ? seconds : std::max(0.0, seconds - attention);
}

// Seconds of a pass over one layer in which tokens go to the ranks of their experts and come back.
double experts_seconds(const ModelShape& model, const Layout& layout, const Groups& groups,
                       const Links& links, double tokens) {
  if (layout.given.expert_parallel == 1) return 0.0;
  const double bytes = kBf16 * model.hidden * tokens / layout.tensor_parallel * layout.given.active_experts;
  return 2.0 * all_to_all_seconds(bytes, groups.experts, links);
}

// The model as it would be with so many times its feed-forward networks.
ModelShape with_experts(ModelShape model, int experts) {
  model.ffn *= experts;
  return model;
}

// Parameters of a layer that one of a tensor group has: of keys and values at least one head, which others may have as well.
double rank_parameters(const ModelShape& model, int tensor) {
  const double shared = 2.0 * model.hidden * model.kv_width;
  const double kv_heads = std::max(1.0, std::round(model.kv_width / (model.hidden / heads_of(model))));
  return (model.layer_parameters() - shared) / tensor + shared / std::min<double>(tensor, kv_heads);
}

Block layer_block(const ModelShape& model, const Layout& layout, const Rates& rates, const Traits& traits,
                  const Groups& groups, const Links& links, double tokens, double tensor) {
  const double width = layout.tensor_parallel;
  const double weights = rank_parameters(model, layout.tensor_parallel);
  const double gemm = 2.0 * weights * tokens / rates.gemm;
  const double attention = (model.architecture->causal ? 2.0 : 4.0) * model.hidden * tokens *
                           layout.sequence_length / width / rates.attention;
  const double scores = traits.score_passes * heads_of(model) * layout.sequence_length;
  const double passes =
      kBf16 * (stream_passes(model) * model.hidden + 2.0 * model.ffn_matrices * model.ffn + scores) * tokens /
      width / rates.memory;
  const Fp8Bytes fp8 = fp8_bytes(layout, traits);
  const double inputs = tokens * (3.0 * model.hidden + model.ffn);
  const double gradients =
      tokens * (3.0 * model.hidden + 2.0 * model.kv_width + (model.ffn_matrices - 1.0) * model.ffn);
  const double casts = (fp8.input * inputs / width + fp8.weight * weights) / rates.copy;
  const double casts_back =
      ((fp8.gradient * gradients + fp8.input_again * inputs) / width + fp8.weight_again * weights) /
      rates.copy;
  const double launched = traits.python ? kEagerLayer : kLaunchedLayer;
  const double exchanged = traits.asynchronous_tensor ? tensor / width : tensor;  // forward; backward waits
  const double context = context_exposed(model, layout, groups, links, tokens, attention) +
                         experts_seconds(model, layout, groups, links, tokens);
  Block block;
  block.forward = std::max(launched, gemm + attention + passes + casts + exchanged + context);
  block.backward =
      std::max(2.0 * launched, 2.0 * gemm + 2.5 * attention + 2.0 * passes + casts_back + tensor + context);
  if (layout.checkpointing == spec::Checkpointing::kFull) block.backward += block.forward;
  if (layout.checkpointing == spec::Checkpointing::kSelective)
    block.backward += traits.selective * gemm + passes + (traits.selective > 0.0 ? exchanged : 0.0);
  return block;
}

Block head_block(const ModelShape& model, const Layout& layout, const Rates& rates, double tokens) {
  const double width = layout.tensor_parallel;
  const double gemm = 2.0 * model.table_parameters() * tokens / width / rates.head;
  const double logits = static_cast<double>(model.vocab) * tokens / width / rates.memory;
  return {.forward = gemm + 6.0 * logits, .backward = 2.0 * gemm + 10.0 * logits};
}

void add_collectives(Block& block, double elements, double gathered, const Groups& groups, const Links& links,
                     const Layout& layout, const Traits& traits, double copied) {
  block.gather = gather_seconds(gathered * elements, groups.shard, links);
  block.reduce = gather_seconds(traits.reduce_bytes * elements, groups.shard, links);
  block.replica = all_reduce_seconds(
      traits.reduce_bytes * elements / static_cast<double>(layout.shard_degree), groups.replica, links);
  if (traits.copies && layout.shard_degree > 1) block.backward += elements * copied;
}

// One micro-step, block by block. Kernels run in order; transfers share one network in the order in which they are
// asked for: the gather of the next block when a block starts, the reduction of a block when its backward ends.
struct Timeline {
  double slowed = 0.0;                  // what of a second of transfers is lost to kernels beside it
  double kernels = 0.0, network = 0.0;  // when each is free

  void run(double seconds, double beside, double ready) {
    kernels = std::max(kernels, ready) + seconds + slowed * std::min(seconds, beside);
  }
  double transfer(double seconds, double asked) { return network = std::max(network, asked) + seconds; }
};

struct MicroStep {
  bool gathers_forward = true, gathers_backward = true, replicates = false;
  bool overlaps = true;  // sums, with kernels of earlier blocks
};

double micro_step_seconds(int layers, const Block& table, const Block& layer, const Block& head,
                          const MicroStep& what, double slowed) {
  Timeline line{.slowed = slowed};
  const int blocks = layers + 2;
  const auto block = [&](int b) -> const Block& { return b == 0 ? table : b == blocks - 1 ? head : layer; };
  double ready = what.gathers_forward ? line.transfer(block(0).gather, 0.0) : 0.0;
  for (int b = 0; b < blocks; ++b) {
    const double started = std::max(line.kernels, ready);
    double next = 0.0;
    if (what.gathers_forward && b + 1 < blocks) next = line.transfer(block(b + 1).gather, started);
    line.run(block(b).forward, what.gathers_forward ? block(b).gather : 0.0, ready);
    ready = next;
  }
  ready = line.kernels;  // the last block is still there
  double behind = 0.0;
  for (int b = blocks - 1; b >= 0; --b) {
    const double started = std::max(line.kernels, ready);
    double next = started;
    if (what.gathers_backward && b > 0) next = line.transfer(block(b - 1).gather, started);
    const double sums = block(b).reduce + (what.replicates ? block(b).replica : 0.0);
    const double beside = what.overlaps ? sums : 0.0;
    line.run(block(b).backward, beside + (what.gathers_backward ? block(b).gather : 0.0), ready);
    if (what.overlaps) line.transfer(sums, line.kernels);
    behind += sums - beside;
    ready = next;
  }
  return std::max(line.kernels, line.network) + behind;
}

// A layout on a machine, in seconds of its blocks.
struct Schedule {
  Groups groups;
  Block table, layer, head;
  int layers = 0;
  double tensor = 0.0;  // of one pass over one layer
  double tokens = 0.0;  // of a micro-batch
  double slowed = 0.0;
  bool keeps = false;  // gathered parameters, from the first micro-step to the last
  bool overlaps = true;
  bool sums_always = false;  // those of copies, in every micro-step

  double sum(double Block::*part) const { return table.*part + layers * layer.*part + head.*part; }
  double kernels() const { return sum(&Block::forward) + sum(&Block::backward); }
};

Schedule schedule_of(const Machine& machine, const ModelShape& model, const Layout& layout,
                     const Traits& traits, const Constants& constants) {
  const double reached = traits.hierarchical ? constants.network_by_node : constants.network;
  const Links links{machine.link_rate * constants.link, machine.network_rate * reached, traits.hierarchical};
  const Rates rates = rates_of(machine, model, layout, traits, constants);
  Schedule schedule;
  schedule.groups = groups_of(machine, layout);
  schedule.layers = (model.layers + layout.given.pipeline - 1) / layout.given.pipeline;
  schedule.tokens =
      static_cast<double>(layout.micro_batch) * layout.sequence_length / layout.given.context_parallel;
  schedule.slowed = traits.held;
  schedule.overlaps = traits.overlaps;
  schedule.sums_always = traits.sums_each_micro_step;
  schedule.keeps = spec::rules_of(layout.strategy).keeps_parameters || layout.shard_degree == 1;
  schedule.tensor = tensor_seconds(machine, model, layout, constants.link, schedule.tokens);
  schedule.layer = layer_block(with_experts(model, layout.given.active_experts), layout, rates, traits,
                               schedule.groups, links, schedule.tokens, schedule.tensor);
  schedule.head = head_block(model, layout, rates, schedule.tokens);
  const double looked_up = kBf16 * model.hidden * schedule.tokens / rates.memory;
  if (layout.given.pipeline == 1) schedule.table = {.forward = 4.0 * looked_up, .backward = 8.0 * looked_up};
  const Groups& groups = schedule.groups;
  const double copied = (kCopiedBytes + (traits.reduce_bytes > kBf16 ? kCastBytes : 0.0)) /
                        (machine.memory_rate * kMemoryReached);
  const auto add = [&](Block& block, double parameters, double gathered) {
    add_collectives(block, parameters, gathered, groups, links, layout, traits, copied);
  };
  const ModelShape held = with_experts(model, layout.given.experts / layout.given.expert_parallel);
  const double table = model.table_parameters() / layout.tensor_parallel;
  add(schedule.layer, rank_parameters(held, layout.tensor_parallel), gathered_bytes(layout, traits));
  add(schedule.head, table, kBf16);
  const bool apart =
      !model.tied && layout.given.pipeline == 1;  // else the last stage has no embedding of its own
  add(schedule.table, apart ? table : 0.0, kBf16);
  return schedule;
}

// All micro-steps of a step, with their transfers; `last_one` is the schedule of the last of them.
double micro_steps_seconds(const Schedule& schedule, const Schedule& last_one, const Layout& layout) {
  const auto seconds = [&](bool first, bool last) {
    const Schedule& of = last ? last_one : schedule;
    return micro_step_seconds(of.layers, of.table, of.layer, of.head,
                              {.gathers_forward = first || !schedule.keeps,
                               .gathers_backward = !schedule.keeps,
                               .replicates = last || schedule.sums_always,
                               .overlaps = schedule.overlaps},
                              schedule.slowed);
  };
  if (layout.accumulation == 1) return seconds(true, true);
  const auto between = static_cast<double>(layout.accumulation - 2);
  return seconds(true, false) + (between > 0.0 ? between * seconds(false, false) : 0.0) +
         seconds(false, true);
}

// Seconds of a step in which a stage has nothing to do: until the first micro-batch comes, and behind the last (1F1B, and
// with several chunks of layers a stage, interleaved). Where gradients of weights are put off until then, a third of it is left
// (Qi et al., Zero Bubble Pipeline Parallelism, 2023: ZB-H1).
double bubble_seconds(const Schedule& schedule, const Layout& layout) {
  const int chunks = layout.given.zero_bubble ? 3 : layout.given.pipeline_chunks;
  const double layers = schedule.layers * (schedule.layer.forward + schedule.layer.backward);
  return plan::idle_micro_steps(layout.given.pipeline, chunks) * layers;
}

// What moving activations to the host and back adds where kernels do not hide it: the last layer's way there and back,
// and all that a link slower than the kernels has left.
double offload_exposed(const Schedule& schedule, double layer_seconds) {
  return 2.0 * layer_seconds + 2.0 * schedule.layers * std::max(0.0, layer_seconds - schedule.layer.forward);
}

// `full`: micro-steps that as many sequences would fill.
Volumes volumes_of(const ModelShape& model, const Layout& layout, const Traits& traits,
                   const Schedule& schedule, double gathers, double full) {
  const auto micro = static_cast<double>(layout.accumulation);
  const int tensor = layout.tensor_parallel;
  const double elements = model.parameters() / (tensor * layout.given.pipeline);
  const double shard = elements / static_cast<double>(layout.shard_degree);
  Volumes volumes;
  const double layers = schedule.layers * model.layer_parameters() / tensor;
  volumes.gather =
      gathers * gather_volume(gathered_bytes(layout, traits) * layers + kBf16 * (elements - layers),
                              schedule.groups.shard);
  volumes.reduce = micro * gather_volume(traits.reduce_bytes * elements, schedule.groups.shard);
  volumes.replica = (schedule.sums_always ? micro : 1.0) * 2.0 *
                    gather_volume(traits.reduce_bytes * shard, schedule.groups.replica);
  const double passes = layout.checkpointing == spec::Checkpointing::kFull ? 3.0 : 2.0;
  volumes.tensor =
      full * passes * 4.0 * schedule.layers * kBf16 * schedule.tokens * model.hidden * (tensor - 1) / tensor;
  if (layout.activation_offload)
    volumes.offload = full * 2.0 * schedule.layers * kBf16 * schedule.tokens / tensor * model.hidden;
  if (layout.optimizer_offload) volumes.offload += kOffloadedBytes * shard;
  return volumes;
}

// Seconds of the update of `elements`, and of their moments' way through the accelerator.
struct Update {
  double kernels = 0.0, transfers = 0.0, both = 0.0;
};

Update update_of(const Machine& machine, const Layout& layout, const Traits& traits, double elements) {
  Update update;
  update.kernels = kOptimizerBytes * elements / (machine.memory_rate * kMemoryReached);
  if (layout.optimizer_offload) {
    const double directions = traits.streams_moments ? 2.0 : 1.0;
    update.transfers = kOffloadedBytes * elements / (directions * machine.host_rate);
  }
  update.both =
      traits.streams_moments ? std::max(update.kernels, update.transfers) : update.kernels + update.transfers;
  return update;
}

// What making weights from masters adds to a step, of `elements`, each time that they are gathered.
double conversion_seconds(const Machine& machine, const Layout& layout, const Traits& traits, double elements,
                          double gathers) {
  if (!layout.optimizer_offload || !traits.streams_moments) return 0.0;
  const double times = layout.shard_degree == 1 ? 2.0 * static_cast<double>(layout.accumulation) : gathers;
  return times * kConvertedBytes * elements / (machine.memory_rate * kMemoryReached);
}

}  // namespace

int64_t Layout::last_micro_batch(int64_t data_parallel) const {
  if (global_batch == 0) return micro_batch;
  const int64_t left = global_batch - (accumulation - 1) * micro_batch * data_parallel;
  return std::clamp<int64_t>((left + data_parallel - 1) / data_parallel, 1, micro_batch);
}

void StepForecast::scale(double factor) {
  seconds *= factor;
  model_flops /= factor;
  for (double* part :
       {&phases.compute, &phases.gather, &phases.reduce, &phases.replica, &phases.tensor, &phases.offload,
        &phases.exposed, &phases.bubble, &phases.optimizer, &phases.host, &phases.straggle})
    *part *= factor;
}

ModelShape whole_model(const ModelShape& model, const Layout& layout) {
  return with_experts(model, layout.given.experts);
}

StepForecast forecast_step(const Machine& machine, const ModelShape& one_expert, const Layout& layout,
                           const Traits& traits, const Constants& constants) {
  const Schedule schedule = schedule_of(machine, one_expert, layout, traits, constants);
  const ModelShape model = whole_model(one_expert, layout);
  const ModelShape active = with_experts(one_expert, layout.given.active_experts);
  const auto micro = static_cast<double>(layout.accumulation);
  const double gathers = schedule.keeps ? 1.0 : 2.0 * micro;
  const double world = static_cast<double>(layout.nodes * machine.per_node);
  StepForecast forecast;
  const int64_t ranks = layout.nodes * machine.per_node / layout.tensor_parallel / layout.given.pipeline;
  Layout last_layout = layout;
  last_layout.micro_batch = layout.last_micro_batch(ranks / layout.given.context_parallel);
  const bool even = last_layout.micro_batch == layout.micro_batch;
  const Schedule last = even ? schedule : schedule_of(machine, one_expert, last_layout, traits, constants);
  const double full = micro - 1.0 + last.tokens / schedule.tokens;
  forecast.volumes = volumes_of(model, layout, traits, schedule, gathers, full);

  Phases& phases = forecast.phases;
  double steps = micro_steps_seconds(schedule, last, layout);
  phases.bubble = bubble_seconds(schedule, layout);
  const double shards =
      static_cast<double>(layout.shard_degree) * layout.tensor_parallel * layout.given.pipeline;
  const double mine = model.parameters() / shards;
  const Update update = update_of(machine, layout, traits, mine);
  phases.offload = update.transfers;
  if (layout.activation_offload) {
    const double moments = layout.optimizer_offload ? kOffloadedBytes * mine : 0.0;
    const double seconds = (forecast.volumes.offload - moments) / machine.host_rate;
    phases.offload += seconds;
    steps += full * offload_exposed(schedule, seconds / (full * 2.0 * schedule.layers));
  }
  const double conversion = conversion_seconds(machine, layout, traits, mine, gathers);
  steps += conversion;
  phases.compute = micro * schedule.kernels() - (schedule.kernels() - last.kernels()) + conversion;
  phases.gather = gathers * schedule.sum(&Block::gather);
  phases.reduce = micro * schedule.sum(&Block::reduce);
  phases.replica = (schedule.sums_always ? micro : 1.0) * schedule.sum(&Block::replica);
  phases.tensor = full * schedule.tensor * schedule.layers *
                  (layout.checkpointing == spec::Checkpointing::kFull ? 3.0 : 2.0);
  phases.exposed = std::max(0.0, steps - phases.compute);
  phases.optimizer = update.both;
  phases.host = traits.python ? constants.host_seconds : 0.0;
  const double before = steps + phases.bubble + phases.optimizer + phases.host;
  phases.straggle = before * constants.straggle * std::log2(static_cast<double>(layout.nodes));

  forecast.seconds = before + phases.straggle;
  forecast.tokens = layout.global_batch > 0
                        ? static_cast<double>(layout.global_batch * layout.sequence_length)
                        : schedule.tokens * micro * world / (layout.tensor_parallel * layout.given.pipeline);
  forecast.model_flops =
      forecast.tokens * active.flops_per_token(layout.sequence_length) / forecast.seconds / world;
  return forecast;
}

}  // namespace shardrun::launcher

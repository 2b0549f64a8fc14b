#include "launcher/forecast/search.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

using spec::Checkpointing;
using spec::Strategy;

// Predictions that are closer than this are equal: then the simpler layout wins.
constexpr double kEqual = 0.002;
// Sizes that tensor cores multiply in fp8 are multiples of it.
constexpr int kFp8Unit = 16;

bool keeps_parameters(Strategy strategy) {
  return spec::rules_of(strategy).keeps_parameters;
}

struct Memory {
  Checkpointing checkpointing;
  bool activation_offload, optimizer_offload;
};

std::vector<Memory> memory_choices(const Question& question) {
  std::vector<Memory> choices;
  for (const Checkpointing kind : {Checkpointing::kNone, Checkpointing::kSelective, Checkpointing::kFull}) {
    if (question.checkpointing && kind != *question.checkpointing) continue;
    for (const bool activations : {false, true}) {
      if (activations && kind == Checkpointing::kNone) continue;  // too much would have to move
      if (activations && question.as_offered && !question.traits.offered.activation_offload) continue;
      choices.push_back({kind, activations, false});
      if (question.optimizer_offload) choices.push_back({kind, activations, true});
    }
  }
  return choices;
}

// Strategies of a mesh that may be chosen.
std::vector<Strategy> strategies(const Question& question, int64_t shard_degree, int64_t data_parallel) {
  auto all = spec::strategies_of(shard_degree, data_parallel);
  if (!question.shard_grad_op) std::erase_if(all, keeps_parameters);
  return all;
}

// Whether a rank's share of every matrix of a layer can be multiplied in fp8.
bool divides_for_fp8(const ModelShape& model, int tensor) {
  const int64_t unit = int64_t{kFp8Unit} * tensor;
  return model.hidden % unit == 0 && model.kv_width % unit == 0 && model.ffn % unit == 0;
}

// What keeps a layout from any batch, in words, and how many checks it came through.
struct Obstacle {
  int passed = -1;
  std::string words;
};

// "tensor 8 x pipeline 4 x context 2".
std::string degrees_text(const Layout& layout) {
  const Given& given = layout.given;
  std::string text = fmt::format("tensor {}", layout.tensor_parallel);
  if (given.pipeline > 1) text += fmt::format(" x pipeline {}", given.pipeline);
  if (given.context_parallel > 1) text += fmt::format(" x context {}", given.context_parallel);
  return text;
}

// Empty words: there is none.
Obstacle obstacle_to(const Question& question, const Layout& layout) {
  const Given& given = question.given;
  const int64_t world = question.nodes * question.machine.per_node;
  const int64_t each = int64_t{layout.tensor_parallel} * given.pipeline;
  if (question.model.layers % (given.pipeline * given.pipeline_chunks) != 0)
    return {0, fmt::format("{} layers do not divide over pipeline {} x chunks {}", question.model.layers,
                           given.pipeline, given.pipeline_chunks)};
  if (question.fp8 && !divides_for_fp8(question.model, layout.tensor_parallel))
    return {1, fmt::format("with tensor {} a rank's matrices are no multiples of {}, as fp8 needs them",
                           layout.tensor_parallel, kFp8Unit)};
  if (world % (each * given.context_parallel) != 0)
    return {2, fmt::format("{} accelerators do not divide over {}", world, degrees_text(layout))};
  const int64_t data_parallel = world / each, sharing_batch = data_parallel / given.context_parallel;
  if (data_parallel % given.expert_parallel != 0)
    return {3, fmt::format("{} data-parallel ranks do not divide over expert_parallel {}", data_parallel,
                           given.expert_parallel)};
  if (question.global_batch % sharing_batch != 0)
    return {4,
            fmt::format(
                "a batch of {} sequences does not divide over {} data-parallel ranks ({} accelerators, {})",
                question.global_batch, sharing_batch, world, degrees_text(layout))};
  return {};
}

void add_layouts(const Question& question, Layout layout, const std::vector<Memory>& choices,
                 Answer& answer) {
  const Given& given = question.given;
  const int64_t world = question.nodes * question.machine.per_node;
  const int64_t each =
      int64_t{layout.tensor_parallel} * given.pipeline;  // ranks that share one copy of every layer
  const int64_t data_parallel = world / each, sharing_batch = data_parallel / given.context_parallel;
  const int64_t local = question.global_batch / sharing_batch;
  const double usable = question.machine.memory_bytes * kUsableMemory;
  for (const int64_t shard_degree : divisors(data_parallel)) {
    layout.shard_degree = shard_degree;
    if (question.as_offered &&
        !question.traits.offered.includes(shard_degree, data_parallel, question.machine.per_node))
      continue;
    for (const Strategy strategy : strategies(question, shard_degree, data_parallel)) {
      layout.strategy = strategy;
      for (const int64_t micro : micro_batches(local)) {
        if (question.fp8 && micro * layout.sequence_length % kFp8Unit != 0) continue;
        layout.micro_batch = micro;
        layout.accumulation = local / micro;
        for (const Memory& memory : choices) {
          layout.checkpointing = memory.checkpointing;
          layout.activation_offload = memory.activation_offload;
          layout.optimizer_offload = memory.optimizer_offload;
          Candidate candidate{.layout = layout};
          candidate.bytes =
              forecast_memory(question.model, layout, question.traits, question.machine.per_node).total();
          candidate.fits = candidate.bytes <= usable;
          candidate.seconds =
              forecast_step(question.machine, question.model, layout, question.traits, question.constants)
                  .seconds;
          answer.candidates.push_back(candidate);
        }
      }
    }
  }
}

int offloads(const Layout& layout) {
  return layout.activation_offload + layout.optimizer_offload;
}

// Orders layouts of equal speed: nothing moved to the host, then matrices whole, then the least memory.
bool simpler(const Candidate& a, const Candidate& b) {
  if (offloads(a.layout) != offloads(b.layout)) return offloads(a.layout) < offloads(b.layout);
  if (a.layout.tensor_parallel != b.layout.tensor_parallel)
    return a.layout.tensor_parallel < b.layout.tensor_parallel;
  return a.bytes < b.bytes;
}

std::optional<Candidate> choose(const std::vector<Candidate>& candidates) {
  const Candidate* fastest = nullptr;
  for (const Candidate& one : candidates)
    if (one.fits && (fastest == nullptr || one.seconds < fastest->seconds)) fastest = &one;
  if (fastest == nullptr) return std::nullopt;
  const Candidate* best = fastest;
  for (const Candidate& one : candidates)
    if (one.fits && one.seconds <= fastest->seconds * (1.0 + kEqual) && simpler(one, *best)) best = &one;
  return *best;
}

// Whether `one` differs from `other` only in what cannot save memory: less sharding, more sequences at a time.
bool holds_no_less(const Layout& one, const Layout& other) {
  return one.tensor_parallel == other.tensor_parallel && one.checkpointing == other.checkpointing &&
         one.activation_offload == other.activation_offload &&
         one.optimizer_offload == other.optimizer_offload && one.micro_batch >= other.micro_batch &&
         one.shard_degree <= other.shard_degree &&
         (keeps_parameters(one.strategy) || !keeps_parameters(other.strategy));
}

// The best of those that `differs` from the chosen one.
template <typename Differs>
void add_reason(const Answer& answer, const Differs& differs, const auto& name,
                std::vector<Reason>& reasons) {
  const Candidate& best = *answer.best;
  const Candidate *other = nullptr, *smallest = nullptr;
  for (const Candidate& one : answer.candidates) {
    if (!differs(one.layout)) continue;
    if (one.fits && (other == nullptr || one.seconds < other->seconds)) other = &one;
    if (smallest == nullptr || one.bytes < smallest->bytes) smallest = &one;
  }
  if (smallest == nullptr) return;
  if (other == nullptr)
    reasons.push_back({name(*smallest), std::nullopt, 1.0, smallest->bytes});
  else
    reasons.push_back({name(*other), other->layout, other->seconds / best.seconds, other->bytes});
}

std::vector<Reason> reasons_for(const Answer& answer) {
  const Layout& best = answer.best->layout;
  std::vector<Reason> reasons;
  const auto add = [&](const auto& differs, const auto& name) { add_reason(answer, differs, name, reasons); };
  add([&](const Layout& one) { return one.shard_degree < best.shard_degree; },
      [](const Candidate& one) { return "less sharding, " + sharding_text(one.layout) + ","; });
  add([&](const Layout& one) { return one.shard_degree > best.shard_degree; },
      [](const Candidate& one) { return "more sharding, " + sharding_text(one.layout) + ","; });
  add([&](const Layout& one) { return one.tensor_parallel != best.tensor_parallel; },
      [](const Candidate& one) { return fmt::format("tensor degree {}", one.layout.tensor_parallel); });
  add([&](const Layout& one) { return one.micro_batch != best.micro_batch; },
      [](const Candidate& one) { return fmt::format("micro-batch {}", one.layout.micro_batch); });
  add([&](const Layout& one) { return one.checkpointing < best.checkpointing; },
      [](const Candidate& one) {
        return fmt::format("checkpointing {}", name_of(one.layout.checkpointing));
      });
  if (offloads(best) > 0)
    add([&](const Layout& one) { return offloads(one) == 0; }, [](const Candidate&) { return "no offload"; });
  return reasons;
}

}  // namespace

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> low, high;
  for (int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    low.push_back(d);
    if (d != number / d) high.push_back(number / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<int64_t> micro_batches(int64_t local) {
  constexpr int64_t kMost = int64_t{1} << 20;  // [batch] micro_batch
  std::vector<int64_t> possible = divisors(local);
  std::erase_if(possible, [](int64_t micro) { return micro > kMost; });
  return possible;
}

std::string sharding_text(const Layout& layout) {
  const spec::StrategyRules& rules = spec::rules_of(layout.strategy);
  if (rules.degree == spec::ShardDegree::kOne) return rules.name;
  return fmt::format("{} over {}", rules.name, layout.shard_degree);
}

namespace {

std::vector<int> tensor_degrees(const Question& question) {
  if (question.tensor_parallel > 0) return {question.tensor_parallel};
  std::vector<int> degrees;
  for (int tensor = 1; tensor <= question.machine.per_node; tensor *= 2) {
    const bool divides =
        question.machine.per_node % tensor == 0 && (question.heads == 0 || question.heads % tensor == 0);
    const bool offered = tensor == 1 || !question.as_offered || question.traits.offered.tensor;
    if (divides && offered) degrees.push_back(tensor);
  }
  return degrees;
}

}  // namespace

Answer search(const Question& question) {
  Answer answer;
  const std::vector<Memory> choices = memory_choices(question);
  Obstacle furthest;
  for (const int tensor : tensor_degrees(question)) {
    Layout layout;
    layout.nodes = question.nodes;
    layout.tensor_parallel = tensor;
    layout.sequence_length = question.sequence_length;
    layout.fp8 = question.fp8;
    layout.given = question.given;
    Obstacle obstacle = obstacle_to(question, layout);
    if (obstacle.words.empty()) {
      add_layouts(question, layout, choices, answer);
      obstacle = {
          5, question.fp8
                 ? fmt::format("no micro-batch of {} tokens a sequence is a multiple of {}, as fp8 needs it",
                               layout.sequence_length, kFp8Unit)
                 : fmt::format("the stack has no shard degree for {}", degrees_text(layout))};
    }
    if (obstacle.passed > furthest.passed) furthest = std::move(obstacle);
  }
  if (answer.candidates.empty()) answer.why_none = std::move(furthest.words);
  answer.best = choose(answer.candidates);
  if (answer.best) answer.reasons = reasons_for(answer);
  return answer;
}

Answer without_best(Answer answer, double bytes) {
  if (!answer.best) return answer;
  const Layout best = answer.best->layout;
  for (Candidate& one : answer.candidates) {
    if (one.layout == best) one.bytes = bytes;
    if (holds_no_less(one.layout, best)) one.fits = false;
  }
  answer.best = choose(answer.candidates);
  answer.reasons.clear();
  if (answer.best) answer.reasons = reasons_for(answer);
  return answer;
}

}  // namespace shardrun::launcher

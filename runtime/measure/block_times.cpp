#include "runtime/measure/block_times.h"

#include <algorithm>
#include <memory>
#include <span>

#include "runtime/measure/group_values.h"
#include "runtime/trainer/model/llama.h"

namespace shardrun::measure {
namespace {

using record::Spread;
using record::StepProbe;

constexpr int kLayers = 2;         // layers of a probe; the first one of a pass finds colder caches
constexpr int kRounds = 2;         // at least this many count
constexpr double kSeconds = 0.06;  // CPU seconds that are enough for one probe
constexpr int kMostRounds = 40;

// Seconds by round.
struct Times {
  std::vector<double> table_forward, table_backward, layer_forward, layer_backward, head_forward,
      head_backward;
};

// One rank's model with all that its blocks need.
class Bench {
 public:
  static base::Result<Bench> create(const StepProbe& probe, model::Checkpointing checkpointing, int cpus) {
    const model::LlamaConfig config{.layers = kLayers,
                                    .hidden = static_cast<int>(probe.hidden),
                                    .heads = static_cast<int>(probe.heads),
                                    .kv_heads = static_cast<int>(probe.kv_heads),
                                    .ffn = static_cast<int>(probe.ffn),
                                    .vocab = static_cast<int>(probe.vocab)};
    auto model = model::Llama::create(config, {{.compute = kernels::DType::kBf16,
                                                .micro_batch = static_cast<int>(probe.micro_batch),
                                                .sequence_length = static_cast<int>(probe.sequence_length),
                                                .checkpointing = checkpointing}});
    RETURN_IF_ERROR(model);
    Bench bench;
    bench.cpus_ = cpus;
    bench.model_ = std::move(*model);
    bench.make_parameters();
    bench.make_batch(probe);
    return bench;
  }

  base::Result<void> round(Times& times) {
    model_->set_batch({.tokens = tokens_,
                       .targets = targets_,
                       .loss_scale = 1.0F / static_cast<float>(tokens_.size()),
                       .backward_follows = true});
    constexpr int kHead = kLayers + 1;
    for (int visit = 0; visit <= kHead; ++visit) {
      const double begin = cpu_seconds();
      RETURN_IF_ERROR(model_->forward(visit, parameters_of(visit)));
      const double seconds = (cpu_seconds() - begin) / cpus_;
      (visit == 0       ? times.table_forward
       : visit == kHead ? times.head_forward
                        : times.layer_forward)
          .push_back(seconds);
    }
    for (int visit = kHead; visit >= 0; --visit) {
      const double begin = cpu_seconds();
      RETURN_IF_ERROR(model_->backward(visit, parameters_of(visit), gradient_of(visit)));
      const double seconds = (cpu_seconds() - begin) / cpus_;
      (visit == 0       ? times.table_backward
       : visit == kHead ? times.head_backward
                        : times.layer_backward)
          .push_back(seconds);
    }
    return {};
  }

 private:
  size_t elements_of(int visit) const { return static_cast<size_t>(model_->blocks()[visit].elements); }
  std::span<const std::byte> parameters_of(int visit) const {
    return std::as_bytes(std::span(parameters_[visit]));
  }
  std::span<float> gradient_of(int visit) { return std::span(gradient_).first(elements_of(visit)); }

  // Makes small values of both signs: bf16 from the upper half of a float around 0.02.
  void make_parameters() {
    uint32_t state = 1;
    for (const model::BlockLayout& block : model_->blocks()) {
      auto& values = parameters_.emplace_back(static_cast<size_t>(block.elements));
      for (uint16_t& value : values) {
        state = state * 1664525U + 1013904223U;
        value = static_cast<uint16_t>(0x3C00U | (state >> 25) | (state & 0x8000U));
      }
      gradient_.resize(std::max(gradient_.size(), values.size()));
    }
  }

  void make_batch(const StepProbe& probe) {
    uint32_t state = 7;
    for (int64_t i = 0; i <= probe.tokens(); ++i) {
      state = state * 1664525U + 1013904223U;
      tokens_.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(probe.vocab)));
    }
    targets_.assign(tokens_.begin() + 1, tokens_.end());
    tokens_.pop_back();
  }

  int cpus_ = 1;
  std::unique_ptr<model::Model> model_;
  std::vector<std::vector<uint16_t>> parameters_;
  std::vector<float> gradient_;
  std::vector<int32_t> tokens_, targets_;
};

base::Result<Times> run(comm::Communicator& world, const StepProbe& probe, model::Checkpointing checkpointing,
                        int cpus, bool cold) {
  ASSIGN_OR_RETURN(auto bench, Bench::create(probe, checkpointing, cpus));
  Times warm, times;
  if (cold) RETURN_IF_ERROR(bench.round(warm));
  RETURN_IF_ERROR(complete(world, world.barrier()));
  const double begin = cpu_seconds();
  for (int round = 0; round < kMostRounds; ++round) {
    if (round >= kRounds && cpu_seconds() - begin > kSeconds * cpus) break;
    RETURN_IF_ERROR(bench.round(times));
  }
  return times;
}

base::Result<Spread> pooled(comm::Communicator& world, const std::vector<double>& values) {
  const Spread own = Spread::of(values);
  ASSIGN_OR_RETURN(auto all, gather_values(world, {own.low, own.median, own.high}));
  return Spread::of(std::move(all));
}

}  // namespace

StepProbe probe_of(const ProbeSizes& sizes) {
  return {.micro_batch = sizes[0],
          .sequence_length = sizes[1],
          .hidden = sizes[2],
          .heads = sizes[3],
          .kv_heads = sizes[4],
          .ffn = sizes[5],
          .vocab = sizes[6]};
}

std::vector<StepProbe> probes_to_make() {
  constexpr ProbeSizes kShapes[] = {
      {2, 64, 128, 4, 4, 352, 256},   {2, 256, 256, 4, 4, 704, 4096},  {1, 512, 256, 8, 4, 1024, 1024},
      {2, 64, 256, 4, 4, 704, 2048},  {4, 128, 384, 6, 6, 1024, 2048}, {1, 128, 512, 8, 8, 1408, 8192},
      {2, 256, 512, 8, 4, 1408, 512}, {1, 256, 512, 8, 8, 2048, 4096}, {1, 256, 768, 12, 12, 2048, 256}};
  std::vector<StepProbe> probes;
  for (const ProbeSizes& sizes : kShapes) probes.push_back(probe_of(sizes));
  return probes;
}

base::Result<void> time_blocks(comm::Communicator& world, int cpus, StepProbe& probe) {
  ASSIGN_OR_RETURN(const auto whole, run(world, probe, model::Checkpointing::kNone, cpus, /*cold=*/true));
  ASSIGN_OR_RETURN(const auto selective,
                   run(world, probe, model::Checkpointing::kSelective, cpus, /*cold=*/false));
  const struct {
    const std::vector<double>& values;
    Spread& out;
  } kinds[] = {{whole.table_forward, probe.table_forward},
               {whole.table_backward, probe.table_backward},
               {whole.layer_forward, probe.layer_forward},
               {whole.layer_backward, probe.layer_backward},
               {selective.layer_backward, probe.layer_backward_selective},
               {whole.head_forward, probe.head_forward},
               {whole.head_backward, probe.head_backward}};
  for (const auto& kind : kinds) {
    ASSIGN_OR_RETURN(auto spread, pooled(world, kind.values));
    kind.out = spread;
  }
  return {};
}

}  // namespace shardrun::measure

#include "runtime/measure/block_times.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "runtime/measure/clocks.h"
#include "runtime/measure/small_values.h"
#include "runtime/trainer/model/llama.h"

namespace shardrun::measure {
namespace {

using record::Spread;
using record::StepProbe;

constexpr int kLayers = 2;         // layers of a probe; the first one of a pass finds colder caches
constexpr double kSeconds = 0.06;  // CPU seconds that are enough for a window
constexpr int kMostRounds = 40;

// Seconds that one kind of pass took in a window.
struct Passes {
  double seconds = 0.0;
  int count = 0;

  void add(double one) { seconds += one, ++count; }
  double mean() const { return seconds / count; }
};

struct Window {
  Passes table_forward, table_backward, layer_forward, layer_backward, head_forward, head_backward;
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

  base::Result<void> round(Window& window) {
    model_->set_batch({.tokens = tokens_,
                       .targets = targets_,
                       .loss_scale = 1.0F / static_cast<float>(tokens_.size()),
                       .backward_follows = true});
    constexpr int kHead = kLayers + 1;
    for (int visit = 0; visit <= kHead; ++visit) {
      const double begin = cpu_seconds();
      RETURN_IF_ERROR(model_->forward(visit, parameters_of(visit)));
      const double seconds = (cpu_seconds() - begin) / cpus_;
      (visit == 0       ? window.table_forward
       : visit == kHead ? window.head_forward
                        : window.layer_forward)
          .add(seconds);
    }
    for (int visit = kHead; visit >= 0; --visit) {
      const double begin = cpu_seconds();
      RETURN_IF_ERROR(model_->backward(visit, parameters_of(visit), gradient_of(visit)));
      const double seconds = (cpu_seconds() - begin) / cpus_;
      (visit == 0       ? window.table_backward
       : visit == kHead ? window.head_backward
                        : window.layer_backward)
          .add(seconds);
    }
    return {};
  }

 private:
  size_t elements_of(int visit) const { return static_cast<size_t>(model_->blocks()[visit].elements); }
  std::span<const std::byte> parameters_of(int visit) const {
    return std::as_bytes(std::span(parameters_[visit]));
  }
  std::span<float> gradient_of(int visit) { return std::span(gradient_).first(elements_of(visit)); }

  void make_parameters() {
    for (const model::BlockLayout& block : model_->blocks()) {
      parameters_.push_back(small_values(block.elements));
      gradient_.resize(std::max(gradient_.size(), parameters_.back().size()));
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
  std::vector<std::vector<kernels::Bf16>> parameters_;
  std::vector<float> gradient_;
  std::vector<int32_t> tokens_, targets_;
};

base::Result<std::vector<Window>> run(comm::Communicator& world, const StepProbe& probe,
                                      model::Checkpointing checkpointing, int cpus, int windows) {
  ASSIGN_OR_RETURN(auto bench, Bench::create(probe, checkpointing, cpus));
  Window cold;
  RETURN_IF_ERROR(bench.round(cold));
  RETURN_IF_ERROR(comm::complete(world, world.barrier()));
  std::vector<Window> timed(static_cast<size_t>(windows));
  for (Window& window : timed) {
    const double begin = cpu_seconds();
    for (int round = 0; round < kMostRounds; ++round) {
      if (round > 0 && cpu_seconds() - begin > kSeconds * cpus) break;
      RETURN_IF_ERROR(bench.round(window));
    }
  }
  return timed;
}

// Adds the means of one kind of pass in all ranks' windows.
base::Result<void> pool(comm::Communicator& world, const std::vector<Window>& windows, Passes Window::*kind,
                        std::vector<double>& pooled) {
  std::vector<double> means;
  for (const Window& window : windows) means.push_back((window.*kind).mean());
  ASSIGN_OR_RETURN(const auto all, comm::gather_values(world, means));
  pooled.insert(pooled.end(), all.begin(), all.end());
  return {};
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

base::Result<void> BlockTimes::measure(comm::Communicator& world, int cpus) {
  ASSIGN_OR_RETURN(const auto whole, run(world, probe_, model::Checkpointing::kNone, cpus, windows_));
  ASSIGN_OR_RETURN(const auto selective,
                   run(world, probe_, model::Checkpointing::kSelective, cpus, windows_));
  const struct {
    const std::vector<Window>& windows;
    Passes Window::*kind;
    Spread& out;
  } kinds[] = {{whole, &Window::table_forward, probe_.table_forward},
               {whole, &Window::table_backward, probe_.table_backward},
               {whole, &Window::layer_forward, probe_.layer_forward},
               {whole, &Window::layer_backward, probe_.layer_backward},
               {selective, &Window::layer_backward, probe_.layer_backward_selective},
               {whole, &Window::head_forward, probe_.head_forward},
               {whole, &Window::head_backward, probe_.head_backward}};
  pooled_.resize(std::size(kinds));
  for (size_t i = 0; i < std::size(kinds); ++i) {
    RETURN_IF_ERROR(pool(world, kinds[i].windows, kinds[i].kind, pooled_[i]));
    kinds[i].out = Spread::of(pooled_[i]);
  }
  return {};
}

}  // namespace shardrun::measure

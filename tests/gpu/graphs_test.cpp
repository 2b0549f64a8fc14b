// Tests models whose layers are started as graphs, over batches that want different ops of the same layers.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "runtime/trainer/kernels/cuda/backend.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"
#include "tests/gpu/training.h"

namespace gpu_training {
namespace {

constexpr int kBatch = 2, kLength = 32, kVocabulary = 64;
constexpr model::LlamaConfig kLlama{
    .layers = 2, .hidden = 64, .heads = 1, .kv_heads = 1, .ffn = 96, .vocab = kVocabulary};
constexpr model::BertConfig kBert{
    .layers = 2, .hidden = 64, .heads = 1, .ffn = 96, .vocab = kVocabulary, .max_positions = kLength};

std::unique_ptr<kernels::Backend> gpu_backend(bool graphs) {
  auto device = kernels::cuda::Device::create({});
  REQUIRE(device);
  auto made = kernels::cuda::make_backend(std::move(device).value());
  REQUIRE(made);
  (*made)->use_graphs(graphs);
  return std::move(made).value();
}

// What differs between the batches: where documents begin, how long rows are.
struct Masks {
  std::vector<int32_t> begins{}, lengths{};
};
Masks documents() {
  Masks masks;
  for (int i = 0; i < kBatch * kLength; ++i) masks.begins.push_back(i % kLength < 20 ? 0 : 20);
  return masks;
}
Masks padding() {
  return {.lengths = {kLength, kLength / 2}};
}

// A model on a GPU with parameters that stay the same.
template <typename Model>
class Trained {
 public:
  template <typename Config>
  Trained(const Config& config, bool graphs) : backend_(gpu_backend(graphs)) {
    auto made = Model::create(config, {.micro_batch = kBatch,
                                       .sequence_length = kLength,
                                       .device = kernels::DeviceKind::kGpu,
                                       .backend = backend_.get(),
                                       .accumulates = true});
    REQUIRE(made);
    model_ = std::move(made).value();
    for (const model::BlockLayout& block : model_->blocks()) {
      std::vector<float> values(static_cast<size_t>(block.elements));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = 0.02F * static_cast<float>(i * 7919 % 101) - 1.0F;
      const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
      parameters_.push_back(backend_->allocate(bytes).value());
      gradients_.push_back(backend_->allocate(bytes).value());
      backend_->upload(parameters_.back().data(), values.data(), bytes);
    }
    for (int i = 0; i < kBatch * kLength; ++i) tokens_.push_back(i * 13 % kVocabulary);
  }

  // Returns the loss, and the start of the first layer's gradient.
  std::vector<double> run(const Masks& masks, bool accumulate) {
    model::Batch batch{.tokens = tokens_, .targets = tokens_, .loss_scale = 0.01F};
    batch.document_begins = masks.begins;
    batch.lengths = masks.lengths;
    model_->set_batch(batch);
    const auto visits = static_cast<int>(model_->visits().size());
    for (int visit = 0; visit < visits; ++visit) REQUIRE(model_->forward(visit, parameters(visit)));
    for (int visit = visits; visit-- > 0;) {
      base::Memory& memory = gradients_[block_of(visit)];
      const std::span<float> gradient(reinterpret_cast<float*>(memory.data()),
                                      static_cast<size_t>(memory.bytes()) / sizeof(float));
      REQUIRE(model_->backward(visit, parameters(visit), gradient, accumulate));
    }
    std::vector<float> gradient(64);
    REQUIRE(backend_->download(gradient.data(), gradients_[1].data(), 64 * int64_t{sizeof(float)}));
    std::vector<double> found(gradient.begin(), gradient.end());
    found.push_back(model_->loss().sum);
    return found;
  }

 private:
  size_t block_of(int visit) const {
    return static_cast<size_t>(model_->visits()[static_cast<size_t>(visit)]);
  }
  std::span<const std::byte> parameters(int visit) const {
    const base::Memory& memory = parameters_[block_of(visit)];
    return {memory.data(), static_cast<size_t>(memory.bytes())};
  }

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Model> model_;
  std::vector<base::Memory> parameters_, gradients_;
  std::vector<int32_t> tokens_;
};

template <typename Model, typename Config>
void check_graphs(const Config& config, const std::vector<Masks>& batches) {
  Trained<Model> plain(config, false), graphs(config, true);
  for (int round = 0; round < 3; ++round) {  // they are run op by op, captured, started
    for (size_t i = 0; i < batches.size(); ++i) {
      for (const bool accumulate : {false, true}) {
        CAPTURE(round);
        CAPTURE(i);
        CAPTURE(accumulate);
        CHECK_EQ(graphs.run(batches[i], accumulate), plain.run(batches[i], accumulate));
      }
    }
  }
  CHECK_NE(plain.run(batches[0], false), plain.run(batches[1], false));
}

}  // namespace

TEST_CASE("graphs: batches with documents and without them have their own of a Llama's layers") {
  check_graphs<model::Llama>(kLlama, {{}, documents()});
}

TEST_CASE("graphs: batches with documents, with padding and with neither have their own of a BERT's layers") {
  check_graphs<model::Bert>(kBert, {{}, padding(), documents()});
}

}  // namespace gpu_training

#include "runtime/trainer/model/llama.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "runtime/trainer/kernels/workspace.h"
#include "tests/unit/model/block_values.h"

using namespace shardrun;

namespace {

const model::LlamaConfig kTinyLlama{2, 12, 3, 1, 20, 17, 10000.0, 1e-5};
constexpr int kLlamaBatch = 2, kLlamaLength = 5;

model::ModelOptions options_of(kernels::DType compute) {
  return {
      {.compute = compute, .micro_batch = kLlamaBatch, .sequence_length = kLlamaLength, .accumulates = true}};
}

// A model with random parameters, one micro-batch of random tokens, and its gradient.
struct LlamaFixture {
  explicit LlamaFixture(kernels::DType dtype, uint32_t seed = 1)
      : compute(dtype), layouts(plan::block_layouts(kTinyLlama)) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    std::uniform_int_distribution<int32_t> token(0, kTinyLlama.vocab - 1);
    for (const auto& layout : layouts) {
      std::vector<float> block(static_cast<size_t>(layout.elements));
      for (float& value : block) value = normal(generator);
      parameters.push_back(block);
      gradients.emplace_back(block.size(), std::nanf(""));
    }
    tokens.resize(kLlamaBatch * kLlamaLength);
    targets.resize(tokens.size());
    for (auto& value : tokens) value = token(generator);
    for (auto& value : targets) value = token(generator);
    targets[3] = -1;
    llama = model::Llama::create(kTinyLlama, options_of(compute)).value();
  }

  std::vector<std::byte> bytes(size_t block) const {
    const auto& values = parameters[block];
    return testing::bytes_of(values, compute);
  }

  double mean_loss() {
    llama->set_batch({.tokens = tokens, .targets = targets, .loss_scale = 1.0f / 9.0f});
    for (size_t block = 0; block < layouts.size(); ++block)
      REQUIRE(llama->forward(static_cast<int>(block), bytes(block)));
    CHECK_EQ(llama->loss().tokens, 9);
    return llama->loss().sum / 9.0;
  }

  void differentiate(bool accumulate = false) {
    mean_loss();
    for (size_t block = layouts.size(); block-- > 0;) {
      REQUIRE(llama->backward(static_cast<int>(block), bytes(block), gradients[block], accumulate));
    }
  }

  kernels::DType compute;
  std::vector<model::BlockLayout> layouts;
  std::vector<std::vector<float>> parameters, gradients;
  std::vector<int32_t> tokens, targets;
  std::unique_ptr<model::Llama> llama;
};

}  // namespace

TEST_CASE("llama: the gradient of every parameter tensor agrees with finite differences") {
  LlamaFixture fixture(kernels::DType::kFp32);
  fixture.differentiate();
  testing::check_slopes(fixture.layouts, fixture.parameters, fixture.gradients,
                        [&] { return fixture.mean_loss(); });
}

TEST_CASE(
    "llama: the FLOPs of a token count grouped heads' products, and scores with or without causal credit") {
  // A layer's products take 1104: q and o 2·12·12, k and v of one head of 4 2·4·12, the feed-forward 3·20·12. Two
  // layers and the head's 17·12 make 2412; the embedding is a look-up. Scores of 5 keys take 2 layers · 12 · 5 = 120.
  CHECK(plan::flops_per_token(kTinyLlama, 5).causal == 6.0 * 2412 + 6.0 * 120);
  CHECK(plan::flops_per_token(kTinyLlama, 5).full == 6.0 * 2412 + 12.0 * 120);
  auto tied = kTinyLlama;
  tied.tied_embeddings = true;  // the head's product is there all the same
  CHECK(plan::flops_per_token(tied, 5).causal == 6.0 * 2412 + 6.0 * 120);
}

TEST_CASE("llama: small random weights predict about uniformly, loss ln V") {
  LlamaFixture fixture(kernels::DType::kFp32);
  for (auto& block : fixture.parameters) {
    for (float& value : block) value *= 1e-3f;
  }
  CHECK_EQ(fixture.mean_loss(), doctest::Approx(std::log(17.0)).epsilon(1e-3));
}

TEST_CASE(
    "llama: with logits in chunks, the loss that backward finds and its gradient are those of forward") {
  // Chunks have 64 rows at least and 2^25 logits at most: this vocabulary makes two of them.
  const model::LlamaConfig config{1, 8, 2, 1, 8, 1 << 19, 10000.0, 1e-5};
  constexpr int kRows = 100;
  const auto layouts = plan::block_layouts(config);
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  std::vector<std::vector<float>> parameters;
  for (const auto& layout : layouts) {
    parameters.emplace_back(static_cast<size_t>(layout.elements));
    for (float& value : parameters.back()) value = normal(generator);
  }
  std::vector<int32_t> tokens(kRows), targets(kRows);
  for (int i = 0; i < kRows; ++i)
    tokens[static_cast<size_t>(i)] = i * 7, targets[static_cast<size_t>(i)] = i * 13;
  const auto run = [&](bool backward_follows) {
    auto llama = model::Llama::create(config, {kernels::DType::kFp32, 1, kRows}).value();
    llama->set_batch({.tokens = tokens, .targets = targets, .backward_follows = backward_follows});
    for (int visit = 0; visit < 3; ++visit)
      REQUIRE(llama->forward(visit, std::as_bytes(std::span(parameters[static_cast<size_t>(visit)]))));
    CHECK((llama->loss().sum == 0.0) == backward_follows);
    std::vector<float> gradient(static_cast<size_t>(layouts.back().elements));
    REQUIRE(llama->backward(2, std::as_bytes(std::span(parameters.back())), gradient));
    return std::pair(llama->loss().sum, gradient);
  };
  const auto [forward_loss, forward_gradient] = run(false);
  const auto [backward_loss, backward_gradient] = run(true);
  CHECK_EQ(forward_loss, backward_loss);
  CHECK(forward_gradient == backward_gradient);
}

TEST_CASE("llama: loss and gradients have the same bits when computed again") {
  LlamaFixture one(kernels::DType::kBf16), two(kernels::DType::kBf16);
  one.differentiate();
  two.differentiate();
  CHECK_EQ(one.llama->loss().sum, two.llama->loss().sum);
  CHECK(one.gradients == two.gradients);
}

TEST_CASE("llama: a gradient that is added to another is their sum") {
  for (const auto compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
    LlamaFixture fixture(compute);
    fixture.differentiate();
    const auto first = fixture.gradients;
    std::rotate(fixture.tokens.begin(), fixture.tokens.begin() + 1, fixture.tokens.end());
    fixture.differentiate();
    const auto second = fixture.gradients;

    fixture.gradients = first;
    fixture.differentiate(/*accumulate=*/true);

    testing::check_sum(fixture.gradients, first, second);
  }
}

TEST_CASE("llama: bf16 loss and gradients stay near fp32") {
  LlamaFixture full(kernels::DType::kFp32), half(kernels::DType::kBf16);
  full.differentiate();
  half.differentiate();
  CHECK_EQ(half.mean_loss(), doctest::Approx(full.mean_loss()).epsilon(2e-2));
  CHECK_LT(testing::distance(half.gradients, full.gradients), 5e-2);
}

TEST_CASE("llama: impossible shapes are refused with the mend") {
  model::LlamaConfig config = kTinyLlama;
  config.heads = 5;
  const auto refused = model::Llama::create(config, {kernels::DType::kFp32, 1, 4});
  REQUIRE_FALSE(refused);
  CHECK_NE(refused.error().to_string().find("make hidden a multiple of 10"), std::string::npos);
}

TEST_CASE("llama: Llama-2 7B has the published number of parameters") {
  int64_t elements = 0;
  for (const auto& block : plan::block_layouts(plan::LlamaConfig{32, 4096, 32, 32, 11008, 32000}))
    elements += block.elements;
  CHECK_EQ(elements, 6738415616);
}

TEST_CASE("llama: every product that a step runs is listed beforehand, so none is compiled while it trains") {
  // Products belong to a thread: this one has none yet.
  std::thread([] {
    for (const auto compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
      kernels::prepare(plan::ops(kTinyLlama, options_of(compute)));
      const int64_t prepared = kernels::compiled_products();
      CHECK_GT(prepared, 10);
      LlamaFixture fixture(compute);
      fixture.differentiate();
      fixture.differentiate(/*accumulate=*/true);
      CHECK_EQ(kernels::compiled_products(), prepared);
    }
  }).join();
}

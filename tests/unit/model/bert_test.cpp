#include "runtime/trainer/model/bert.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/spec/model_presets.h"
#include "runtime/trainer/kernels/workspace.h"
#include "tests/unit/model/block_values.h"

using namespace shardrun;

namespace {

const model::BertConfig kTinyBert{2, 12, 3, 20, 17, 9, 2, 1e-12};
constexpr int kBertBatch = 3, kBertLength = 7;

// A model with random parameters, one micro-batch of random tokens, and its gradient.
struct BertFixture {
  explicit BertFixture(kernels::DType dtype, uint32_t seed = 1,
                       model::Checkpointing checkpointing = model::Checkpointing::kNone,
                       const std::string& offload = {})
      : compute(dtype), layouts(plan::block_layouts(kTinyBert)) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    std::uniform_int_distribution<int32_t> token(0, kTinyBert.vocab - 1), bit(0, 1);
    for (const auto& layout : layouts) {
      std::vector<float> block(static_cast<size_t>(layout.elements));
      for (float& value : block) value = normal(generator);
      parameters.push_back(block);
      gradients.emplace_back(block.size(), 0.0f);
    }
    tokens.resize(kBertBatch * kBertLength), targets.assign(tokens.size(), -1),
        segments.resize(tokens.size());
    for (auto& value : tokens) value = token(generator);
    for (auto& value : segments) value = bit(generator);
    for (const size_t masked : {0, 4, 7, 11, 15}) targets[masked] = token(generator);
    bert = model::Bert::create(kTinyBert,
                               {{compute, kBertBatch, kBertLength, checkpointing, !offload.empty()}, offload})
               .value();
  }

  std::vector<std::byte> bytes(int visit) const {
    const auto& values = parameters[static_cast<size_t>(bert->visits()[static_cast<size_t>(visit)])];
    return testing::bytes_of(values, compute);
  }

  int visit_count() const { return static_cast<int>(bert->visits().size()); }

  // Returns the mean over predicted tokens plus the mean over labelled sequences, as BertForPreTraining adds them.
  double loss() {
    bert->set_batch({.tokens = tokens,
                     .targets = targets,
                     .document_begins = begins,
                     .lengths = lengths,
                     .segments = segments,
                     .next_sentence = labels,
                     .loss_scale = 1.0f / 5.0f,
                     .sequence_scale = 1.0f / 2.0f});
    for (int visit = 0; visit < visit_count(); ++visit) REQUIRE(bert->forward(visit, bytes(visit)));
    const model::Loss sums = bert->loss();
    return sums.sum / 5.0 + sums.sequence_sum / 2.0;
  }

  void differentiate() {
    loss();
    for (auto& gradient : gradients) std::fill(gradient.begin(), gradient.end(), 0.0f);
    for (int visit = visit_count(); visit-- > 0;) {
      auto& total = gradients[static_cast<size_t>(bert->visits()[static_cast<size_t>(visit)])];
      std::vector<float> part(total.size(), std::nanf(""));
      REQUIRE(bert->backward(visit, bytes(visit), part));
      for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
    }
  }

  // Adds to the gradients those of another micro-step.
  void differentiate_more() {
    loss();
    for (int visit = visit_count(); visit-- > 0;) {
      auto& total = gradients[static_cast<size_t>(bert->visits()[static_cast<size_t>(visit)])];
      REQUIRE(bert->backward(visit, bytes(visit), total, /*accumulate=*/true));
    }
  }

  kernels::DType compute;
  std::vector<model::BlockLayout> layouts;
  std::vector<std::vector<float>> parameters, gradients;
  std::vector<int32_t> tokens, targets, segments, begins, lengths = {7, 5, 6}, labels = {1, -1, 0};
  std::unique_ptr<model::Bert> bert;
};

void check_gradients(BertFixture& fixture) {
  fixture.differentiate();
  testing::check_slopes(fixture.layouts, fixture.parameters, fixture.gradients,
                        [&] { return fixture.loss(); });
}

int64_t parameters_of(const model::BertConfig& config) {
  int64_t elements = 0;
  for (const auto& block : plan::block_layouts(config)) elements += block.elements;
  return elements;
}

}  // namespace

TEST_CASE("bert: the gradient of every parameter tensor agrees with finite differences") {
  BertFixture fixture(kernels::DType::kFp32);
  check_gradients(fixture);
}

TEST_CASE("bert: so it does with packed documents") {
  BertFixture fixture(kernels::DType::kFp32, 2);
  fixture.begins = {0, 0, 0, 3, 3, 3, 3, /**/ 0, 1, 1, 1, 1, 1, 6, /**/ 0, 0, 0, 0, 0, 0, 0};
  fixture.lengths = {};
  check_gradients(fixture);
}

TEST_CASE("bert: without predicted tokens and labels the loss and every gradient are zero") {
  BertFixture fixture(kernels::DType::kFp32);
  std::fill(fixture.targets.begin(), fixture.targets.end(), -1);
  fixture.labels = {};
  fixture.differentiate();
  CHECK_EQ(fixture.bert->loss().sum, 0.0);
  CHECK_EQ(fixture.bert->loss().sequence_sum, 0.0);
  CHECK_EQ(fixture.bert->loss().tokens + fixture.bert->loss().sequences, 0);
  for (const auto& gradient : fixture.gradients) {
    CHECK(std::all_of(gradient.begin(), gradient.end(), [](float value) { return value == 0.0f; }));
  }
}

TEST_CASE("bert: small random weights predict about uniformly, ln V for tokens and ln 2 for sentences") {
  BertFixture fixture(kernels::DType::kFp32);
  for (auto& block : fixture.parameters) {
    for (float& value : block) value *= 1e-3f;
  }
  CHECK_EQ(fixture.loss(), doctest::Approx(std::log(17.0) + std::log(2.0)).epsilon(1e-3));
}

TEST_CASE("bert: what padding holds changes no bit of the loss or of a gradient") {
  BertFixture fixture(kernels::DType::kFp32);
  fixture.differentiate();
  const double before = fixture.loss();
  const auto gradients = fixture.gradients;
  fixture.tokens[kBertLength + 5] = (fixture.tokens[kBertLength + 5] + 1) % kTinyBert.vocab;
  fixture.segments[kBertLength + 6] = 1 - fixture.segments[kBertLength + 6];
  fixture.differentiate();
  CHECK_EQ(fixture.loss(), before);
  CHECK(fixture.gradients == gradients);
  // The last token that is no padding.
  fixture.tokens[kBertLength + 4] = (fixture.tokens[kBertLength + 4] + 1) % kTinyBert.vocab;
  CHECK_NE(fixture.loss(), before);
}

TEST_CASE("bert: loss and gradients have the same bits when computed again") {
  BertFixture one(kernels::DType::kBf16), two(kernels::DType::kBf16);
  one.differentiate();
  two.differentiate();
  CHECK_EQ(one.bert->loss().sum, two.bert->loss().sum);
  CHECK(one.gradients == two.gradients);
}

TEST_CASE("bert: computing activations again and keeping them in a file change no bit") {
  BertFixture plain(kernels::DType::kBf16);
  plain.differentiate();
  for (const auto checkpointing :
       {model::Checkpointing::kNone, model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
    for (const char* offload : {"", "/tmp"}) {
      BertFixture other(kernels::DType::kBf16, 1, checkpointing, offload);
      other.differentiate();
      CHECK_EQ(other.bert->loss().sum, plain.bert->loss().sum);
      CHECK(other.gradients == plain.gradients);
    }
  }
}

TEST_CASE("bert: each level of checkpointing keeps less, and what is in a file is not resident") {
  const model::BertConfig large{24, 1024, 16, 4096, 30522};
  plan::ModelRun options{kernels::DType::kBf16, 8, 128};
  const int64_t none = plan::activation_bytes(large, options).resident;
  options.checkpointing = model::Checkpointing::kSelective;
  const int64_t selective = plan::activation_bytes(large, options).resident;
  options.checkpointing = model::Checkpointing::kFull;
  const auto full = plan::activation_bytes(large, options);
  CHECK_LT(selective, none * 3 / 4);
  CHECK_LT(full.resident, selective / 3);

  options.offload = true;
  const auto offloaded = plan::activation_bytes(large, options);
  CHECK_EQ(offloaded.resident + offloaded.offloaded, full.resident);
  CHECK_LT(offloaded.offload_window, offloaded.offloaded / 8);
}

TEST_CASE("bert: gradients that are added to others are their sums, with and without predicted tokens") {
  for (const auto compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
    for (const bool predicts : {true, false}) {
      BertFixture fixture(compute);
      fixture.differentiate();
      const auto first = fixture.gradients;
      std::rotate(fixture.tokens.begin(), fixture.tokens.begin() + 1, fixture.tokens.end());
      if (!predicts) fixture.targets.assign(fixture.targets.size(), -1);
      fixture.differentiate();
      const auto second = fixture.gradients;

      fixture.gradients = first;
      fixture.differentiate_more();

      testing::check_sum(fixture.gradients, first, second);
    }
  }
}

TEST_CASE("bert: bf16 loss and gradients stay near fp32") {
  BertFixture full(kernels::DType::kFp32), half(kernels::DType::kBf16);
  full.differentiate();
  half.differentiate();
  CHECK_EQ(half.loss(), doctest::Approx(full.loss()).epsilon(2e-2));
  CHECK_LT(testing::distance(half.gradients, full.gradients), 5e-2);
}

TEST_CASE("bert: impossible shapes are refused with the mend") {
  model::BertConfig config = kTinyBert;
  config.heads = 5;
  CHECK_FALSE(model::Bert::create(config, {kernels::DType::kFp32, 1, 4}));
  const auto refused = model::Bert::create(kTinyBert, {kernels::DType::kFp32, 1, 10});
  REQUIRE_FALSE(refused);
  CHECK_NE(refused.error().to_string().find("max_positions 9; shorten"), std::string::npos);
}

TEST_CASE("bert: the presets' sizes have the published numbers of parameters") {
  CHECK_EQ(parameters_of({12, 768, 12, 3072, 30522}), 110106428);
  CHECK_EQ(parameters_of({24, 1024, 16, 4096, 30522}), 336226108);
  const auto roberta = [](const char* preset) {
    spec::ModelSpec model = *spec::find_preset(preset);
    model.max_positions = 514;
    return parameters_of(plan::BertConfig::of(model));
  };
  CHECK_EQ(roberta("roberta-base"), 124697433);
  CHECK_EQ(roberta("roberta-large"), 355412057);
}

TEST_CASE("bert: a RoBERTa has no row for positions behind its table's, and counts from the third") {
  model::BertConfig roberta = kTinyBert;
  roberta.next_sentence = false;
  CHECK(model::Bert::create(roberta, {kernels::DType::kFp32, 1, 7}));
  const auto refused = model::Bert::create(roberta, {kernels::DType::kFp32, 1, 8});
  REQUIRE_FALSE(refused);
  CHECK_NE(refused.error().to_string().find("max_positions 9 without the first 2; shorten"),
           std::string::npos);
}

TEST_CASE("bert: every product that a step runs is listed beforehand, so none is compiled while it trains") {
  // Products belong to a thread: this one has none yet.
  std::thread([] {
    for (const auto compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
      const plan::ModelRun options{.compute = compute,
                                   .micro_batch = kBertBatch,
                                   .sequence_length = kBertLength,
                                   .most_targets = 5,
                                   .accumulates = true};
      kernels::prepare(plan::ops(kTinyBert, options));
      const int64_t prepared = kernels::compiled_products();
      CHECK_GT(prepared, 10);
      BertFixture fixture(compute);
      fixture.differentiate();
      fixture.differentiate_more();
      CHECK_EQ(kernels::compiled_products(), prepared);
    }
  }).join();
}

// A tiny model of each family against transformers: peers/families.txt, written by tests/peers/families.py, which says how
// weights and batches are made. Each family's config.json goes the way that a job's does.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"
#include "tests/unit/model/peer_checks.h"

using namespace shardrun;
using namespace shardrun::tests;

namespace {

OneRank rank_of(const Peer& peer) {
  constexpr auto kFp32 = kernels::DType::kFp32;
  auto model = model::Llama::create(config_of(peer), {kFp32, kBatch, kLength});
  REQUIRE_MESSAGE(model, model.error().to_string());
  return {std::move(model).value(), kFp32, weight};
}

}  // namespace

TEST_CASE("families: losses of 20 steps are transformers', the first within 1e-5, the others within 1e-4") {
  const auto all = peers(SOURCE_DIR);
  for (const char* family : kFamilies) {
    CAPTURE(family);
    REQUIRE(all.contains(family));
    const Peer& peer = all.at(family);
    REQUIRE_EQ(peer.losses.size(), kSteps);
    OneRank rank = rank_of(peer);
    for (int step = 0; step < kSteps; ++step) {
      CAPTURE(step);
      check_loss(peer, step, rank.step(step, llama_batch(step).view()));
    }
  }
}

TEST_CASE("families: the gradient of every parameter in the first step is transformers'") {
  const auto all = peers(SOURCE_DIR);
  for (const char* family : kFamilies) {
    CAPTURE(family);
    REQUIRE(all.contains(family));
    const Peer& peer = all.at(family);
    OneRank rank = rank_of(peer);
    rank.step(0, llama_batch(0).view());
    check_gradients(peer, rank);
  }
}

TEST_CASE("families: a RoBERTa's losses and gradients are transformers'") {
  const Peer peer = peers(SOURCE_DIR).at("roberta");
  REQUIRE_EQ(peer.losses.size(), kSteps);
  constexpr auto kFp32 = kernels::DType::kFp32;
  auto model = model::Bert::create(plan::BertConfig::of(model_of(peer, "bert")), {kFp32, kBatch, kLength});
  REQUIRE_MESSAGE(model, model.error().to_string());
  OneRank rank(std::move(model).value(), kFp32, weight);
  for (int step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    OwnedBatch batch = bert_batch(step);
    batch.segments.clear();
    batch.labels.clear();
    check_loss(peer, step, rank.step(step, batch.view()));
    if (step == 0) check_gradients(peer, rank);
  }
}

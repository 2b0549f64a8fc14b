// A tiny model of each family against transformers: peers/families.txt, written by tests/peers/families.py, which says how
// weights and batches are made. Each family's config.json goes the way that a job's does.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

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

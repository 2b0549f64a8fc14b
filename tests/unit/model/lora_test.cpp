// Adapters of tiny models against PEFT: peers/lora.txt, written by tests/peers/lora.py. Each case's config.json goes the way that
// a job's does.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "runtime/plan/model/adapters.h"
#include "runtime/trainer/model/llama.h"
#include "tests/unit/model/peer_checks.h"

using namespace shardrun;
using namespace shardrun::tests;

namespace {

constexpr const char* kCases[] = {"default", "all", "rslora", "norms"};

OneRank rank_of(const plan::LlamaConfig& config, model::Checkpointing level = model::Checkpointing::kNone) {
  model::ModelOptions options{{.micro_batch = kBatch, .sequence_length = kLength, .checkpointing = level}};
  auto model = model::Llama::create(config, options);
  REQUIRE_MESSAGE(model, model.error().to_string());
  return {std::move(model).value(), kernels::DType::kFp32, weight};
}

}  // namespace

TEST_CASE("lora: losses of 20 steps are PEFT's, the first within 1e-5, the others within 1e-4") {
  const auto all = peers(SOURCE_DIR, "lora.txt");
  for (const char* name : kCases) {
    CAPTURE(name);
    REQUIRE(all.contains(name));
    const Peer& peer = all.at(name);
    REQUIRE_EQ(peer.losses.size(), kSteps);
    OneRank rank = rank_of(config_of(peer)), again = rank_of(config_of(peer), model::Checkpointing::kFull);
    for (int step = 0; step < kSteps; ++step) {
      CAPTURE(step);
      const double ours = rank.step(step, llama_batch(step).view());
      check_loss(peer, step, ours);
      CHECK_EQ(again.step(step, llama_batch(step).view()), ours);
    }
  }
}

TEST_CASE("lora: exactly the adapters have gradients, and they are PEFT's") {
  const auto all = peers(SOURCE_DIR, "lora.txt");
  for (const char* name : kCases) {
    CAPTURE(name);
    REQUIRE(all.contains(name));
    const Peer& peer = all.at(name);
    OneRank rank = rank_of(config_of(peer));
    rank.step(0, llama_batch(0).view());
    check_gradients(peer, rank);
  }
}

TEST_CASE("lora: adapters that have just begun change nothing of what the model computes") {
  const auto all = peers(SOURCE_DIR, "lora.txt");
  plan::LlamaConfig config = config_of(all.at("all"));
  const auto begun = [](const model::ParameterInfo& tensor, uint64_t element) {
    return tensor.name.ends_with("lora_B.weight") ? 0.0F : weight(tensor, element);
  };
  const auto loss_of = [&](const plan::LlamaConfig& of) {
    auto model = model::Llama::create(of, {{.micro_batch = kBatch, .sequence_length = kLength}});
    REQUIRE(model);
    return OneRank(std::move(model).value(), kernels::DType::kFp32, begun).step(0, llama_batch(0).view());
  };
  const double adapted = loss_of(config);
  config.lora = {};
  CHECK_EQ(adapted, loss_of(config));
}

TEST_CASE("lora: a frozen weight counts four FLOPs a token and an adapter's six") {
  plan::LlamaConfig config{.layers = 2, .hidden = 8, .heads = 2, .kv_heads = 1, .ffn = 16, .vocab = 32};
  const double whole = plan::flops_per_token(config, 4).causal;
  config.lora = {.rank = 3, .alpha = 3.0, .matrices = {spec::LoraMatrix::kQ, spec::LoraMatrix::kDown}};
  // Products: 2 × (q 64, k 32, v 32, o 64, three of 128) and the head's 256; adapters: 2 × 3·(8+8 + 16+8).
  const double products = 2.0 * (64 + 32 + 32 + 64 + 3 * 128) + 256, adapters = 2.0 * 3 * (8 + 8 + 16 + 8);
  CHECK_EQ(plan::flops_per_token(config, 4).causal, whole - 2.0 * products + 6.0 * adapters);
}

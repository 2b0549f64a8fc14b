#include <doctest/doctest.h>

#include "launcher/plan/batch.h"
#include "launcher/plan/model_size.h"
#include "runtime/contract/model_presets.h"
#include "runtime/model/llama.h"
#include "runtime/shard/engine.h"

using namespace shardrun;

namespace {
contract::JobSpec spec_with(int64_t global_batch, int micro_batch) {
  contract::JobSpec spec;
  spec.batch.global_batch = global_batch;
  spec.batch.micro_batch = micro_batch;
  spec.origins["batch.global_batch"] = "job.toml:9:16";
  return spec;
}
}  // namespace

TEST_CASE("batch: for every number of ranks the product is exact, or it is refused") {
  for (int64_t ranks = 1; ranks <= 4096; ++ranks) {
    const auto plan = launcher::solve_batch(spec_with(16384, 2), ranks);
    const bool divides = 16384 % (2 * ranks) == 0;
    REQUIRE_EQ(plan.has_value(), divides);
    if (plan) CHECK_EQ(plan->micro_batch * plan->gradient_accumulation * plan->data_parallel, 16384);
  }
}

TEST_CASE("batch: a refusal names the nearest global batches and the nearest numbers of ranks") {
  const auto refused = launcher::solve_batch(spec_with(128, 4), 3);
  REQUIRE_FALSE(refused);
  CHECK_EQ(refused.error().to_string(),
           "job.toml:9:16: global_batch 128 is not micro_batch 4 × 3 ranks × a whole accumulation; "
           "global_batch = 120 or "
           "132 divides; 128 divides on 2 or 4 ranks");
  const auto too_many = launcher::solve_batch(spec_with(8, 4), 5);
  REQUIRE_FALSE(too_many);
  CHECK_NE(too_many.error().to_string().find(
               "global_batch = 20 is the smallest that divides; 8 divides on 2 ranks"),
           std::string::npos);
  const auto odd = launcher::solve_batch(spec_with(9, 4), 2);
  REQUIRE_FALSE(odd);
  CHECK_NE(odd.error().to_string().find("9 is no multiple of micro_batch 4 on any number of ranks"),
           std::string::npos);
}

TEST_CASE("batch: weak scaling lets the global batch grow with the ranks") {
  contract::JobSpec spec;
  spec.batch.gradient_accumulation = 3;
  spec.batch.micro_batch = 2;
  spec.batch.scaling = contract::Scaling::kWeak;
  CHECK_EQ(launcher::solve_batch(spec, 1)->global_batch, 6);
  CHECK_EQ(launcher::solve_batch(spec, 256)->global_batch, 1536);
}

namespace {

// A trainer's spec, and the batch of one micro-step or more on `ranks`.
contract::JobSpec trainer_spec(const char* preset, contract::Precision precision, int prefetch) {
  contract::JobSpec spec;
  spec.model = *contract::find_preset(preset);
  spec.precision.parameters = precision;
  spec.sharding.prefetch = prefetch;
  return spec;
}

contract::BatchPlan batch_of(int64_t ranks, int64_t accumulation) {
  return {.global_batch = ranks * accumulation,
          .micro_batch = 1,
          .gradient_accumulation = accumulation,
          .data_parallel = ranks};
}

// What the trainer will take from its arena: the engine's own plan, and two moments.
int64_t trainer_arena_bytes(const contract::JobSpec& spec, const contract::BatchPlan& batch) {
  const auto& m = spec.model;
  std::vector<int64_t> elements;
  for (const auto& block : model::block_layouts({m.layers, m.hidden, m.heads, m.kv_heads, m.ffn, m.vocab}))
    elements.push_back(block.elements);
  const auto layout = shard::make_layout(elements, static_cast<int>(batch.data_parallel));
  const bool half = spec.precision.parameters == contract::Precision::kBf16;
  const shard::EngineOptions options{half ? kernels::DType::kBf16 : kernels::DType::kFp32,
                                     spec.sharding.prefetch, batch.gradient_accumulation > 1};
  return shard::Engine::planned_bytes(layout, options) +
         2 * shard::Arena::bytes_of<float>(layout.flat_shard_elements);
}

}  // namespace

TEST_CASE("model size: Llama-2 has its published numbers of parameters, and shards add up to the whole") {
  const auto size = [](const char* preset, int64_t ranks) {
    return launcher::model_size(trainer_spec(preset, contract::Precision::kFp32, 1), batch_of(ranks, 1));
  };
  CHECK_EQ(size("llama-2-7b", 1).parameters, 6738415616);
  CHECK_EQ(size("llama-2-13b", 1).parameters, 13015864320);
  CHECK_EQ(size("llama-2-70b", 1).parameters, 68976648192);
  CHECK_EQ(size("llama-2-7b", 1).master_bytes, 4 * int64_t{6738415616});
  CHECK_EQ(size("llama-2-7b", 8).master_bytes, int64_t{6738415616} / 2);
  CHECK_EQ(size("llama-2-7b", 1).gathered_bytes, 0);
}

TEST_CASE(
    "model size: the planned arena is the trainer's own, for every precision, prefetch and accumulation") {
  for (const char* preset : {"llama-1m", "llama-2-7b", "llama-2-70b"}) {
    for (const auto precision : {contract::Precision::kFp32, contract::Precision::kBf16}) {
      for (const int prefetch : {0, 1}) {
        for (const int64_t ranks : {1, 3, 8, 512}) {
          for (const int64_t accumulation : {1, 4}) {
            CAPTURE(preset);
            CAPTURE(prefetch);
            CAPTURE(ranks);
            CAPTURE(accumulation);
            const auto spec = trainer_spec(preset, precision, prefetch);
            const auto batch = batch_of(ranks, accumulation);
            CHECK_EQ(launcher::model_size(spec, batch).arena_bytes(), trainer_arena_bytes(spec, batch));
          }
        }
      }
    }
  }
}

// Adapters beside frozen weights, trained over every kind of mesh, saved and gone on with.
#include <doctest/doctest.h>

#include <fstream>

#include "runtime/base/counter_random.h"
#include "runtime/trainer/weights/safetensors.h"
#include "tests/world/train/training.h"

using namespace shardrun;
using namespace training;

namespace {

// Writes the weights of options.model in bf16, all of them moved by `shift`; returns the file.
std::string write_weights(const Folder& folder, const train::SessionOptions& options, float shift = 0.0F) {
  std::vector<weights::TensorEntry> entries;
  std::vector<std::byte> data;
  for (const auto& block : block_layouts(options.model, 0, 1)) {
    for (const auto& tensor : block.parameters) {
      weights::TensorEntry entry;
      entry.name = tensor.name;
      entry.dtype = "BF16";
      entry.type = weights::TensorType::kBf16;
      entry.shape = tensor.shape;
      entries.push_back(entry);
      const uint64_t key = base::random_bits(3, base::hash_name(tensor.name));
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = shift + (tensor.shape.size() == 1 ? 1.0F : 0.0F) +
                    static_cast<float>(0.1 * base::random_normal(key, i));
      const size_t begin = data.size();
      data.resize(begin + 2 * values.size());
      weights::from_fp32(values, weights::TensorType::kBf16, std::span(data).subspan(begin));
    }
  }
  const std::string path = folder.path() + "/weights" + std::to_string(shift) + ".safetensors";
  std::ofstream file(path, std::ios::binary);
  file << weights::encode_header(entries);
  file.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
  return path;
}

train::SessionOptions adapted(const Folder& folder, int data_parallel, int64_t micro_batch = 1) {
  auto options = tiny_options(folder, data_parallel, micro_batch);
  using spec::LoraMatrix;
  config_of(options).lora = {.rank = 3,
                             .alpha = 9.0,
                             .matrices = {LoraMatrix::kQ, LoraMatrix::kV, LoraMatrix::kO, LoraMatrix::kDown}};
  options.initial_weights = write_weights(folder, options);
  return options;
}

}  // namespace

TEST_CASE("lora: one curve on every mesh, with every recomputation, and in bf16 close to it") {
  const Folder folder;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const auto run = [&](int ranks, int shard_degree, int64_t micro_batch, const auto& change) {
      auto options = adapted(folder, ranks, micro_batch);
      config_of(options).tied_embeddings = tied;
      options.initial_weights = write_weights(folder, options);
      change(options);
      auto runs = run_world(ranks, options, {.loop = {.steps = 8}, .shard_degree = shard_degree});
      require_success(runs);
      return runs[0].losses;
    };
    const auto as_is = [](train::SessionOptions&) {};
    const auto alone = run(1, 1, 1, as_is);
    CHECK(alone.front() - alone.back() > 0.01);
    CHECK(run(1, 1, 1, as_is) == alone);
    for (const auto level : {model::Checkpointing::kSelective, model::Checkpointing::kFull})
      CHECK(run(1, 1, 1, [&](train::SessionOptions& options) { options.checkpointing = level; }) == alone);
    for (const int64_t micro_batch : {1, 3}) {
      CAPTURE(micro_batch);
      const auto sharded = run(4, 4, micro_batch, as_is);
      CHECK(largest_difference(sharded, alone) < 1e-5);
      CHECK(run(4, 4, micro_batch, as_is) == sharded);
      CHECK(largest_difference(run(4, 2, micro_batch, as_is), alone) < 1e-5);
      CHECK(largest_difference(run(4, 1, micro_batch, as_is), alone) < 1e-5);
      const auto kept = [](train::SessionOptions& options) { options.keeps_parameters = true; };
      CHECK(largest_difference(run(4, 4, micro_batch, kept), alone) < 1e-5);
      CHECK(run(4, 4, micro_batch, [](train::SessionOptions& options) { options.wrap = 2; }) == sharded);
    }
    const auto narrow = [](train::SessionOptions& options) { options.compute = kernels::DType::kBf16; };
    const auto in_bf16 = run(2, 2, 3, narrow);
    CHECK(largest_difference(in_bf16, alone) < 2e-2);
    CHECK(largest_difference(run(1, 1, 3, narrow), in_bf16) < 2e-3);
  }
}

TEST_CASE(
    "lora: a run goes on from its checkpoint with the bits of one that was not stopped, also on other "
    "ranks") {
  const Folder folder;
  const auto options = adapted(folder, 2);
  const auto whole = run_world(2, options, {.loop = {.steps = 8}});
  require_success(whole);
  const std::string directory = folder.path() + "/checkpoints";
  const RunOptions saved{.loop = {.steps = 8}, .checkpoint_directory = directory, .stop_at_step = 4};
  require_success(run_world(2, options, saved));
  const std::vector<double> later(whole[0].losses.begin() + 4, whole[0].losses.end());

  const auto other =
      run_world(4, adapted(folder, 4),
                {.loop = {.steps = 8, .checkpoint_at_end = false}, .checkpoint_directory = directory});
  require_success(other);
  CHECK(*other[0].resumed_from == directory + "/step_00000004");
  CHECK(largest_difference(other[0].losses, later) < 1e-5);

  const auto same = run_world(2, options, {.loop = {.steps = 8}, .checkpoint_directory = directory});
  require_success(same);
  CHECK(same[0].losses == later);
}

TEST_CASE("lora: a checkpoint of another scale, or beside other weights, is refused") {
  const Folder folder;
  const auto options = adapted(folder, 2);
  const std::string directory = folder.path() + "/checkpoints";
  require_success(run_world(2, options, {.loop = {.steps = 2}, .checkpoint_directory = directory}));
  const auto refusal = [&](const train::SessionOptions& changed) {
    const auto ranks = run_world(2, changed, {.loop = {.steps = 3}, .checkpoint_directory = directory});
    CHECK(ranks[0].error_code == base::Code::kInvalid);
    return ranks[0].error;
  };
  auto scaled = options;
  config_of(scaled).lora.alpha = 6.0;
  CHECK(refusal(scaled).find("has adapters of another [lora], or none") != std::string::npos);
  auto moved = options;
  moved.initial_weights = write_weights(folder, options, 0.25F);
  CHECK(refusal(moved).find("has adapters of other weights than those in [model] init") != std::string::npos);
}

TEST_CASE("lora: a rank holds its part of the frozen weights once, and the rest for the adapters alone") {
  const Folder folder;
  const auto options = adapted(folder, 1);
  auto whole = options;
  config_of(whole).lora = {};
  const auto with = plan::rank_memory(options, {.shard = 4}, {}).memory,
             without = plan::rank_memory(whole, {.shard = 4}, {}).memory;
  CHECK(with.frozen >= without.masters);
  CHECK(with.frozen <= without.masters + 4096);
  CHECK(with.masters * 10 < without.masters);
  CHECK(with.gradients == with.masters);
  CHECK(with.moments < without.moments);
  CHECK(without.frozen == 0);
}

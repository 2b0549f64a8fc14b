#include "runtime/plan/model/network.h"

#include "runtime/plan/model/adapters.h"

namespace shardrun::plan {
namespace {

static_assert(std::variant_size_v<Network> == spec::kArchitectures.size());

// Takes the first architecture from number I on that has the trainer's name.
template <size_t I = 0>
Network read(const spec::JobSpec& spec) {
  if constexpr (I < std::variant_size_v<Network>) {
    using Config = std::variant_alternative_t<I, Network>;
    if (spec.program.trainer != Config::kTrainer) return read<I + 1>(spec);
    Config config = Config::of(spec.model);
    if constexpr (std::is_same_v<Config, LlamaConfig>) {
      config.lora = spec.lora;
      config.expert_parallel = spec.sharding.expert_parallel;
    }
    return config;
  } else {
    return {};  // a command's: parse_job_spec() refuses other names
  }
}

bool is_adapted(const Network& network) {
  const auto* llama = std::get_if<LlamaConfig>(&network);
  return llama != nullptr && llama->lora.wanted();
}

}  // namespace

Network network_of(const spec::JobSpec& spec) {
  return read(spec);
}

ModelShape shape_of(const Network& network) {
  return std::visit([](const auto& config) { return shape_of(config); }, network);
}

std::vector<BlockLayout> block_layouts(const Network& network, int tensor_rank, int tensor_parallel) {
  return std::visit([&](const auto& config) { return block_layouts(config, tensor_rank, tensor_parallel); },
                    network);
}

std::vector<BlockLayout> trained_blocks(const Network& network, int tensor_rank, int tensor_parallel) {
  return is_adapted(network) ? adapter_layouts(std::get<LlamaConfig>(network))
                             : block_layouts(network, tensor_rank, tensor_parallel);
}

std::vector<BlockLayout> frozen_blocks(const Network& network) {
  return is_adapted(network) ? block_layouts(network, 0, 1) : std::vector<BlockLayout>();
}

StageOfModel stage_of(const Network& network, const Stage& stage, int sequence_length, int64_t micro_steps) {
  if (stage.stages == 1) return {};
  const auto* llama = std::get_if<LlamaConfig>(&network);
  SHARDRUN_CHECK(llama != nullptr);
  return stage_of(*llama, stage, sequence_length, micro_steps);
}

std::vector<BlockLayout> blocks_of_stage(const Network& network, std::vector<BlockLayout> blocks,
                                         const StageOfModel& stage) {
  if (stage.is_whole()) return blocks;
  const ModelShape shape = shape_of(network);
  for (int block = 0; block < static_cast<int>(blocks.size()); ++block) {
    const int layer = block - 1;
    const bool here = block == 0              ? stage.has_embedding || (shape.tied && stage.has_head)
                      : layer == shape.layers ? stage.has_head
                                              : stage.has(layer);
    blocks[block].elsewhere = !here;
  }
  return blocks;
}

std::vector<int> stages_of_blocks(const Network& network, Stage stage, int sequence_length) {
  const std::vector<BlockLayout> all = trained_blocks(network, 0, 1);
  std::vector<int> owners(all.size(), 0);
  for (stage.number = stage.stages - 1; stage.number > 0; --stage.number) {
    const auto blocks =
        blocks_of_stage(network, all, stage_of(network, stage, sequence_length, /*micro_steps=*/1));
    for (size_t block = 1; block < blocks.size(); ++block)
      if (!blocks[block].elsewhere) owners[block] = stage.number;
  }
  return owners;
}

FlopsPerToken flops_per_token(const Network& network, int sequence_length) {
  return std::visit([&](const auto& config) { return flops_per_token(config, sequence_length); }, network);
}

int64_t most_targets(const Network& network, int sequence_length) {
  return std::visit([&](const auto& config) { return most_targets(config, sequence_length); }, network);
}

ActivationBytes activation_bytes(const Network& network, const ModelRun& run, int tensor_parallel) {
  return std::visit([&](const auto& config) { return activation_bytes(config, run, tensor_parallel); },
                    network);
}

OpList ops(const Network& network, const ModelRun& run, int tensor_parallel) {
  return std::visit([&](const auto& config) { return ops(config, run, tensor_parallel); }, network);
}

std::string hf_config(const Network& network) {
  return std::visit([](const auto& config) { return hf_config(config); }, network);
}

}  // namespace shardrun::plan

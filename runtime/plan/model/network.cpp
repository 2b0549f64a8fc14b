#include "runtime/plan/model/network.h"

namespace shardrun::plan {
namespace {

static_assert(std::variant_size_v<Network> == spec::kArchitectures.size());

// Takes the first architecture from number I on that has the trainer's name.
template <size_t I = 0>
Network read(const spec::JobSpec& spec) {
  if constexpr (I < std::variant_size_v<Network>) {
    using Config = std::variant_alternative_t<I, Network>;
    return spec.program.trainer == Config::kTrainer ? Config::of(spec.model) : read<I + 1>(spec);
  } else {
    return {};  // a command's: parse_job_spec() refuses other names
  }
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

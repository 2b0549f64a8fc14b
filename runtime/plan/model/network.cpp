#include "runtime/plan/model/network.h"

#include <string_view>

namespace shardrun::plan {
namespace {

template <typename Config>
Network read(const spec::ModelSpec& model) {
  return Config::of(model);
}

// By the names that [program] trainer has for them.
constexpr struct {
  std::string_view trainer;
  Network (*network_of)(const spec::ModelSpec& model);
} kArchitectures[] = {{"llama", read<LlamaConfig>}, {"bert", read<BertConfig>}};

}  // namespace

Network network_of(const spec::JobSpec& spec) {
  for (const auto& one : kArchitectures) {
    if (one.trainer == spec.program.trainer) return one.network_of(spec.model);
  }
  return {};  // a command's: parse_job_spec() refuses other names
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

}  // namespace shardrun::plan

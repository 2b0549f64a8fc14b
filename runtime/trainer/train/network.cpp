#include "runtime/trainer/train/network.h"

#include <utility>

#include <fmt/format.h>

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;

// Which model computes a configuration.
template <typename Config>
struct ModelOf;
template <>
struct ModelOf<plan::LlamaConfig> {
  using Type = model::Llama;
};
template <>
struct ModelOf<plan::BertConfig> {
  using Type = model::Bert;
};

}  // namespace

Result<std::unique_ptr<model::Model>> create_model(const Network& network,
                                                   const model::ModelOptions& options) {
  const spec::Architecture& architecture = *shape_of(network).architecture;
  if (options.tensor != nullptr && !architecture.sliceable) {
    return Error(
        Code::kInvalid,
        fmt::format("{} has no tensor parallelism; remove [sharding] tensor_parallel", architecture.called));
  }
  return std::visit(
      [&]<typename Config>(const Config& config) -> Result<std::unique_ptr<model::Model>> {
        ASSIGN_OR_RETURN(auto made, ModelOf<Config>::Type::create(config, options));
        return std::unique_ptr<model::Model>(std::move(made));
      },
      network);
}

}  // namespace shardrun::train

#include "runtime/trainer/train/network.h"

#include <utility>

#include "runtime/trainer/weights/hf_config.h"

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;
using model::BertConfig;
using model::LlamaConfig;

Result<std::unique_ptr<model::Model>> create(const LlamaConfig& config, const model::ModelOptions& options) {
  ASSIGN_OR_RETURN(auto llama, model::Llama::create(config, options));
  return std::unique_ptr<model::Model>(std::move(llama));
}

Result<std::unique_ptr<model::Model>> create(const BertConfig& config, const model::ModelOptions& options) {
  if (options.tensor != nullptr)
    return Error(Code::kInvalid, "a BERT has no tensor parallelism; remove [sharding] tensor_parallel");
  ASSIGN_OR_RETURN(auto bert, model::Bert::create(config, options));
  return std::unique_ptr<model::Model>(std::move(bert));
}

}  // namespace

Result<std::unique_ptr<model::Model>> create_model(const Network& network,
                                                   const model::ModelOptions& options) {
  return std::visit([&](const auto& config) { return create(config, options); }, network);
}

std::string configuration(const Network& network) {
  return std::visit([](const auto& config) { return weights::hf_config(config); }, network);
}

}  // namespace shardrun::train

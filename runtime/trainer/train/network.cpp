#include "runtime/trainer/train/network.h"

#include <utility>

#include "runtime/trainer/data/bert_loader.h"
#include "runtime/trainer/weights/hf_config.h"

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;
using model::BertConfig;
using model::LlamaConfig;

Result<std::unique_ptr<model::Model>> create(const LlamaConfig& config, const model::ModelOptions& options) {
  auto llama = model::Llama::create(config, options);
  if (!llama) return std::move(llama).error();
  return std::unique_ptr<model::Model>(std::move(llama).value());
}

Result<std::unique_ptr<model::Model>> create(const BertConfig& config, const model::ModelOptions& options) {
  if (options.tensor != nullptr)
    return Error(Code::kInvalid, "a BERT has no tensor parallelism; remove [sharding] tensor_parallel");
  auto bert = model::Bert::create(config, options);
  if (!bert) return std::move(bert).error();
  return std::unique_ptr<model::Model>(std::move(bert).value());
}

}  // namespace

Result<std::unique_ptr<model::Model>> create_model(const Network& network,
                                                   const model::ModelOptions& options) {
  return std::visit([&](const auto& config) { return create(config, options); }, network);
}

bool revisits_blocks(const Network& network) {
  const auto* llama = std::get_if<LlamaConfig>(&network);
  return llama == nullptr || llama->tied_embeddings;
}

model::ActivationBytes activation_bytes(const Network& network, const model::ModelOptions& options,
                                        int tensor_parallel) {
  if (const auto* llama = std::get_if<LlamaConfig>(&network))
    return model::Llama::activation_bytes(*llama, options, tensor_parallel);
  return model::Bert::activation_bytes(std::get<BertConfig>(network), options);
}

kernels::OpList ops(const Network& network, const model::ModelOptions& options, int tensor_parallel) {
  if (const auto* llama = std::get_if<LlamaConfig>(&network))
    return model::Llama::ops(*llama, options, tensor_parallel);
  return model::Bert::ops(std::get<BertConfig>(network), options);
}

int64_t most_targets(const Network& network, int sequence_length) {
  return std::holds_alternative<BertConfig>(network) ? data::BertLoader::most_targets(sequence_length)
                                                     : sequence_length;
}

std::vector<model::BlockLayout> block_layouts(const Network& network, int tensor_rank, int tensor_parallel) {
  if (const auto* llama = std::get_if<LlamaConfig>(&network))
    return model::block_layouts(*llama, tensor_rank, tensor_parallel);
  return model::block_layouts(std::get<BertConfig>(network));
}

int vocabulary(const Network& network) {
  return std::visit([](const auto& config) { return config.vocab; }, network);
}

int hidden(const Network& network) {
  return std::visit([](const auto& config) { return config.hidden; }, network);
}

std::string configuration(const Network& network) {
  return std::visit([](const auto& config) { return weights::hf_config(config); }, network);
}

plan::FlopsPerToken flops_per_token(const Network& network, int sequence_length) {
  if (const auto* llama = std::get_if<model::LlamaConfig>(&network)) {
    return {model::flops_per_token(*llama, sequence_length),
            model::flops_per_token(*llama, sequence_length, model::AttentionCredit::kFull)};
  }
  const double all = model::flops_per_token(std::get<model::BertConfig>(network), sequence_length);
  return {all, all};
}

}  // namespace shardrun::train

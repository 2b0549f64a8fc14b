#include "runtime/tools/adapted_weights.h"

#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/plan/model/adapters.h"
#include "runtime/spec/pretrained_config.h"

namespace shardrun::tools {
namespace {

using base::Code;
using base::Error;

// w (outputs,inputs) += scale · b (outputs,rank) · a (rank,inputs)
void merge(float* w, const float* a, const float* b, int64_t outputs, int64_t inputs, int64_t rank,
           double scale) {
#pragma omp parallel for schedule(static)
  for (int64_t o = 0; o < outputs; ++o) {
    std::vector<float> row(static_cast<size_t>(inputs), 0.0F);
    for (int64_t r = 0; r < rank; ++r) {
      const float factor = b[o * rank + r];
      for (int64_t i = 0; i < inputs; ++i) row[i] += factor * a[r * inputs + i];
    }
    for (int64_t i = 0; i < inputs; ++i) w[o * inputs + i] += static_cast<float>(scale) * row[i];
  }
}

}  // namespace

Result<plan::LlamaConfig> llama_of(std::string_view json, const std::string& name) {
  ASSIGN_OR_RETURN(const auto read, spec::read_pretrained_config(json, name, plan::LlamaConfig::kTrainer));
  ASSIGN_OR_RETURN(const auto model, spec::model_of(read, name, plan::LlamaConfig::kTrainer));
  return plan::LlamaConfig::of(model);
}

Result<AdaptedWeights> AdaptedWeights::open(const checkpoint::Store& store,
                                            const checkpoint::Manifest& manifest,
                                            const std::string& weights) {
  const std::string path = store.path_of(manifest.step);
  SHARDRUN_CHECK(manifest.adapters.has_value());
  if (weights.empty()) {
    return Error(
        Code::kInvalid,
        fmt::format("{} holds adapters, and nobody says beside which weights; write --base PATH", path));
  }
  ASSIGN_OR_RETURN(auto config, llama_of(manifest.model, path + "/manifest.json"));
  config.lora = manifest.adapters->lora;
  auto files = weights::WeightFiles::open(weights);
  if (!files) return std::move(files).error().context("the weights that adapters stand beside");
  AdaptedWeights adapted(store, manifest, std::move(config), std::move(*files), weights);
  RETURN_IF_ERROR(adapted.files_.check(adapted.layouts_));
  RETURN_IF_ERROR(checkpoint::same_tensors(manifest, plan::adapter_layouts(adapted.config_)));
  return adapted;
}

AdaptedWeights::AdaptedWeights(const checkpoint::Store& store, checkpoint::Manifest manifest,
                               plan::LlamaConfig config, weights::WeightFiles files, std::string path)
    : store_(&store),
      manifest_(std::move(manifest)),
      config_(std::move(config)),
      layouts_(plan::block_layouts(config_)),
      files_(std::move(files)),
      path_(std::move(path)) {}

Result<void> AdaptedWeights::read_block(int block, std::span<float> values) {
  const plan::BlockLayout& layout = layouts_[block];
  SHARDRUN_CHECK(static_cast<int64_t>(values.size()) == layout.elements);
  RETURN_IF_ERROR(files_.read_block(
      layout, values, [&](std::span<const std::byte> bytes) { checksum_ = base::crc32c(bytes, checksum_); }));
  if (block + 1 == static_cast<int>(layouts_.size()) && checksum_ != manifest_.adapters->weights) {
    return Error(Code::kInvalid,
                 fmt::format("{} are not the weights that the adapters of {} were trained beside; name those",
                             path_, store_->path_of(manifest_.step)));
  }
  std::vector<float> adapters(manifest_.blocks[block].full_elements());
  if (adapters.empty()) return {};
  RETURN_IF_ERROR(store_->read_block(manifest_, block, adapters));
  for (const plan::Adapter& adapter : plan::adapters_of(config_)) {
    const std::string name = fmt::format(".{}.weight", spec::name_of(adapter.matrix));
    for (const plan::ParameterInfo& parameter : layout.parameters) {
      if (!parameter.name.ends_with(name)) continue;
      merge(values.data() + parameter.offset, adapters.data() + adapter.a, adapters.data() + adapter.b,
            adapter.outputs, adapter.inputs, config_.lora.rank, config_.lora.scale());
    }
  }
  return {};
}

}  // namespace shardrun::tools

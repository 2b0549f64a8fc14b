#include "runtime/trainer/generate/weights.h"

#include <algorithm>
#include <utility>

#include "runtime/trainer/kernels/ops.h"

namespace shardrun::generate {
namespace {

using base::Code;
using base::DType;
using base::Error;

// Keeps the fp32 values as the block's.
void keep(std::vector<float> values, DType dtype, BlockWeights& block) {
  if (dtype == DType::kFp32) {
    block.wide = std::move(values);
  } else {
    block.narrow.resize(values.size());
    kernels::fp32_to_bf16(values, std::span(block.narrow));
  }
}

}  // namespace

DType dtype_of(const weights::WeightFiles& files, std::span<const plan::BlockLayout> layouts) {
  for (const plan::BlockLayout& block : layouts) {
    for (const plan::ParameterInfo& parameter : block.parameters) {
      const weights::TensorEntry* entry = files.find(parameter.name);
      const bool matrix = parameter.shape.size() > 1;
      if (entry != nullptr && matrix && entry->type != weights::TensorType::kBf16) return DType::kFp32;
    }
  }
  return DType::kBf16;
}

Result<ModelWeights> read_weights(const weights::WeightFiles& files, std::vector<plan::BlockLayout> layouts,
                                  DType dtype) {
  RETURN_IF_ERROR(files.check(layouts));
  const auto read = [&](int block, std::span<float> values) {
    return files.read_block(layouts[block], values);
  };
  return read_weights(read, layouts, dtype);
}

Result<ModelWeights> read_weights(const checkpoint::Store& store, const checkpoint::Manifest& manifest,
                                  std::vector<plan::BlockLayout> layouts, DType dtype) {
  RETURN_IF_ERROR(checkpoint::same_tensors(manifest, layouts));
  return read_weights(
      [&](int block, std::span<float> values) { return store.read_block(manifest, block, values); },
      std::move(layouts), dtype);
}

Result<ModelWeights> read_weights(const ReadBlock& read, std::vector<plan::BlockLayout> layouts,
                                  DType dtype) {
  ModelWeights model{dtype, std::move(layouts), {}};
  for (int block = 0; block < static_cast<int>(model.layouts.size()); ++block) {
    std::vector<float> values(model.layouts[block].elements);
    RETURN_IF_ERROR(read(block, values));
    keep(std::move(values), dtype, model.blocks.emplace_back());
  }
  return model;
}

}  // namespace shardrun::generate

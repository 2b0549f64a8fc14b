// ModelWeights: a whole model's parameters in the memory of one process, as its decoder reads them.
//
// Thread rule: plain values, free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/compute.h"
#include "runtime/base/result.h"
#include "runtime/plan/model/block_layout.h"
#include "runtime/trainer/checkpoint/manifest.h"
#include "runtime/trainer/checkpoint/store.h"
#include "runtime/trainer/kernels/types.h"
#include "runtime/trainer/weights/weight_files.h"

namespace shardrun::generate {

using base::Result;

// The parameters of one block, one behind the other as its layout says, in one of the two types.
struct BlockWeights {
  std::vector<float> wide;
  std::vector<kernels::Bf16> narrow;
};

struct ModelWeights {
  base::DType dtype = base::DType::kFp32;
  std::vector<plan::BlockLayout> layouts;
  std::vector<BlockWeights> blocks;
};

// The type in which the files hold most of a model: bf16 where their matrices are BF16, else fp32.
base::DType dtype_of(const weights::WeightFiles& files, std::span<const plan::BlockLayout> layouts);

// Read all parameters; values are rounded to nearest where they need it. Errors: those of WeightFiles::check and read; those of
// Store::read_block; those of `read`.
Result<ModelWeights> read_weights(const weights::WeightFiles& files, std::vector<plan::BlockLayout> layouts,
                                  base::DType dtype);
// Reads one block after another, each as long as its layout says.
using ReadBlock = std::function<Result<void>(int block, std::span<float> values)>;
Result<ModelWeights> read_weights(const ReadBlock& read, std::vector<plan::BlockLayout> layouts,
                                  base::DType dtype);
Result<ModelWeights> read_weights(const checkpoint::Store& store, const checkpoint::Manifest& manifest,
                                  std::vector<plan::BlockLayout> layouts, base::DType dtype);

}  // namespace shardrun::generate

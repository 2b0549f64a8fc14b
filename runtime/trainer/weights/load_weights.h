// Loads initial weights from safetensors files into the shards of all ranks.
//
// Only rank 0 of the world touches the files. It reads a piece of at most kChunkElements, in the file's own type,
// and broadcasts it; every rank converts the part that it owns to fp32. So beside its shard a rank holds three
// pieces, however large the model is, and the next piece is read while the previous one travels.
//
// Thread rule: as for the communicator. Determinism: the same bits for every world size, shard degree and tensor
// parallelism.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/compute.h"
#include "runtime/base/result.h"
#include "runtime/plan/shard_layout.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/model/model.h"

namespace shardrun::weights {

using base::Result;

inline constexpr int64_t kChunkElements = int64_t{1} << 19;

// Collective over `world`. `path` is a file or a folder, as WeightFiles::open takes it; `blocks` are those of this rank's
// tensor slice, with the same full tensors on all ranks; `layout` is theirs; `group_rank` is this rank's in the shard group;
// `master` has layout.flat_shard_elements, of which the padding is left alone. Errors, the same on every rank: those of
// WeightFiles, found before anything is written to `master`; kIo while reading, after which `master` is worthless; the
// communicator's.
Result<void> load_weights(const std::string& path, std::span<const model::BlockLayout> blocks,
                          const plan::ShardLayout& layout, int group_rank, comm::Communicator& world,
                          std::span<float> master);

// Does the same with weights that stay as they are and lie in the shards as they are computed with: `frozen` has
// layout.flat_shard_elements of `dtype`, to which values are rounded. No tensor is cut. Returns the CRC-32C of all tensors'
// bytes as the files have them, in the order of `blocks`: the same on every rank.
Result<uint32_t> load_frozen(const std::string& path, std::span<const model::BlockLayout> blocks,
                             const plan::ShardLayout& layout, int group_rank, comm::Communicator& world,
                             base::DType dtype, std::span<std::byte> frozen);

}  // namespace shardrun::weights

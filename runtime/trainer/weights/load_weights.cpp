#include "runtime/trainer/weights/load_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/trainer/shard/tensor_slice.h"
#include "runtime/trainer/weights/weight_files.h"

namespace shardrun::weights {
namespace {

using base::Code;
using base::Error;
using plan::ElementRange;

// How a failure of rank 0 travels to the others.
struct Verdict {
  int32_t failed = 0;
  int32_t code = 0;
  std::array<char, 1016> message{};

  static Verdict of(const Result<void>& result) {
    Verdict verdict;
    if (result) return verdict;
    verdict.failed = 1;
    verdict.code = static_cast<int32_t>(result.error().code());
    const std::string text = result.error().to_string();
    std::copy_n(text.begin(), std::min(text.size(), verdict.message.size() - 1), verdict.message.begin());
    return verdict;
  }
  Result<void> result() const {
    if (failed == 0) return {};
    return Error(static_cast<Code>(code), message.data());
  }
};

// A piece of one tensor, in the order in which all ranks see them.
struct Chunk {
  int block = 0;
  size_t parameter = 0;
  TensorType type = TensorType::kOther;
  int64_t first = 0, elements = 0;  // place in the full tensor

  size_t bytes() const { return static_cast<size_t>(elements * bytes_per_element(type)); }
};

shard::TensorSlice slice_of(const model::ParameterInfo& parameter) {
  const int dimension = parameter.split_dimension;
  const int64_t count = dimension < 0 ? 0 : parameter.shape[dimension];
  return shard::make_slice(parameter.whole_shape(), dimension, parameter.split_begin, count);
}

constexpr size_t kBf16 = 2;  // bytes

// Where weights go: masters in fp32, or frozen weights as bf16's bytes.
struct Shard {
  std::span<float> fp32;
  std::span<std::byte> bf16;
};

class Loader {
 public:
  Loader(std::span<const model::BlockLayout> blocks, const plan::ShardLayout& layout, int group_rank,
         comm::Communicator& world, const Shard& shard, bool sums_up = false)
      : blocks_(blocks),
        layout_(layout),
        group_rank_(group_rank),
        world_(world),
        shard_(shard),
        sums_up_(sums_up) {}
  uint32_t checksum() const { return checksum_; }

  Result<void> run(const std::string& path) {
    RETURN_IF_ERROR(agree(world_.rank() == 0 ? open(path) : Result<void>()));
    RETURN_IF_ERROR(list_chunks());
    // Two pieces are under way: while one travels, the next is read.
    std::optional<comm::Pending> travelling;
    for (size_t i = 0; i <= chunks_.size(); ++i) {
      std::optional<comm::Pending> posted;
      if (i < chunks_.size()) {
        fill(i);
        ASSIGN_OR_RETURN(auto pending, world_.broadcast(buffer(i), /*root=*/0));
        posted = pending;
      }
      if (travelling) {
        RETURN_IF_ERROR(world_.wait(*travelling));
        if (auto used = use(i - 1); !used) {
          if (posted) RETURN_IF_ERROR(world_.wait(*posted));
          return used;
        }
      }
      travelling = posted;
    }
    return {};
  }

 private:
  Result<void> open(const std::string& path) {
    ASSIGN_OR_RETURN(auto opened, WeightFiles::open(path));
    files_.emplace(std::move(opened));
    return files_->check(blocks_);
  }

  // Makes rank 0's result everyone's.
  Result<void> agree(const Result<void>& result) {
    Verdict verdict = Verdict::of(result);
    RETURN_IF_ERROR(comm::broadcast(world_, std::as_writable_bytes(std::span(&verdict, 1))));
    return verdict.result();
  }

  Result<void> list_chunks() {
    std::vector<TensorType> types;
    for (const model::BlockLayout& block : blocks_) {
      for (const model::ParameterInfo& parameter : block.parameters) {
        types.push_back(files_ ? files_->find(parameter.name)->type : TensorType::kOther);
      }
    }
    RETURN_IF_ERROR(comm::broadcast(world_, std::as_writable_bytes(std::span(types))));
    auto type = types.begin();
    for (int block = 0; block < layout_.block_count(); ++block) {
      const auto& parameters = blocks_[block].parameters;
      for (size_t p = 0; p < parameters.size(); ++p, ++type) {
        const int64_t elements = shard::whole_slice(parameters[p].whole_shape()).elements();
        for (int64_t first = 0; first < elements; first += kChunkElements) {
          chunks_.push_back({block, p, *type, first, std::min(kChunkElements, elements - first)});
        }
      }
    }
    return {};
  }

  // Returns the piece with one more byte behind it, which says whether rank 0 could read it.
  std::span<std::byte> buffer(size_t index) {
    auto& memory = buffers_[index % buffers_.size()];
    const size_t bytes = chunks_[index].bytes() + 1;
    if (memory.size() < bytes) memory.resize(bytes);
    return std::span(memory).first(bytes);
  }

  void fill(size_t index) {
    if (!files_) return;
    const Chunk& chunk = chunks_[index];
    const auto memory = buffer(index);
    const auto& name = blocks_[chunk.block].parameters[chunk.parameter].name;
    auto done = files_->read(*files_->find(name), chunk.first, memory.first(chunk.bytes()));
    memory.back() = std::byte{!done};
    if (!done && !failure_) failure_ = std::move(done).error();
  }

  Result<void> use(size_t index) {
    const Chunk& chunk = chunks_[index];
    const auto memory = buffer(index);
    if (memory.back() != std::byte{0}) return agree(failure_ ? Result<void>(*failure_) : Result<void>());
    const model::ParameterInfo& parameter = blocks_[chunk.block].parameters[chunk.parameter];
    const ElementRange owned = layout_.owned(chunk.block, group_rank_);
    const auto slice = slice_of(parameter), whole = shard::whole_slice(parameter.whole_shape());
    const ElementRange mine{std::max<int64_t>(0, owned.begin - parameter.offset),
                            std::min(slice.elements(), owned.end - parameter.offset)};
    if (sums_up_) checksum_ = base::crc32c(memory.first(chunk.bytes()), checksum_);
    const ElementRange held{chunk.first, chunk.first + chunk.elements};
    if (shard::intersection(shard::rows_of(slice, mine), shard::rows_of(whole, held)).rows == 0) return {};
    converted_.resize(chunk.elements);
    to_fp32(memory.first(chunk.bytes()), chunk.type, converted_);
    const auto at = layout_.block(chunk.block).shard_offset + mine.begin + parameter.offset - owned.begin;
    if (!shard_.bf16.empty()) {
      const ElementRange both{std::max(mine.begin, held.begin), std::min(mine.end, held.end)};
      if (both.count() <= 0) return {};  // a row in common, and no element
      const auto values = std::span<const float>(converted_).subspan(both.begin - held.begin, both.count());
      const auto first = static_cast<size_t>(at + both.begin - mine.begin);
      from_fp32(values, TensorType::kBf16, shard_.bf16.subspan(kBf16 * first, kBf16 * values.size()));
      return {};
    }
    const auto target = shard_.fp32.subspan(at, mine.count());
    shard::copy_overlap({whole, held, converted_}, {slice, mine, target}, whole);
    return {};
  }

  std::span<const model::BlockLayout> blocks_;
  const plan::ShardLayout& layout_;
  int group_rank_;
  comm::Communicator& world_;
  Shard shard_;
  bool sums_up_;
  uint32_t checksum_ = 0;
  std::optional<WeightFiles> files_;  // on rank 0
  std::optional<Error> failure_;      // likewise
  std::vector<Chunk> chunks_;
  std::array<std::vector<std::byte>, 2> buffers_;
  std::vector<float> converted_;
};

}  // namespace

Result<void> load_weights(const std::string& path, std::span<const model::BlockLayout> blocks,
                          const plan::ShardLayout& layout, int group_rank, comm::Communicator& world,
                          std::span<float> master) {
  SHARDRUN_CHECK(blocks.size() == layout.blocks.size());
  return Loader(blocks, layout, group_rank, world, {master, {}}).run(path);
}

Result<uint32_t> load_frozen(const std::string& path, std::span<const model::BlockLayout> blocks,
                             const plan::ShardLayout& layout, int group_rank, comm::Communicator& world,
                             base::DType dtype, std::span<std::byte> frozen) {
  SHARDRUN_CHECK(blocks.size() == layout.blocks.size());
  const auto count = static_cast<size_t>(layout.flat_shard_elements);
  Shard shard;
  if (dtype == base::DType::kFp32) {
    shard.fp32 = {reinterpret_cast<float*>(frozen.data()), count};
  } else {
    for (const model::BlockLayout& block : blocks)
      for (const model::ParameterInfo& parameter : block.parameters)
        SHARDRUN_CHECK(parameter.split_dimension < 0);
    shard.bf16 = frozen.first(kBf16 * count);
  }
  Loader loader(blocks, layout, group_rank, world, shard, /*sums_up=*/true);
  RETURN_IF_ERROR(loader.run(path));
  return loader.checksum();
}

}  // namespace shardrun::weights

#include "runtime/shard/engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace shardrun::shard {
namespace {

// How many buffers of each kind the options ask for.
struct BufferCounts {
  int parameter = 0, gradient = 0;
};

BufferCounts buffer_counts(const ShardLayout& layout, const EngineOptions& options) {
  if (layout.group_size > 1) return {options.prefetch + 1, 2};
  return {0, options.accumulates ? 1 : 0};
}

}  // namespace

int64_t Engine::planned_bytes(const ShardLayout& layout, const EngineOptions& options) {
  const BufferCounts counts = buffer_counts(layout, options);
  int64_t bytes = 2 * Arena::bytes_of<float>(layout.flat_shard_elements);
  if (options.compute == kernels::DType::kBf16)
    bytes += Arena::bytes_of<uint16_t>(layout.flat_shard_elements);
  bytes += counts.parameter *
           Arena::bytes_of<std::byte>(layout.largest_padded_elements * kernels::size_of(options.compute));
  bytes += counts.gradient * Arena::bytes_of<float>(layout.largest_padded_elements);
  const bool has_scratch = layout.group_size > 1 && options.accumulates;
  if (has_scratch) bytes += counts.gradient * Arena::bytes_of<float>(layout.largest_shard_elements);
  return bytes;
}

Engine::Engine(ShardLayout layout, const EngineOptions& options, comm::Communicator& gather,
               comm::Communicator& reduce, Arena& arena)
    : layout_(std::move(layout)), options_(options), gather_(gather), reduce_(reduce) {
  SHARDRUN_CHECK(gather.size() == layout_.group_size && reduce.size() == layout_.group_size);
  SHARDRUN_CHECK(options.prefetch == 0 || options.prefetch == 1);
  const BufferCounts counts = buffer_counts(layout_, options);
  master_ = arena.take<float>(layout_.flat_shard_elements);
  gradient_ = arena.take<float>(layout_.flat_shard_elements);
  if (options.compute == kernels::DType::kBf16) half_ = arena.take<uint16_t>(layout_.flat_shard_elements);
  for (int i = 0; i < counts.parameter; ++i) {
    parameter_slots_[static_cast<size_t>(i)].memory =
        arena.take<std::byte>(layout_.largest_padded_elements * kernels::size_of(options.compute));
  }
  for (int i = 0; i < counts.gradient; ++i) {
    GradientSlot& slot = gradient_slots_[static_cast<size_t>(i)];
    slot.full = arena.take<float>(layout_.largest_padded_elements);
    if (!alone() && options.accumulates) slot.scratch = arena.take<float>(layout_.largest_shard_elements);
  }
}

void Engine::publish() {
  SHARDRUN_CHECK(acquired_block_ < 0);
  if (!half_.empty()) kernels::fp32_to_bf16(master_, half_);
  ++version_;
}

std::span<const std::byte> Engine::compute_shard(int block) const {
  const BlockShards& shards = layout_.block(block);
  const auto offset = static_cast<size_t>(shards.shard_offset);
  const auto count = static_cast<size_t>(shards.shard_elements);
  if (half_.empty()) return std::as_bytes(std::span<const float>(master_).subspan(offset, count));
  return std::as_bytes(std::span<const uint16_t>(half_).subspan(offset, count));
}

std::span<float> Engine::gradient_shard(int block) {
  const BlockShards& shards = layout_.block(block);
  return gradient_.subspan(static_cast<size_t>(shards.shard_offset),
                           static_cast<size_t>(shards.shard_elements));
}

Engine::ParameterSlot* Engine::find_slot(int block) {
  for (ParameterSlot& slot : parameter_slots_) {
    if (slot.block == block && slot.version == version_) return &slot;
  }
  return nullptr;
}

// Gathers into a buffer that does not hold the acquired block. No buffer free (prefetch 0): nothing starts.
Result<void> Engine::start_gather(int block) {
  for (ParameterSlot& slot : parameter_slots_) {
    const bool in_use = acquired_block_ >= 0 && slot.block == acquired_block_ && slot.version == version_;
    if (slot.memory.empty() || in_use) continue;
    if (slot.pending) RETURN_IF_ERROR(gather_.wait(*std::exchange(slot.pending, std::nullopt)));
    const auto mine = compute_shard(block);
    auto pending =
        gather_.all_gather(mine, slot.memory.first(mine.size() * static_cast<size_t>(layout_.group_size)));
    if (!pending) return std::move(pending).error();
    slot.pending = *pending;
    slot.block = block;
    slot.version = version_;
    return {};
  }
  return {};
}

Result<std::span<const std::byte>> Engine::acquire(int block, int next_block) {
  SHARDRUN_CHECK(acquired_block_ < 0 && version_ > 0);
  const auto bytes = static_cast<size_t>(layout_.block(block).elements * kernels::size_of(options_.compute));
  if (alone()) {
    acquired_block_ = block;
    return compute_shard(block).first(bytes);
  }
  if (find_slot(block) == nullptr) RETURN_IF_ERROR(start_gather(block));
  acquired_block_ = block;
  if (next_block >= 0 && find_slot(next_block) == nullptr) RETURN_IF_ERROR(start_gather(next_block));
  ParameterSlot& slot = *find_slot(block);
  if (slot.pending) {
    if (auto done = gather_.wait(*std::exchange(slot.pending, std::nullopt)); !done) {
      return std::move(done).error().context(fmt::format("gathering the parameters of block {}", block));
    }
  }
  return std::span<const std::byte>(slot.memory).first(bytes);
}

void Engine::release(int block) {
  SHARDRUN_CHECK(acquired_block_ == block);
  acquired_block_ = -1;
}

void Engine::begin_micro_step(bool first) {
  SHARDRUN_CHECK(first || options_.accumulates);
  adds_ = !first;
}

Result<std::span<float>> Engine::gradient_buffer(int block) {
  const auto elements = static_cast<size_t>(layout_.block(block).elements);
  if (alone() && !adds_) return gradient_shard(block).first(elements);
  GradientSlot& slot = gradient_slots_[static_cast<size_t>(next_gradient_slot_)];
  if (auto done = complete(slot); !done) return std::move(done).error();
  slot.block = block;
  return slot.full.first(elements);
}

Result<void> Engine::reduce(int block) {
  if (alone() && !adds_) return {};
  GradientSlot& slot = gradient_slots_[static_cast<size_t>(next_gradient_slot_)];
  SHARDRUN_CHECK(slot.block == block);
  const BlockShards& shards = layout_.block(block);
  slot.adds = adds_;
  if (alone()) return complete(slot);
  const auto full = slot.full.first(static_cast<size_t>(shards.padded_elements));
  std::fill(full.begin() + shards.elements, full.end(), 0.0F);
  const auto mine =
      adds_ ? slot.scratch.first(static_cast<size_t>(shards.shard_elements)) : gradient_shard(block);
  auto pending = reduce_.reduce_scatter(full, mine);
  if (!pending) return std::move(pending).error();
  slot.pending = *pending;
  next_gradient_slot_ = 1 - next_gradient_slot_;
  return {};
}

Result<void> Engine::complete(GradientSlot& slot) {
  if (slot.block < 0) return {};
  const int block = std::exchange(slot.block, -1);
  if (slot.pending) {
    if (auto done = reduce_.wait(*std::exchange(slot.pending, std::nullopt)); !done) {
      return std::move(done).error().context(fmt::format("reducing the gradients of block {}", block));
    }
  }
  if (!slot.adds) return {};
  const std::span<float> total = gradient_shard(block);
  const std::span<const float> part = alone() ? slot.full : slot.scratch;
  const auto count =
      static_cast<size_t>(alone() ? layout_.block(block).elements : layout_.block(block).shard_elements);
  for (size_t i = 0; i < count; ++i) total[i] += part[i];
  return {};
}

Result<void> Engine::finish_reductions() {
  RETURN_IF_ERROR(complete(gradient_slots_[static_cast<size_t>(next_gradient_slot_)]));
  return complete(gradient_slots_[static_cast<size_t>(1 - next_gradient_slot_)]);
}

}  // namespace shardrun::shard

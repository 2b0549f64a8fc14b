#include "runtime/trainer/shard/engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace shardrun::shard {

using plan::BlockShards;
using plan::ShardLayout;

Engine::Engine(ShardLayout layout, const EngineOptions& options, const EngineGroups& groups, Arena& arena)
    : layout_(std::move(layout)),
      options_(options),
      groups_(groups),
      has_gradient_(static_cast<size_t>(layout_.block_count()), false) {
  SHARDRUN_CHECK(groups.gather->size() == layout_.group_size && groups.reduce->size() == layout_.group_size);
  SHARDRUN_CHECK(options.prefetch >= 0);
  if (groups_.replica != nullptr && groups_.replica->size() == 1) groups_.replica = nullptr;
  const plan::ShardedState state = plan::sharded_state(layout_, options.state());
  master_ = arena.take<float>(state.masters.elements);
  gradient_ = arena.take<float>(state.gradients.elements);
  half_ = arena.take<uint16_t>(state.compute_copy.elements);
  for (const plan::Buffer& whole : state.gathered)
    parameter_slots_.emplace_back().memory = arena.take<std::byte>(whole.elements * whole.element_bytes);
  for (size_t i = 0; i < state.whole_gradients.size(); ++i)
    gradient_slots_[i].full = arena.take<float>(state.whole_gradients[i].elements);
  for (size_t i = 0; i < state.scratches.size(); ++i)
    gradient_slots_[i].scratch = arena.take<float>(state.scratches[i].elements);
  if (state.scratches.size() == 1) gradient_slots_[1].scratch = gradient_slots_[0].scratch;
}

void Engine::publish() {
  SHARDRUN_CHECK(acquired_block_ < 0);
  if (!half_.empty()) options_.backend->fp32_to_bf16(master_, half_);
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

// The same, made from the masters in the rank's own part of a buffer for the whole block.
std::span<const std::byte> Engine::converted_shard(int block, std::span<std::byte> whole) const {
  const BlockShards& shards = layout_.block(block);
  const auto count = static_cast<size_t>(shards.shard_elements);
  const size_t bytes = count * sizeof(uint16_t);
  const auto mine = whole.subspan(static_cast<size_t>(groups_.gather->rank()) * bytes, bytes);
  options_.backend->fp32_to_bf16(
      std::span<const float>(master_).subspan(static_cast<size_t>(shards.shard_offset), count),
      {reinterpret_cast<uint16_t*>(mine.data()), count});
  return mine;
}

Engine::ParameterSlot* Engine::find_slot(int block) {
  for (ParameterSlot& slot : parameter_slots_) {
    if (slot.block == block && slot.version == version_) return &slot;
  }
  return nullptr;
}

// A buffer that holds neither the acquired block nor one that is about to be; its own when blocks are kept.
Engine::ParameterSlot* Engine::free_slot(int block, std::span<const int> upcoming) {
  if (options_.keeps_parameters) return &parameter_slots_[static_cast<size_t>(block)];
  for (ParameterSlot& slot : parameter_slots_) {
    const bool current = slot.version == version_;
    const bool wanted = slot.block == acquired_block_ ||
                        std::find(upcoming.begin(), upcoming.end(), slot.block) != upcoming.end();
    if (!current || !wanted) return &slot;
  }
  return nullptr;
}

// False when no buffer is free, which only a prefetch meets.
Result<bool> Engine::start_gather(int block, std::span<const int> upcoming) {
  ParameterSlot* slot = free_slot(block, upcoming);
  if (slot == nullptr) return false;
  if (slot->pending) RETURN_IF_ERROR(groups_.gather->wait(*std::exchange(slot->pending, std::nullopt)));
  const auto mine = options_.state().converts() ? converted_shard(block, slot->memory) : compute_shard(block);
  auto pending = groups_.gather->all_gather(
      mine, slot->memory.first(mine.size() * static_cast<size_t>(layout_.group_size)));
  if (!pending) return std::move(pending).error();
  slot->pending = *pending;
  slot->block = block;
  slot->version = version_;
  return true;
}

std::span<const std::byte> Engine::converted_alone(int block) {
  ParameterSlot& slot = parameter_slots_.front();
  if (find_slot(block) == nullptr) (void)converted_shard(block, slot.memory);
  slot.block = block;
  slot.version = version_;
  return slot.memory;
}

Result<std::span<const std::byte>> Engine::acquire(int block, std::span<const int> upcoming) {
  SHARDRUN_CHECK(acquired_block_ < 0 && version_ > 0);
  const auto bytes = static_cast<size_t>(layout_.block(block).elements * kernels::size_of(options_.compute));
  acquired_block_ = block;
  if (alone())
    return (options_.state().converts() ? converted_alone(block) : compute_shard(block)).first(bytes);
  const auto ahead = upcoming.first(std::min(upcoming.size(), static_cast<size_t>(options_.prefetch)));
  if (find_slot(block) == nullptr) {
    auto started = start_gather(block, ahead);
    if (!started) return std::move(started).error();
    SHARDRUN_CHECK(*started);
  }
  for (const int next : ahead) {
    if (find_slot(next) != nullptr) continue;
    auto started = start_gather(next, ahead);
    if (!started) return std::move(started).error();
    if (!*started) break;
  }
  ParameterSlot& slot = *find_slot(block);
  if (slot.pending) {
    if (auto done = groups_.gather->wait(*std::exchange(slot.pending, std::nullopt)); !done) {
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
  if (first) std::fill(has_gradient_.begin(), has_gradient_.end(), false);
}

Result<GradientBuffer> Engine::gradient_buffer(int block) {
  const auto elements = static_cast<size_t>(layout_.block(block).elements);
  if (alone())
    return GradientBuffer{gradient_shard(block).first(elements), has_gradient_[static_cast<size_t>(block)]};
  GradientSlot& slot = gradient_slots_[static_cast<size_t>(next_gradient_slot_)];
  if (auto done = complete(slot); !done) return std::move(done).error();
  slot.block = block;
  return GradientBuffer{slot.full.first(elements)};
}

Result<void> Engine::reduce(int block, bool last) {
  const bool adds = has_gradient_[static_cast<size_t>(block)];
  SHARDRUN_CHECK(!adds || options_.accumulates || options_.revisits);
  has_gradient_[static_cast<size_t>(block)] = true;
  if (alone()) return last ? sum_over_replicas(block) : Result<void>();
  GradientSlot& slot = gradient_slots_[static_cast<size_t>(next_gradient_slot_)];
  SHARDRUN_CHECK(slot.block == block);
  const BlockShards& shards = layout_.block(block);
  const GradientSlot& other = gradient_slots_[static_cast<size_t>(1 - next_gradient_slot_)];
  SHARDRUN_CHECK(options_.accumulates || !adds || !other.adds || other.block < 0);  // they share scratch
  slot.adds = adds;
  slot.last = last;
  const auto full = slot.full.first(static_cast<size_t>(shards.padded_elements));
  options_.backend->zero(full.data() + shards.elements,
                         (shards.padded_elements - shards.elements) * int64_t{sizeof(float)});
  const auto mine =
      adds ? slot.scratch.first(static_cast<size_t>(shards.shard_elements)) : gradient_shard(block);
  auto pending = groups_.reduce->reduce_scatter(full, mine);
  if (!pending) return std::move(pending).error();
  slot.pending = *pending;
  next_gradient_slot_ = 1 - next_gradient_slot_;
  return {};
}

Result<void> Engine::complete(GradientSlot& slot) {
  if (slot.block < 0) return {};
  const int block = std::exchange(slot.block, -1);
  if (slot.pending) {
    if (auto done = groups_.reduce->wait(*std::exchange(slot.pending, std::nullopt)); !done) {
      return std::move(done).error().context(fmt::format("reducing the gradients of block {}", block));
    }
  }
  if (slot.adds) {
    const std::span<float> total = gradient_shard(block);
    options_.backend->ops<float>().add(total.data(), total.data(), slot.scratch.data(),
                                       layout_.block(block).shard_elements);
  }
  return slot.last ? sum_over_replicas(block) : Result<void>();
}

Result<void> Engine::sum_over_replicas(int block) {
  if (groups_.replica == nullptr) return {};
  auto pending = groups_.replica->all_reduce(gradient_shard(block));
  if (!pending) {
    return std::move(pending).error().context(fmt::format("summing block {} over its replicas", block));
  }
  replica_sums_.push_back(*pending);
  return {};
}

Result<void> Engine::finish_reductions() {
  RETURN_IF_ERROR(complete(gradient_slots_[static_cast<size_t>(next_gradient_slot_)]));
  RETURN_IF_ERROR(complete(gradient_slots_[static_cast<size_t>(1 - next_gradient_slot_)]));
  for (const comm::Pending& pending : replica_sums_) {
    if (auto done = groups_.replica->wait(pending); !done) {
      return std::move(done).error().context("summing gradients over replicas");
    }
  }
  replica_sums_.clear();
  return {};
}

}  // namespace shardrun::shard

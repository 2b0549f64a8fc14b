#include "runtime/trainer/shard/engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace shardrun::shard {

using base::DType;
using comm::Bf16;
using plan::BlockShards;
using plan::ShardLayout;
using plan::StepEvent;
using Kind = StepEvent::Kind;

namespace {

// As many numbers in bf16, in the first half of the same memory.
std::span<Bf16> narrowed(std::span<float> values) {
  return {reinterpret_cast<Bf16*>(values.data()), values.size()};
}

}  // namespace

Engine::Engine(ShardLayout layout, const EngineOptions& options, const EngineGroups& groups, Arena& arena,
               ShardLayout frozen)
    : layout_(std::move(layout)),
      frozen_layout_(std::move(frozen)),
      units_(plan::layout_of_units(layout_, options.state.wrapping)),
      frozen_units_(plan::layout_of_units(frozen_layout_, options.state.wrapping)),
      options_(options),
      groups_(groups) {
  SHARDRUN_CHECK(groups.gather->size() == layout_.group_size && groups.reduce->size() == layout_.group_size);
  const plan::ShardedState state = plan::sharded_state(layout_, options.state, frozen_layout_);
  master_ = arena.take<float>(state.masters.elements);
  gradient_ = arena.take<float>(state.gradients.elements);
  half_ = arena.take<uint16_t>(state.compute_copy.elements);
  frozen_ = arena.take<std::byte>(state.frozen.elements * state.frozen.element_bytes);
  for (const plan::Buffer& whole : state.gathered)
    slots_.push_back({arena.take<std::byte>(whole.elements * whole.element_bytes), {}, {}});
  for (const plan::Buffer& whole : state.whole_gradients)
    gradients_.push_back({arena.take<float>(whole.elements), {}, {}});
  for (const plan::Buffer& scratch : state.scratches)
    scratches_.push_back(arena.take<float>(scratch.elements));
  unit_block_ = arena.take<std::byte>(state.unit_block.elements * state.unit_block.element_bytes);
  unit_gradient_ = arena.take<float>(state.unit_gradient.elements);
}

std::span<float> Engine::master() {
  SHARDRUN_CHECK(!change_);
  return master_;
}

void Engine::publish() {
  publish(nullptr);
}

void Engine::publish(Change change) {
  SHARDRUN_CHECK(!plan_ && !change_);
  change_ = std::move(change);
  changed_.assign(units_.blocks.size(), false);
  narrow_.assign(units_.blocks.size(), half_.empty());
  published_ = true;
}

void Engine::settle() {
  for (int unit = 0; change_ && unit < units_.block_count(); ++unit) change_masters(unit);
  change_ = nullptr;
}

void Engine::begin(plan::StepPlan plan) {
  SHARDRUN_CHECK(!plan_ && published_);
  plan_ = std::move(plan);
}

Result<std::optional<Work>> Engine::next() {
  SHARDRUN_CHECK(plan_.has_value());
  while (true) {
    if (auto work = next_of_unit()) return std::optional(*work);
    const auto event = plan_->next();
    SHARDRUN_CHECK(event.has_value());
    if (event->kind == Kind::kTurnEnds) return std::optional<Work>();
    if (event->kind != Kind::kForward && event->kind != Kind::kBackward) {
      RETURN_IF_ERROR(execute(*event));
      continue;
    }
    computed_ = event;
    const plan::Wrapping& wrapping = options_.state.wrapping;
    next_block_ =
        event->kind == Kind::kForward ? wrapping.begin(event->block) : wrapping.end(event->block) - 1;
    return std::optional(work(*event, next_block_));
  }
}

Result<void> Engine::finish() {
  SHARDRUN_CHECK(plan_.has_value());
  while (const auto event = plan_->next()) RETURN_IF_ERROR(execute(*event));
  settle();  // of a unit that no turn visited
  plan_.reset();
  return {};
}

Result<void> Engine::execute(const StepEvent& event) {
  switch (event.kind) {
    case Kind::kGather:
      return gather(event);
    case Kind::kAwaitGather:
      return await_gather(event);
    case Kind::kReduce:
      return reduce(event);
    case Kind::kAwaitReduce:
      return await_reduce(event);
    case Kind::kAdd:
      add(event);
      return {};
    case Kind::kSumReplicas:
      return sum_over_replicas(event.block);
    case Kind::kAwaitReplicas:
      return is_empty(event.block) ? Result<void>() : await_replicas(event.block);
    case Kind::kForward:
    case Kind::kBackward:
    case Kind::kTurnEnds:
      break;  // next() returns them
  }
  SHARDRUN_CHECK(false);
  return {};
}

// The next block of the unit that is computed; nullopt after its last.
std::optional<Work> Engine::next_of_unit() {
  if (!computed_) return std::nullopt;
  const plan::Wrapping& wrapping = options_.state.wrapping;
  const bool is_forward = computed_->kind == Kind::kForward;
  if (!is_forward && is_apart(computed_->block)) spread_gradient();
  next_block_ += is_forward ? 1 : -1;
  if (next_block_ >= wrapping.begin(computed_->block) && next_block_ < wrapping.end(computed_->block))
    return work(*computed_, next_block_);
  computed_.reset();
  return std::nullopt;
}

// Whether the unit's blocks do not lie in one piece where it is gathered and reduced.
bool Engine::is_apart(int unit) const {
  const plan::Wrapping& wrapping = options_.state.wrapping;
  return layout_.group_size > 1 && wrapping.end(unit) - wrapping.begin(unit) > 1;
}

// Puts the parts of a block of a gathered unit one behind the other: of what is trained, and behind that of what is frozen.
std::span<const std::byte> Engine::whole(int block, int unit, std::span<const std::byte> gathered) {
  const int64_t width = options_.state.compute_bytes;
  const auto collect = [&](const ShardLayout& blocks, const ShardLayout& units, int64_t from, int64_t to) {
    const BlockShards &mine = blocks.block(block), &all = units.block(unit);
    from += (mine.shard_offset - all.shard_offset) * width;
    for (int rank = 0; rank < blocks.group_size; ++rank)
      options_.backend->copy(unit_block_.data() + to + rank * mine.shard_elements * width,
                             gathered.data() + from + rank * all.shard_elements * width,
                             mine.shard_elements * width);
  };
  collect(layout_, units_, 0, 0);
  if (!frozen_layout_.blocks.empty())
    collect(frozen_layout_, frozen_units_, units_.block(unit).padded_elements * width,
            layout_.block(block).padded_elements * width);
  return unit_block_;
}

// Puts the gradient of the block that was computed where its unit is reduced, cut into the ranks' parts.
void Engine::spread_gradient() {
  const BlockShards &mine = layout_.block(next_block_), &all = units_.block(computed_->block);
  const std::span<float> to = gradients_[computed_->gradient].memory;
  options_.backend->zero(unit_gradient_.data() + mine.elements,
                         (mine.padded_elements - mine.elements) * int64_t{sizeof(float)});
  for (int rank = 0; rank < layout_.group_size; ++rank)
    options_.backend->copy(to.data() + rank * all.shard_elements + (mine.shard_offset - all.shard_offset),
                           unit_gradient_.data() + rank * mine.shard_elements,
                           mine.shard_elements * int64_t{sizeof(float)});
}

Work Engine::work(const StepEvent& event, int block) {
  const BlockShards& shards = layout_.block(block);
  const int64_t elements = shards.stays ? shards.shard_elements : shards.elements;
  const auto count = static_cast<size_t>(elements);
  const auto bytes = static_cast<size_t>(elements * options_.state.compute_bytes);
  const int visit = event.visit + block - options_.state.wrapping.begin(event.block);
  Work work{event.kind == Kind::kForward, block, visit, {}, {}, {}, event.adds};
  const bool is_read = event.slot >= 0 || layout_.group_size == 1 || shards.stays;
  if (!is_read) {
    work.gradient = gradients_[event.gradient].memory.first(count);
    return work;
  }
  if (event.slot < 0) {
    change_masters(event.block);
    narrow_masters(event.block);
    work.parameters = compute_shard(shards);
  } else if (is_apart(event.block)) {
    work.parameters = whole(block, event.block, slots_[event.slot].memory);
  } else {  // alone, or of a rank alone, whose one part has the unit's blocks in order
    const int64_t begin = shards.shard_offset - units_.block(event.block).shard_offset;
    work.parameters = std::span<const std::byte>(slots_[event.slot].memory)
                          .subspan(static_cast<size_t>(begin * options_.state.compute_bytes));
  }
  work.parameters = work.parameters.first(bytes);
  work.frozen = frozen_block(block, event.block, event.slot);
  if (work.is_forward) return work;
  work.gradient = event.gradient < 0      ? gradient_shard(shards)
                  : is_apart(event.block) ? unit_gradient_
                                          : gradients_[event.gradient].memory;
  work.gradient = work.gradient.first(count);
  return work;
}

void Engine::change_masters(int unit) {
  if (!change_ || changed_[unit]) return;
  changed_[unit] = true;
  change_(units_.block(unit).shard_offset, units_.block(unit).shard_elements);
}

// Makes the copy in the compute dtype of the rank's part of a unit, once behind each publish().
void Engine::narrow_masters(int unit) {
  if (narrow_[unit]) return;
  narrow_[unit] = true;
  const BlockShards& shards = units_.block(unit);
  const auto offset = static_cast<size_t>(shards.shard_offset);
  const auto count = static_cast<size_t>(shards.shard_elements);
  options_.backend->optimizer().fp32_to_bf16(master_.subspan(offset, count), half_.subspan(offset, count));
}

std::span<const std::byte> Engine::compute_shard(const BlockShards& shards) const {
  const auto offset = static_cast<size_t>(shards.shard_offset);
  const auto count = static_cast<size_t>(shards.shard_elements);
  if (half_.empty()) return std::as_bytes(std::span<const float>(master_).subspan(offset, count));
  return std::as_bytes(std::span<const uint16_t>(half_).subspan(offset, count));
}

std::span<const std::byte> Engine::frozen_shard(const BlockShards& shards) const {
  const auto width = static_cast<size_t>(options_.state.compute_bytes);
  return frozen_.subspan(shards.shard_offset * width, shards.shard_elements * width);
}

// Of the whole block, in a slot or the rank's own.
std::span<const std::byte> Engine::frozen_block(int block, int unit, int slot) const {
  if (frozen_layout_.blocks.empty()) return {};
  const int64_t width = options_.state.compute_bytes;
  const auto bytes = static_cast<size_t>(frozen_layout_.block(block).elements * width);
  if (slot < 0 || layout_.group_size == 1) return frozen_shard(frozen_layout_.block(block)).first(bytes);
  const auto begin = static_cast<size_t>(layout_.block(block).padded_elements * width);
  const std::span<const std::byte> from = is_apart(unit) ? unit_block_ : slots_[slot].memory;
  return from.subspan(begin, bytes);
}

// The same of what is trained, made from the masters in the rank's own part of a buffer for the whole block.
std::span<const std::byte> Engine::converted_shard(int unit, std::span<std::byte> whole) const {
  const BlockShards& shards = units_.block(unit);
  const auto count = static_cast<size_t>(shards.shard_elements);
  const size_t bytes = count * sizeof(uint16_t);
  const auto mine = whole.subspan(static_cast<size_t>(groups_.gather->rank()) * bytes, bytes);
  options_.backend->optimizer().fp32_to_bf16(
      std::span<const float>(master_).subspan(shards.shard_offset, count),
      {reinterpret_cast<uint16_t*>(mine.data()), count});
  return mine;
}

std::span<float> Engine::gradient_shard(const BlockShards& shards) {
  return gradient_.subspan(shards.shard_offset, shards.shard_elements);
}

Result<void> Engine::gather(const StepEvent& event) {
  ParameterSlot& slot = slots_[event.slot];
  change_masters(event.block);
  narrow_masters(event.block);
  const auto mine = options_.state.converts() ? converted_shard(event.block, slot.memory)
                                              : compute_shard(units_.block(event.block));
  if (layout_.group_size == 1) return {};
  ASSIGN_OR_RETURN(slot.pending, gather(mine, slot.memory));
  if (frozen_layout_.blocks.empty()) return {};
  const size_t trained = mine.size() * static_cast<size_t>(layout_.group_size);
  ASSIGN_OR_RETURN(slot.frozen_pending,
                   gather(frozen_shard(frozen_units_.block(event.block)), slot.memory.subspan(trained)));
  return {};
}

// Starts gathering everybody's part into the beginning of `to`; nothing where parts are empty.
Result<std::optional<comm::Pending>> Engine::gather(std::span<const std::byte> mine,
                                                    std::span<std::byte> to) {
  if (mine.empty()) return std::optional<comm::Pending>();
  ASSIGN_OR_RETURN(
      const auto pending,
      groups_.gather->all_gather(mine, to.first(mine.size() * static_cast<size_t>(layout_.group_size))));
  return std::optional(pending);
}

Result<void> Engine::await_gather(const StepEvent& event) {
  if (layout_.group_size == 1) return {};
  settle();
  ParameterSlot& slot = slots_[event.slot];
  RETURN_IF_ERROR(await(slot.pending, event.block));
  return await(slot.frozen_pending, event.block);
}

Result<void> Engine::await(std::optional<comm::Pending>& pending, int block) {
  if (!pending) return {};
  if (auto done = groups_.gather->wait(*std::exchange(pending, {})); !done)
    return std::move(done).error().context(fmt::format("gathering the parameters of block {}", block));
  return {};
}

Result<void> Engine::reduce(const StepEvent& event) {
  if (is_empty(event.block)) return {};
  GradientBuffer& gradient = gradients_[event.gradient];
  const BlockShards& shards = units_.block(event.block);
  const auto full = gradient.memory.first(shards.padded_elements);
  options_.backend->zero(full.data() + shards.elements,
                         (shards.padded_elements - shards.elements) * int64_t{sizeof(float)});
  const auto mine =
      event.scratch < 0 ? gradient_shard(shards) : scratches_[event.scratch].first(shards.shard_elements);
  gradient.sum = mine;
  const bool is_wide = options_.reduce == DType::kFp32;
  ASSIGN_OR_RETURN(gradient.pending, is_wide ? groups_.reduce->reduce_scatter(full, mine)
                                             : groups_.reduce->reduce_scatter(narrow(full), narrowed(mine)));
  return {};
}

Result<void> Engine::await_reduce(const StepEvent& event) {
  if (is_empty(event.block)) return {};
  GradientBuffer& gradient = gradients_[event.gradient];
  if (auto done = groups_.reduce->wait(std::exchange(gradient.pending, {}).value()); !done)
    return std::move(done).error().context(fmt::format("reducing the gradients of block {}", event.block));
  if (options_.reduce != DType::kFp32) widen(gradient.sum);
  return {};
}

void Engine::add(const StepEvent& event) {
  if (is_empty(event.block)) return;
  const BlockShards& shards = units_.block(event.block);
  const std::span<float> total = gradient_shard(shards);
  options_.backend->ops<float>().pointwise.add(total.data(), total.data(), scratches_[event.scratch].data(),
                                               shards.shard_elements);
}

Result<void> Engine::sum_over_replicas(int block) {
  if (is_empty(block)) return {};
  const std::span<float> shard = gradient_shard(units_.block(block));
  auto pending = options_.reduce == DType::kFp32 ? groups_.replica->all_reduce(shard)
                                                 : groups_.replica->all_reduce(narrow(shard));
  if (!pending)
    return std::move(pending).error().context(fmt::format("summing block {} over its replicas", block));
  replica_sums_.push_back(*pending);
  return {};
}

Result<void> Engine::await_replicas(int block) {
  const comm::Pending oldest = replica_sums_.front();
  replica_sums_.pop_front();
  if (auto done = groups_.replica->wait(oldest); !done)
    return std::move(done).error().context("summing gradients over replicas");
  if (options_.reduce != DType::kFp32) widen(gradient_shard(units_.block(block)));
  return {};
}

// Rounds values where they lie, into the first half of their memory. A round takes as many as are rounded already, so that it
// writes only over what an earlier one has read, however its op divides it among threads.
std::span<Bf16> Engine::narrow(std::span<float> values) const {
  const std::span<Bf16> to = narrowed(values);
  auto* const bits = reinterpret_cast<uint16_t*>(to.data());
  for (size_t done = 0, count = 0; done < values.size(); done += count) {
    count = std::min(std::max<size_t>(done, 1), values.size() - done);
    options_.backend->optimizer().fp32_to_bf16(values.subspan(done, count), {bits + done, count});
  }
  return to;
}

// The way back, from the last ones on.
void Engine::widen(std::span<float> values) const {
  const std::span<const Bf16> from = narrowed(values);
  for (size_t left = values.size(), count = 0; left > 0; left -= count) {
    count = std::max<size_t>(left / 2, 1);
    options_.backend->optimizer().bf16_to_fp32(from.subspan(left - count, count),
                                               values.subspan(left - count, count));
  }
}

}  // namespace shardrun::shard

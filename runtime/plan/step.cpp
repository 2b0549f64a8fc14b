#include "runtime/plan/step.h"

#include <algorithm>
#include <utility>

#include "runtime/base/result.h"

namespace shardrun::plan {

using Kind = StepEvent::Kind;

StepPlan::StepPlan(StepShape shape)
    : shape_(std::move(shape)),
      turns_(shape_.stage, shape_.micro_steps, shape_.backward),
      slots_(shape_.buffers.gathered),
      reductions_(shape_.buffers.whole_gradients) {
  SHARDRUN_CHECK(!shape_.visits.empty() && shape_.prefetch >= 0);
  if (shape_.chunks.empty()) shape_.chunks = {0, static_cast<int>(shape_.visits.size())};
  SHARDRUN_CHECK(static_cast<int>(shape_.chunks.size()) == shape_.stage.chunks + 1);
  has_gradient_.resize(1 + *std::max_element(shape_.visits.begin(), shape_.visits.end()));
  begin_turn();
}

void StepPlan::begin_turn() {
  turn_ = turns_.next();
  order_.clear();
  place_ = 0;
  if (!turn_) return;
  first_visit_ = shape_.chunks[turn_->chunk];
  chunk_visits_ = shape_.chunks[turn_->chunk + 1] - first_visit_;
  const auto visits = std::span<const int>(shape_.visits).subspan(first_visit_, chunk_visits_);
  if (turn_->forward) order_.assign(visits.begin(), visits.end());
  if (turn_->backward) order_.insert(order_.end(), visits.rbegin(), visits.rend());
}

std::optional<StepEvent> StepPlan::next() {
  while (taken_ == ready_.size()) {
    if (closed_) return std::nullopt;
    ready_.clear();
    taken_ = 0;
    advance();
  }
  return ready_[taken_++];
}

// Works out the events of the next visit, or of the step's end.
void StepPlan::advance() {
  if (!turn_) return close();
  visit(place_++);
  if (place_ < order_.size()) return;
  ready_.push_back({.kind = Kind::kTurnEnds});
  begin_turn();
}

void StepPlan::close() {
  for (size_t i = 0; i < reductions_.size(); ++i) {
    complete(next_gradient_);
    next_gradient_ = after(next_gradient_);
  }
  for (const int block : summed_) ready_.push_back({.kind = Kind::kAwaitReplicas, .block = block});
  closed_ = true;
}

void StepPlan::visit(size_t place) {
  const int block = order_[place];
  const int slot = gathered(place);
  if (turn_->forward && place < chunk_visits_) {
    ready_.push_back({.kind = Kind::kForward, .block = block, .visit = number(place), .slot = slot});
    return;
  }
  const auto later = std::span(order_).subspan(place + 1);
  const bool last = turn_->micro_step + 1 == shape_.micro_steps &&
                    std::find(later.begin(), later.end(), block) == later.end();
  backward(block, number(order_.size() - 1 - place), slot, last);
}

// Whether a visit of the turn needs its block gathered.
bool StepPlan::reads(size_t place) const {
  const bool looks_up = shape_.looks_up && turn_->backward && turn_->micro_step + 1 == shape_.micro_steps &&
                        first_visit_ == 0 && place + 1 == order_.size();
  return !looks_up && !stays(order_[place]);
}

// Gathers the block of a visit if no slot holds it, and the blocks ahead of it; returns its slot.
int StepPlan::gathered(size_t place) {
  if (slots_.empty()) return -1;
  const int block = order_[place];
  std::vector<int> ahead;
  for (size_t next = place + 1; next < order_.size() && std::ssize(ahead) < shape_.prefetch; ++next)
    if (reads(next)) ahead.push_back(order_[next]);
  const bool there = !reads(place) || gather(block, block, ahead);
  SHARDRUN_CHECK(there);
  for (const int next : ahead)
    if (!gather(next, block, ahead)) break;
  if (!reads(place)) return -1;
  const auto slot = static_cast<size_t>(slot_of(block));
  if (!std::exchange(slots_[slot].awaited, true))
    ready_.push_back({.kind = Kind::kAwaitGather, .block = block, .slot = static_cast<int>(slot)});
  return static_cast<int>(slot);
}

// Returns false when every slot that the block may have holds one that is used or comes before it, which only a block ahead meets.
bool StepPlan::gather(int block, int used, std::span<const int> ahead) {
  if (slot_of(block) >= 0) return true;
  const int slot = free_slot(block, used, ahead);
  if (slot < 0) return false;
  slots_[slot] = {block, false};
  ready_.push_back({.kind = Kind::kGather, .block = block, .slot = slot});
  return true;
}

int StepPlan::slot_of(int block) const {
  const auto slot =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& one) { return one.block == block; });
  return slot == slots_.end() ? -1 : static_cast<int>(slot - slots_.begin());
}

int StepPlan::free_slot(int block, int used, std::span<const int> ahead) const {
  const std::vector<SlotRange>& ranges = shape_.buffers.slots;
  const auto [first, last] = ranges.empty() ? SlotRange{0, shape_.buffers.gathered} : ranges[block];
  const auto before = block == used ? ahead.begin() : std::find(ahead.begin(), ahead.end(), block);
  // If need be, one that comes after the block.
  for (const auto kept : {ahead, std::span(ahead.begin(), before)})
    for (int slot = first; slot < last; ++slot) {
      const int holds = slots_[slot].block;
      if (holds != used && std::find(kept.begin(), kept.end(), holds) == kept.end()) return slot;
    }
  return -1;
}

void StepPlan::backward(int block, int visit, int slot, bool last) {
  const bool adds = has_gradient_[block];
  has_gradient_[block] = true;
  StepEvent event{.kind = Kind::kBackward, .block = block, .visit = visit, .slot = slot};
  if (reductions_.empty() || stays(block)) {
    event.adds = adds;
    ready_.push_back(event);
    if (last) sum_over_replicas(block);
    return;
  }
  complete(next_gradient_);
  event.gradient = static_cast<int>(next_gradient_);
  ready_.push_back(event);
  const int scratch = adds ? free_scratch() : -1;
  ready_.push_back({.kind = Kind::kReduce, .block = block, .gradient = event.gradient, .scratch = scratch});
  reductions_[next_gradient_] = {block, scratch, last};
  next_gradient_ = after(next_gradient_);
}

// Returns the scratch of the next gradient buffer. A reduction that still fills it is awaited first, and those before it.
int StepPlan::free_scratch() {
  SHARDRUN_CHECK(shape_.buffers.scratches > 0);
  const int scratch = static_cast<int>(next_gradient_) % shape_.buffers.scratches;
  const auto fills_it = [&](const Reduction& one) { return one.block >= 0 && one.scratch == scratch; };
  for (size_t oldest = after(next_gradient_); std::any_of(reductions_.begin(), reductions_.end(), fills_it);
       oldest = after(oldest))
    complete(oldest);
  return scratch;
}

void StepPlan::complete(size_t gradient) {
  const Reduction done = std::exchange(reductions_[gradient], {});
  if (done.block < 0) return;
  ready_.push_back({.kind = Kind::kAwaitReduce, .block = done.block, .gradient = static_cast<int>(gradient)});
  if (done.scratch >= 0) ready_.push_back({.kind = Kind::kAdd, .block = done.block, .scratch = done.scratch});
  if (done.last) sum_over_replicas(done.block);
}

void StepPlan::sum_over_replicas(int block) {
  if (!shape_.replicated) return;
  ready_.push_back({.kind = Kind::kSumReplicas, .block = block});
  summed_.push_back(block);
}

}  // namespace shardrun::plan

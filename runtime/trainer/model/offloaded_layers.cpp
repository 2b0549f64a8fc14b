#include "runtime/trainer/model/offloaded_layers.h"

#include <algorithm>
#include <utility>

namespace shardrun::model {

using Stream = base::DeviceLink::Stream;

Result<std::unique_ptr<OffloadedLayers>> OffloadedLayers::create(int layers, int64_t piece_bytes,
                                                                 const Slots& slots,
                                                                 kernels::Backend& backend) {
  ASSIGN_OR_RETURN(auto link, backend.make_link());
  SHARDRUN_CHECK(link != nullptr);
  std::unique_ptr<OffloadedLayers> made(new OffloadedLayers(layers, piece_bytes, std::move(link)));
  RETURN_IF_ERROR(made->take_memory(slots));
  return Result<std::unique_ptr<OffloadedLayers>>(std::move(made));
}

Result<void> OffloadedLayers::take_memory(const Slots& slots) {
  ASSIGN_OR_RETURN(auto host,
                   link_->allocate_pinned(plan::waiting_bytes(layers_, static_cast<int64_t>(piece_))));
  host_ = std::move(host);
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots_[i];
    slot.memory = slots[i];
    for (Mark* mark : {&slot.gone, &slot.back}) {
      ASSIGN_OR_RETURN(auto one, link_->make_mark());
      *mark = std::move(one);
    }
  }
  ASSIGN_OR_RETURN(auto computed, link_->make_mark());
  computed_ = std::move(computed);
  return {};
}

OffloadedLayers::~OffloadedLayers() {
  for (const Stream stream : {Stream::kIn, Stream::kCompute, Stream::kOut}) (void)link_->drain(stream);
}

Result<void> OffloadedLayers::before_forward(int layer) {
  Slot& into = slot(layer);
  if (!std::exchange(into.is_going, false)) return {};
  return link_->wait(Stream::kCompute, *into.gone);
}

Result<void> OffloadedLayers::after_forward(int layer) {
  if (stays(layer)) return {};
  Slot& from = slot(layer);
  RETURN_IF_ERROR(link_->record(*computed_, Stream::kCompute));
  RETURN_IF_ERROR(link_->wait(Stream::kOut, *computed_));
  RETURN_IF_ERROR(link_->copy(Stream::kOut, home(layer), from.memory, piece_));
  from.is_going = true;
  return link_->record(*from.gone, Stream::kOut);
}

Result<void> OffloadedLayers::before_backward(int layer) {
  if (!stays(layer)) RETURN_IF_ERROR(link_->wait(Stream::kCompute, *slot(layer).back));
  return layer > 0 && !stays(layer - 1) ? bring_back(layer - 1) : Result<void>();
}

// Into the slot of the layer that backward has just done. It was taken to the host before that one was computed, which
// waited for it: what comes after `computed_` comes after that, too.
Result<void> OffloadedLayers::bring_back(int layer) {
  Slot& into = slot(layer);
  RETURN_IF_ERROR(link_->record(*computed_, Stream::kCompute));
  RETURN_IF_ERROR(link_->wait(Stream::kIn, *computed_));
  RETURN_IF_ERROR(link_->copy(Stream::kIn, into.memory, home(layer), piece_));
  return link_->record(*into.back, Stream::kIn);
}

}  // namespace shardrun::model

#include "runtime/trainer/optim/host_moments.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace shardrun::optim {
namespace {

using Stream = base::DeviceLink::Stream;

constexpr bool kOffload = true;
constexpr auto kGpu = base::DeviceKind::kGpu;

}  // namespace

Result<std::unique_ptr<HostMoments>> HostMoments::create(int64_t elements, kernels::Backend& backend,
                                                         int64_t piece_elements) {
  ASSIGN_OR_RETURN(auto link, backend.make_link());
  SHARDRUN_CHECK(link != nullptr);
  ASSIGN_OR_RETURN(auto slots,
                   backend.allocate(plan::moments(elements, kOffload, kGpu, piece_elements).resident));
  return create(elements, std::move(link), std::move(slots), piece_elements);
}

Result<std::unique_ptr<HostMoments>> HostMoments::create(int64_t elements,
                                                         std::unique_ptr<base::DeviceLink> link,
                                                         base::Memory slots, int64_t piece_elements) {
  SHARDRUN_CHECK(piece_elements > 0 && piece_elements % plan::kMomentPieceUnit == 0);
  SHARDRUN_CHECK(slots.bytes() == plan::moments(elements, kOffload, kGpu, piece_elements).resident);
  std::unique_ptr<HostMoments> moments(new HostMoments(std::move(link), std::move(slots), piece_elements));
  RETURN_IF_ERROR(moments->take_memory(elements));
  RETURN_IF_ERROR(moments->make_slots(elements));
  return Result<std::unique_ptr<HostMoments>>(std::move(moments));
}

Result<void> HostMoments::take_memory(int64_t elements) {
  const auto count = static_cast<size_t>(elements);
  ASSIGN_OR_RETURN(auto host, link_->allocate_pinned(plan::moments(elements, kOffload, kGpu).elsewhere));
  host_ = std::move(host);
  std::memset(host_->bytes().data(), 0, host_->bytes().size());
  auto* const values = reinterpret_cast<float*>(host_->bytes().data());
  moment1_ = {values, count};
  moment2_ = {values + count, count};
  return {};
}

Result<void> HostMoments::make_slots(int64_t elements) {
  auto* at = reinterpret_cast<float*>(gpu_.data());
  const auto size = static_cast<size_t>(plan::moment_slot(elements, piece_));
  for (Slot& slot : slots_) {
    slot.moment1 = {at, size};
    slot.moment2 = {at + size, size};
    at += 2 * size;
    for (Mark* mark : {&slot.arrived, &slot.updated, &slot.emptied}) {
      ASSIGN_OR_RETURN(auto made, link_->make_mark());
      *mark = std::move(made);
    }
    RETURN_IF_ERROR(link_->record(*slot.emptied, Stream::kCompute));  // recorded where its memory was cleared
  }
  return {};
}

HostMoments::~HostMoments() {
  for (const Stream stream : {Stream::kIn, Stream::kCompute, Stream::kOut}) (void)link_->drain(stream);
}

Result<void> HostMoments::finish() {
  return link_->drain(Stream::kOut);
}

// Every pass takes the slots from the first one on. So a piece that is brought waits for a way back that comes
// after its own of the pass before, and host memory has its last values.
Result<void> HostMoments::pass(const Update& update) {
  const auto elements = static_cast<int64_t>(moment1_.size());
  for (int64_t first = 0, number = 0; first < elements; first += piece_, ++number) {
    const auto count = static_cast<size_t>(std::min(piece_, elements - first));
    Slot& slot = slots_[number % plan::kMomentSlots];
    RETURN_IF_ERROR(bring(slot, first, count));
    RETURN_IF_ERROR(link_->wait(Stream::kCompute, *slot.arrived));
    update(first, slot.moment1.first(count), slot.moment2.first(count));
    RETURN_IF_ERROR(link_->record(*slot.updated, Stream::kCompute));
    RETURN_IF_ERROR(take_back(slot, first, count));
  }
  return {};
}

Result<void> HostMoments::bring(Slot& slot, int64_t first, size_t count) {
  RETURN_IF_ERROR(link_->wait(Stream::kIn, *slot.emptied));
  const size_t bytes = count * sizeof(float);
  RETURN_IF_ERROR(link_->copy(Stream::kIn, slot.moment1.data(), moment1_.data() + first, bytes));
  RETURN_IF_ERROR(link_->copy(Stream::kIn, slot.moment2.data(), moment2_.data() + first, bytes));
  return link_->record(*slot.arrived, Stream::kIn);
}

Result<void> HostMoments::take_back(Slot& slot, int64_t first, size_t count) {
  RETURN_IF_ERROR(link_->wait(Stream::kOut, *slot.updated));
  const size_t bytes = count * sizeof(float);
  RETURN_IF_ERROR(link_->copy(Stream::kOut, moment1_.data() + first, slot.moment1.data(), bytes));
  RETURN_IF_ERROR(link_->copy(Stream::kOut, moment2_.data() + first, slot.moment2.data(), bytes));
  return link_->record(*slot.emptied, Stream::kOut);
}

}  // namespace shardrun::optim

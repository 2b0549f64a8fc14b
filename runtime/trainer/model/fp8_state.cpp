#include "runtime/trainer/model/fp8_state.h"

#include <bit>
#include <utility>

#include <fmt/format.h>

namespace shardrun::model {

using kernels::Fp8History;
using kernels::Fp8Scaling;

Fp8State::Fp8State(kernels::Backend& backend, Fp8Scaling* scalings, std::vector<kernels::Fp8Format> formats)
    : backend_(backend), scalings_(scalings), formats_(std::move(formats)), histories_(formats_.size()) {}

void Fp8State::publish() {
  std::vector<Fp8Scaling> scalings;
  scalings.reserve(histories_.size());
  for (const Fp8History& history : histories_) scalings.push_back({history.scale, 0.0F});
  backend_.upload(scalings_, scalings.data(), static_cast<int64_t>(scalings.size() * sizeof(Fp8Scaling)));
}

uint64_t Fp8State::delayed_scales(int64_t block) const {
  uint64_t bits = 0;
  for (int64_t i = 0; i < kFp8TensorsOfBlock; ++i) {
    const bool is_delayed = scale(block * kFp8TensorsOfBlock + i) == kernels::Fp8Scale::kDelayed;
    bits |= uint64_t{is_delayed} << i;
  }
  return bits;
}

base::Result<std::vector<float>> Fp8State::largest() const {
  std::vector<Fp8Scaling> scalings(histories_.size());
  RETURN_IF_ERROR(backend_.download(scalings.data(), scalings_,
                                    static_cast<int64_t>(scalings.size() * sizeof(Fp8Scaling))));
  std::vector<float> largest;
  largest.reserve(scalings.size());
  for (const Fp8Scaling& scaling : scalings) largest.push_back(scaling.largest);
  return largest;
}

void Fp8State::end_step(std::span<const float> largest) {
  SHARDRUN_CHECK(largest.size() == histories_.size());
  for (size_t i = 0; i < largest.size(); ++i) histories_[i].note(formats_[i], largest[i]);
  publish();
}

base::Result<void> Fp8State::restore(const std::vector<Fp8History>& histories) {
  if (!histories.empty() && histories.size() != histories_.size()) {
    return base::Error(base::Code::kInvalid, fmt::format("it has fp8 scales of {} tensors, this job {}",
                                                         histories.size(), histories_.size()));
  }
  histories_ = histories.empty() ? std::vector<Fp8History>(histories_.size()) : histories;
  publish();
  return {};
}

void take_larger(std::span<float> a, std::span<const float> b) {
  SHARDRUN_CHECK(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(b[i]) > std::bit_cast<uint32_t>(a[i])) a[i] = b[i];
  }
}

}  // namespace shardrun::model

#include "runtime/trainer/optim/packed_adamw.h"

#include <utility>

#include "runtime/plan/optimizer_state.h"

namespace shardrun::optim {

base::Result<PackedAdamW> PackedAdamW::create(const std::vector<UpdateRange>& ranges,
                                              const AdamWOptions& options, int64_t elements) {
  ASSIGN_OR_RETURN(auto memory, base::Memory::create(2 * (plan::packed_code_bytes(elements) +
                                                          plan::packed_scale_bytes(elements))));
  PackedAdamW made(std::move(memory), options, elements);
  for (const UpdateRange& range : ranges)
    made.ranges_.push_back(
        {range.begin, range.count, range.weight_decay ? static_cast<float>(options.weight_decay) : 0.0F});
  return made;
}

PackedAdamW::PackedAdamW(base::Memory memory, const AdamWOptions& options, int64_t elements)
    : memory_(std::move(memory)), options_(options), elements_(elements) {
  std::byte* at = memory_.data();
  for (kernels::PackedMoment& moment : moments_) {
    moment.codes = reinterpret_cast<uint8_t*>(at);
    moment.scales = reinterpret_cast<float*>(at + plan::packed_code_bytes(elements));
    at += plan::packed_code_bytes(elements) + plan::packed_scale_bytes(elements);
  }
  moments_[1].map = kernels::MomentMap::kUnsigned;
}

void PackedAdamW::update(std::span<float> master, std::span<const float> gradient, double gradient_scale,
                         double learning_rate, int64_t step) const {
  SHARDRUN_CHECK(std::ssize(master) == elements_ && std::ssize(gradient) == elements_);
  kernels::packed_adamw_step(master, moments_[0], moments_[1], gradient, ranges_,
                             adamw_parameters(options_, gradient_scale, learning_rate, step));
}

void PackedAdamW::read(int moment, int64_t first, std::span<float> values) const {
  kernels::unpack(moments_[moment], first, values);
}

void PackedAdamW::write(int moment, std::span<const float> values) const {
  SHARDRUN_CHECK(std::ssize(values) == elements_);
  kernels::pack(moments_[moment], values);
}

}  // namespace shardrun::optim

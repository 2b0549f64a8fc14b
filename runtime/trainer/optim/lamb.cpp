#include "runtime/trainer/optim/lamb.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/result.h"

namespace shardrun::optim {

Lamb::Lamb(std::vector<TensorRange> ranges, int64_t tensors, const LambOptions& options,
           std::span<float> moment1, std::span<float> moment2)
    : ranges_(std::move(ranges)),
      tensors_(tensors),
      options_(options),
      moment1_(moment1),
      moment2_(moment2),
      own_(ranges_.size()) {
  SHARDRUN_CHECK(std::all_of(ranges_.begin(), ranges_.end(), [&](const TensorRange& range) {
    return range.tensor >= 0 && range.tensor < tensors;
  }));
}

base::Result<Lamb> Lamb::create(std::vector<TensorRange> ranges, int64_t tensors, const LambOptions& options,
                                std::span<float> moment1, std::span<float> moment2,
                                kernels::Backend& backend) {
  Lamb lamb(std::move(ranges), tensors, options, moment1, moment2);
  if (backend.kind() == kernels::DeviceKind::kCpu) return lamb;
  auto memory =
      backend.allocate(static_cast<int64_t>(std::max<size_t>(1, lamb.own_.size()) * sizeof(Scratch)));
  if (!memory) return std::move(memory).error().context("lamb's sums");
  lamb.memory_ = std::move(memory).value();
  lamb.backend_ = &backend;
  return lamb;
}

kernels::LambParameters Lamb::parameters(const TensorRange& range, double gradient_scale,
                                         int64_t step) const {
  const auto power = static_cast<double>(step);
  return {static_cast<float>(options_.beta1),
          static_cast<float>(options_.beta2),
          static_cast<float>(options_.epsilon),
          range.weight_decay ? static_cast<float>(options_.weight_decay) : 0.0F,
          static_cast<float>(gradient_scale),
          static_cast<float>(1.0 - std::pow(options_.beta1, power)),
          static_cast<float>(1.0 - std::pow(options_.beta2, power))};
}

void Lamb::measure(std::span<const float> master, std::span<const float> gradient, double gradient_scale,
                   int64_t step, std::span<double> sums) {
  SHARDRUN_CHECK(master.size() == moment1_.size() && gradient.size() == moment1_.size() && step >= 1);
  SHARDRUN_CHECK(static_cast<int64_t>(sums.size()) == this->sums());
  std::fill(sums.begin(), sums.end(), 0.0);
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const TensorRange& range = ranges_[i];
    const auto begin = static_cast<size_t>(range.begin), count = static_cast<size_t>(range.count);
    backend_->optimizer().lamb_measure(&scratch()[i].squares, master.subspan(begin, count),
                                       moment1_.subspan(begin, count), moment2_.subspan(begin, count),
                                       gradient.subspan(begin, count),
                                       parameters(range, gradient_scale, step));
  }
  if (memory_.data() != nullptr)
    (void)backend_->download(own_.data(), memory_.data(),
                             static_cast<int64_t>(own_.size() * sizeof(Scratch)));
  for (size_t i = 0; i < ranges_.size(); ++i) {
    sums[2 * ranges_[i].tensor] += own_[i].squares.master;
    sums[2 * ranges_[i].tensor + 1] += own_[i].squares.update;
  }
}

void Lamb::apply(std::span<float> master, double learning_rate, int64_t step, std::span<const double> sums) {
  SHARDRUN_CHECK(master.size() == moment1_.size() && step >= 1);
  SHARDRUN_CHECK(static_cast<int64_t>(sums.size()) == this->sums());
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const TensorRange& range = ranges_[i];
    const double weight = std::sqrt(sums[2 * range.tensor]);
    const double update = std::sqrt(sums[2 * range.tensor + 1]);
    const double trust = range.weight_decay && weight > 0.0 && update > 0.0 ? weight / update : 1.0;
    own_[i].rate = static_cast<float>(learning_rate * trust);
  }
  if (memory_.data() != nullptr)
    backend_->upload(memory_.data(), own_.data(), static_cast<int64_t>(own_.size() * sizeof(Scratch)));
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const TensorRange& range = ranges_[i];
    const auto begin = static_cast<size_t>(range.begin), count = static_cast<size_t>(range.count);
    backend_->optimizer().lamb_apply(master.subspan(begin, count), moment1_.subspan(begin, count),
                                     moment2_.subspan(begin, count), &scratch()[i].rate,
                                     parameters(range, 1.0, step));
  }
}

}  // namespace shardrun::optim

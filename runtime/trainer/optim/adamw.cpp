#include "runtime/trainer/optim/adamw.h"

#include <cmath>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::optim {

double sum_of_squares(std::span<const float> values) {
  double sum = 0.0;
  kernels::cpu_backend().optimizer().sum_of_squares(&sum, values);
  return sum;
}

double clip_scale(double gradient_norm, double clip_norm) {
  return clip_norm > 0.0 && gradient_norm > clip_norm ? clip_norm / gradient_norm : 1.0;
}

void AdamW::update(std::span<float> master, std::span<const float> gradient, double gradient_scale,
                   double learning_rate, int64_t step) {
  begin_step(gradient_scale, learning_rate, step);
  for (const UpdateRange& range : ranges_) update(range, master, gradient);
}

kernels::AdamWParameters adamw_parameters(const AdamWOptions& options, double gradient_scale,
                                          double learning_rate, int64_t step) {
  SHARDRUN_CHECK(step >= 1);
  const auto correction = [&](double beta) {
    return static_cast<float>(1.0 - std::pow(beta, static_cast<double>(step)));
  };
  return {.learning_rate = static_cast<float>(learning_rate),
          .beta1 = static_cast<float>(options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .epsilon = static_cast<float>(options.epsilon),
          .weight_decay = 0.0F,
          .gradient_scale = static_cast<float>(gradient_scale),
          .bias_correction1 = correction(options.beta1),
          .bias_correction2 = correction(options.beta2)};
}

void AdamW::begin_step(double gradient_scale, double learning_rate, int64_t step) {
  parameters_ = adamw_parameters(options_, gradient_scale, learning_rate, step);
}

void AdamW::update(const UpdateRange& part, std::span<float> master, std::span<const float> gradient) {
  const auto begin = static_cast<size_t>(part.begin), count = static_cast<size_t>(part.count);
  update(part, master, gradient, moment1_.subspan(begin, count), moment2_.subspan(begin, count));
}

void AdamW::update(const UpdateRange& part, std::span<float> master, std::span<const float> gradient,
                   std::span<float> moment1, std::span<float> moment2) {
  SHARDRUN_CHECK(master.size() == moment1_.size() && gradient.size() == moment1_.size());
  const auto begin = static_cast<size_t>(part.begin), count = static_cast<size_t>(part.count);
  parameters_.weight_decay = part.weight_decay ? static_cast<float>(options_.weight_decay) : 0.0F;
  backend_->optimizer().adamw_step(master.subspan(begin, count), moment1, moment2,
                                   gradient.subspan(begin, count), parameters_);
}

}  // namespace shardrun::optim

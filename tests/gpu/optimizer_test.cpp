#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "tests/gpu/harness.h"
#include "tests/support/reference_ops.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;
namespace reference = kernels::reference;

namespace {

constexpr int64_t kCounts[] = {0, 1, 3, 127, 129, 100003, 5000001};
constexpr kernels::AdamWParameters kAdamW{.learning_rate = 1e-2F,
                                          .beta1 = 0.9F,
                                          .beta2 = 0.95F,
                                          .epsilon = 1e-8F,
                                          .weight_decay = 0.1F,
                                          .gradient_scale = 0.5F,
                                          .bias_correction1 = 0.19F,
                                          .bias_correction2 = 0.0975F};
constexpr kernels::LambParameters kLamb{.beta1 = 0.9F,
                                        .beta2 = 0.999F,
                                        .epsilon = 1e-6F,
                                        .weight_decay = 0.01F,
                                        .gradient_scale = 0.5F,
                                        .bias_correction1 = 0.19F,
                                        .bias_correction2 = 0.001999F};

struct State {
  Values master, moment1, moment2, gradient;
};
State random_state(int64_t count) {
  State s{random_values(count, 1), random_values(count, 2, 0.1F), random_values(count, 3, 0.1F),
          random_values(count, 4)};
  for (float& value : s.moment2) value *= value;
  return s;
}
State after_adamw(State s, const kernels::AdamWParameters& parameters) {
  reference::adamw_step(s.master.data(), s.moment1.data(), s.moment2.data(), s.gradient.data(),
                        static_cast<int64_t>(s.master.size()), parameters);
  return s;
}

template <typename T>
std::span<T> span_of(T* data, int64_t count) {
  return {data, static_cast<size_t>(count)};
}

}  // namespace

TEST_CASE("adamw: the step") {
  for (const int64_t count : kCounts) {
    const State before = random_state(count);
    const State after = after_adamw(before, kAdamW);
    check_op(what("adamw_step", "fp32", {{"count", count}}),
             [&](Run& run) {
               float* const master = run.inout(before.master);
               float* const moment1 = run.inout(before.moment1);
               float* const moment2 = run.inout(before.moment2);
               optimizer().adamw_step(span_of(master, count), span_of(moment1, count),
                                      span_of(moment2, count), span_of(run.in(before.gradient), count),
                                      kAdamW);
             },
             {{"master", after.master, kTolerance<float>},
              {"moment1", after.moment1, kTolerance<float>},
              {"moment2", after.moment2, kTolerance<float>}});
  }
}

TEST_CASE("adamw: spans that begin at different offsets of their arrays, and nothing outside them changes") {
  constexpr int64_t kCount = 1001;
  const State before = random_state(kCount + 4);
  State part{{before.master.begin() + 1, before.master.begin() + 1 + kCount},
             {before.moment1.begin() + 2, before.moment1.begin() + 2 + kCount},
             {before.moment2.begin(), before.moment2.begin() + kCount},
             {before.gradient.begin() + 3, before.gradient.begin() + 3 + kCount}};
  part = after_adamw(part, kAdamW);
  State whole = before;
  std::copy(part.master.begin(), part.master.end(), whole.master.begin() + 1);
  std::copy(part.moment1.begin(), part.moment1.end(), whole.moment1.begin() + 2);
  std::copy(part.moment2.begin(), part.moment2.end(), whole.moment2.begin());
  check_op(what("adamw_step at offsets", "fp32", {{"count", kCount}}),
           [&](Run& run) {
             float* const master = run.inout(before.master);
             float* const moment1 = run.inout(before.moment1);
             float* const moment2 = run.inout(before.moment2);
             optimizer().adamw_step(span_of(master + 1, kCount), span_of(moment1 + 2, kCount),
                                    span_of(moment2, kCount), span_of(run.in(before.gradient) + 3, kCount),
                                    kAdamW);
           },
           {{"master", whole.master, kTolerance<float>},
            {"moment1", whole.moment1, kTolerance<float>},
            {"moment2", whole.moment2, kTolerance<float>}});
}

TEST_CASE("lamb: the squares, the moments and the step") {
  for (const int64_t count : kCounts) {
    const State before = random_state(count);
    State after = before;
    std::vector<double> squares = {0.0, 0.0};
    const Values rate = {0.03F};
    for (size_t i = 0; i < after.master.size(); ++i) {
      const double g = double{before.gradient[i]} * kLamb.gradient_scale, w = before.master[i];
      after.moment1[i] =
          static_cast<float>(double{kLamb.beta1} * before.moment1[i] + (1.0 - kLamb.beta1) * g);
      after.moment2[i] =
          static_cast<float>(double{kLamb.beta2} * before.moment2[i] + (1.0 - kLamb.beta2) * g * g);
      const double update = after.moment1[i] / kLamb.bias_correction1 /
                                (std::sqrt(after.moment2[i] / kLamb.bias_correction2) + kLamb.epsilon) +
                            kLamb.weight_decay * w;
      squares[0] += w * w;
      squares[1] += update * update;
      after.master[i] = static_cast<float>(w - double{rate[0]} * update);
    }
    check_op(what("lamb", "fp32", {{"count", count}}),
             [&](Run& run) {
               float* const master = run.inout(before.master);
               float* const moment1 = run.inout(before.moment1);
               float* const moment2 = run.inout(before.moment2);
               double* const sums = run.out<double>(2);
               optimizer().lamb_measure(reinterpret_cast<kernels::LambSquares*>(sums),
                                        span_of<const float>(master, count), span_of(moment1, count),
                                        span_of(moment2, count), span_of(run.in(before.gradient), count),
                                        kLamb);
               optimizer().lamb_apply(span_of(master, count), span_of<const float>(moment1, count),
                                      span_of<const float>(moment2, count), run.in(rate), kLamb);
             },
             {{"master", after.master, kTolerance<float>},
              {"moment1", after.moment1, kTolerance<float>},
              {"moment2", after.moment2, kTolerance<float>},
              {"squares", squares, kTolerance<float>}});
  }
}

TEST_CASE("sum of squares: in fp64, of no elements and of millions") {
  for (const int64_t count : kCounts) {
    const Values values = random_values(count, 1);
    std::vector<double> sum = {0.0};
    for (const float value : values) sum[0] += double{value} * value;
    check_op(what("sum_of_squares", "fp32", {{"count", count}}),
             [&](Run& run) {
               double* const out = run.out<double>(1);
               optimizer().sum_of_squares(out, span_of(run.in(values), count));
             },
             {{"sum", sum, 1e-12}});
  }
}

#include "runtime/trainer/optim/lamb.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "runtime/base/counter_random.h"

using namespace shardrun::optim;

namespace {

std::vector<float> random_values(size_t count, uint64_t key) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(shardrun::base::random_normal(key, i));
  return values;
}

// Makes steps of LAMB on whole tensors in fp64, written from the paper's algorithm 2.
struct ByHand {
  std::vector<double> w, m, v;
  bool decays;

  void step(const std::vector<float>& gradient, double scale, double rate, int number) {
    std::vector<double> update(w.size());
    double weights = 0.0, updates = 0.0;
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = double{gradient[i]} * scale;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      update[i] =
          m[i] / (1.0 - std::pow(0.9, number)) / (std::sqrt(v[i] / (1.0 - std::pow(0.999, number))) + 1e-6);
      if (decays) update[i] += 0.01 * w[i];
      weights += w[i] * w[i];
      updates += update[i] * update[i];
    }
    const double trust = decays ? std::sqrt(weights / updates) : 1.0;
    for (size_t i = 0; i < w.size(); ++i) w[i] -= rate * trust * update[i];
  }
};

}  // namespace

TEST_CASE("lamb: one tensor's step is its norm times the rate, along the update") {
  std::vector<float> master{3.0F, 4.0F}, moment1(2), moment2(2);
  const std::vector<float> gradient{0.5F, -20.0F};
  Lamb lamb({{0, 2, 0, true}}, 1, {.epsilon = 0.0, .weight_decay = 0.0}, moment1, moment2);
  std::vector<double> sums(2);

  lamb.measure(master, gradient, 1.0, /*step=*/1, sums);
  lamb.apply(master, /*learning_rate=*/0.1, 1, sums);

  CHECK(sums[0] == doctest::Approx(25.0));
  CHECK(sums[1] == doctest::Approx(2.0));  // Adam's first update is the gradient's sign
  CHECK(master[0] == doctest::Approx(3.0 - 0.5 / std::sqrt(2.0)));
  CHECK(master[1] == doctest::Approx(4.0 + 0.5 / std::sqrt(2.0)));
}

TEST_CASE("lamb: two tensors cut over two ranks take the steps of whole ones") {
  constexpr size_t kFirst = 5003, kSecond = 40, kCut = 3001;  // rank 0 owns [0, kCut)
  std::vector<float> whole = random_values(kFirst + kSecond, 1);
  ByHand first{{whole.begin(), whole.begin() + kFirst}, {}, {}, true};
  ByHand second{{whole.begin() + kFirst, whole.end()}, {}, {}, false};
  for (ByHand* tensor : {&first, &second})
    tensor->m.resize(tensor->w.size()), tensor->v.resize(tensor->w.size());
  std::vector<float> low(whole.begin(), whole.begin() + kCut), high(whole.begin() + kCut, whole.end());
  std::vector<float> m0(low.size()), v0(low.size()), m1(high.size()), v1(high.size());
  Lamb rank0({{0, kCut, 0, true}}, 2, {}, m0, v0);
  Lamb rank1({{0, kFirst - kCut, 0, true}, {kFirst - kCut, kSecond, 1, false}}, 2, {}, m1, v1);

  for (int step = 1; step <= 5; ++step) {
    const std::vector<float> gradient = random_values(whole.size(), static_cast<uint64_t>(step + 1));
    std::vector<double> sums0(4), sums1(4);
    rank0.measure(low, std::span(gradient).first(kCut), 0.5, step, sums0);
    rank1.measure(high, std::span(gradient).subspan(kCut), 0.5, step, sums1);
    for (size_t i = 0; i < 4; ++i) sums0[i] += sums1[i];
    rank0.apply(low, 0.01, step, sums0);
    rank1.apply(high, 0.01, step, sums0);
    first.step({gradient.begin(), gradient.begin() + kFirst}, 0.5, 0.01, step);
    second.step({gradient.begin() + kFirst, gradient.end()}, 0.5, 0.01, step);
  }

  CHECK(low[7] == doctest::Approx(first.w[7]).epsilon(1e-5));
  CHECK(high[1000] == doctest::Approx(first.w[kCut + 1000]).epsilon(1e-5));
  CHECK(high[kFirst - kCut + 39] == doctest::Approx(second.w[39]).epsilon(1e-5));
}

TEST_CASE("lamb: weights of zero and gradients of zero leave no NaN, and padding is never touched") {
  std::vector<float> master(6, 0.0F), moment1(6), moment2(6);
  std::vector<float> gradient{1.0F, 1.0F, 0.0F, 0.0F, 9.0F, 9.0F};
  Lamb lamb({{0, 2, 0, true}, {2, 2, 1, true}}, 2, {}, moment1, moment2);
  std::vector<double> sums(4);

  lamb.measure(master, gradient, 1.0, 1, sums);
  lamb.apply(master, 0.1, 1, sums);

  CHECK(master[0] == doctest::Approx(-0.1).epsilon(1e-4));
  CHECK(master[2] == 0.0F);
  CHECK(master[4] == 0.0F);
  CHECK(moment1[5] == 0.0F);
}

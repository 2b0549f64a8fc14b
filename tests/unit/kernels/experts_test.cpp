// The choice of experts and the rows that move to them, against numbers made by hand and against differences.
#include "runtime/trainer/kernels/experts.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/trainer/kernels/ops.h"

using namespace shardrun;
using kernels::RouterShape;

namespace {

std::vector<float> normal_values(uint64_t seed, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(base::random_normal(seed, static_cast<uint64_t>(i))));
  return values;
}

struct Routed {
  std::vector<float> probabilities, weights;
  std::vector<int32_t> chosen;
};
Routed routed(std::vector<float> logits, const RouterShape& shape) {
  Routed out{std::move(logits), std::vector<float>(shape.N * shape.k),
             std::vector<int32_t>(shape.N * shape.k)};
  kernels::route(out.probabilities.data(), out.chosen.data(), out.weights.data(), shape);
  return out;
}

// Σ (of the weights times `weigh`) + Σ (of the probabilities of counting tokens times `of_expert`).
double objective(const std::vector<float>& logits, const RouterShape& shape, const std::vector<float>& weigh,
                 const std::vector<float>& of_expert, const std::vector<uint8_t>& counts) {
  const Routed out = routed(logits, shape);
  double sum = 0.0;
  for (size_t i = 0; i < weigh.size(); ++i) sum += double{weigh[i]} * out.weights[i];
  for (int64_t n = 0; n < shape.N; ++n)
    for (int64_t e = 0; e < shape.E && counts[n / 2] != 0; ++e)
      sum += double{of_expert[e]} * out.probabilities[n * shape.E + e];
  return sum;
}

}  // namespace

TEST_CASE(
    "experts: a token takes the most probable ones, of equal ones the first, with weights that may add up to "
    "1") {
  const float third = std::log(3.0F);
  const Routed out = routed({0, third, 0, third, /**/ 2, 2, 2, 2}, {2, 4, 3, /*normalize=*/true});

  CHECK(out.chosen == std::vector<int32_t>{1, 3, 0, 0, 1, 2});
  CHECK(out.probabilities[1] == doctest::Approx(3.0 / 8));
  CHECK(out.weights[0] == doctest::Approx(3.0 / 7));
  CHECK(out.weights[2] == doctest::Approx(1.0 / 7));
  CHECK(out.weights[5] == doctest::Approx(1.0 / 3));
  const Routed plain = routed({0, third, 0, third}, {1, 4, 2, /*normalize=*/false});
  CHECK(plain.weights[1] == doctest::Approx(3.0 / 8));
}

TEST_CASE(
    "experts: the logits' gradient is what small differences of the logits say, with balance and without") {
  const std::vector<float> of_expert = normal_values(3, 5);
  const std::vector<uint8_t> counts = {1, 0};
  for (const bool normalize : {true, false}) {
    const RouterShape shape{4, 5, 2, normalize};
    const std::vector<float> logits = normal_values(1, 20), weigh = normal_values(2, 8);
    const Routed out = routed(logits, shape);
    for (const bool balanced : {false, true}) {
      CAPTURE(normalize);
      CAPTURE(balanced);
      std::vector<float> gradient(20);
      kernels::route_backward(gradient.data(), weigh.data(), out.probabilities.data(), out.chosen.data(),
                              shape, {balanced ? of_expert.data() : nullptr, counts.data(), 2});
      const std::vector<float> extra = balanced ? of_expert : std::vector<float>(5);
      for (size_t i = 0; i < logits.size(); ++i) {
        std::vector<float> above = logits, below = logits;
        above[i] += 1e-2F, below[i] -= 1e-2F;
        const double difference =
            (objective(above, shape, weigh, extra, counts) - objective(below, shape, weigh, extra, counts)) /
            (double{above[i]} - below[i]);
        CHECK(gradient[i] == doctest::Approx(difference).epsilon(2e-3).scale(1.0));
      }
    }
  }
}

TEST_CASE("experts: rows go to their places and come back weighed, the same for any number of threads") {
  constexpr int64_t N = 90, k = 3, C = 37, F = 21;
  // Assignment a lies in row places[a]; every seventh row fills up.
  std::vector<int32_t> places, sources;
  for (int32_t a = 0; a < N * k; ++a) {
    if (sources.size() % 7 == 6) sources.push_back(-1);
    places.push_back(static_cast<int32_t>(sources.size()));
    sources.push_back(a);
  }
  const auto rows = static_cast<int64_t>(sources.size());
  const std::vector<float> x = normal_values(1, N * C), weights = normal_values(2, N * k),
                           activated = normal_values(3, rows * F), gradient = normal_values(4, rows * F);
  std::vector<float> first_sums, first_products;
  for (const int threads : {1, 3}) {
    ::omp_set_num_threads(threads);
    std::vector<float> there(rows * C, 7.0F), back(N * C), dactivated = gradient, dweights(N * k);
    kernels::gather_rows(there.data(), sources.data(), x.data(), rows, C, k);
    kernels::combine_rows(back.data(), places.data(), weights.data(), there.data(), N, k, C);
    kernels::weigh_rows(dweights.data(), dactivated.data(), there.data(), activated.data(), weights.data(),
                        sources.data(), rows, F, C);
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t a = sources[r];
      double product = 0.0;
      for (int64_t f = 0; f < F; ++f) product += double{gradient[r * F + f]} * activated[r * F + f];
      if (a >= 0) CHECK(dweights[a] == doctest::Approx(product).epsilon(1e-5).scale(1.0));
      const float weight = a < 0 ? 1.0F : weights[a];
      CHECK(dactivated[r * F] == doctest::Approx(gradient[r * F] * weight));
      CHECK(there[r * C + 1] == doctest::Approx(a < 0 ? 0.0F : x[a / k * C + 1] * weight));
    }
    for (int64_t n = 0; n < N; ++n) {
      const double sum = double{weights[n * k]} + weights[n * k + 1] + weights[n * k + 2];
      CHECK(back[n * C + 5] == doctest::Approx(x[n * C + 5] * sum).epsilon(1e-5).scale(1.0));
    }
    if (threads == 1) first_sums = back, first_products = dweights;
    CHECK(back == first_sums);
    CHECK(dweights == first_products);
  }
  ::omp_set_num_threads(1);
}

TEST_CASE("experts: in bf16 rows move unchanged and sums are rounded once") {
  const std::vector<float> values = {1.0F, 2.0F, 0.5F, 256.0F, 1.0F, 1.0F};
  std::vector<kernels::Bf16> x(6), moved(4), summed(2);
  kernels::fp32_to_bf16(values, std::span(x));
  const std::vector<int32_t> sources = {2, -1}, places = {0, 1, 2};
  const std::vector<float> weights = {1.0F, 1.0F, 1.0F};

  kernels::gather_rows(moved.data(), sources.data(), x.data(), 2, 2, 1);
  kernels::combine_rows(summed.data(), places.data(), weights.data(), x.data(), 1, 3, 2);

  std::vector<float> wide(4), sum(2);
  kernels::bf16_to_fp32(moved, wide);
  kernels::bf16_to_fp32(summed, sum);
  CHECK(wide == std::vector<float>{1.0F, 1.0F, 0.0F, 0.0F});
  // 2 + 256 + 1 = 259, between 258 and 260; in bf16 after each addition it would be 258.
  CHECK(sum == std::vector<float>{2.5F, 260.0F});
}

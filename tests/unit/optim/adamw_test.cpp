#include "runtime/trainer/optim/adamw.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <vector>

using namespace shardrun::optim;

TEST_CASE("adamw: the first step moves every element by the learning rate against its gradient's sign") {
  std::vector<float> master{1.0F, 1.0F}, moment1(2), moment2(2);
  const std::vector<float> gradient{0.5F, -20.0F};
  AdamW adamw({{0, 2, false}}, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 0.0, .weight_decay = 0.1}, moment1,
              moment2);

  adamw.update(master, gradient, /*gradient_scale=*/1.0, /*learning_rate=*/0.01, /*step=*/1);

  CHECK(master[0] == doctest::Approx(0.99));
  CHECK(master[1] == doctest::Approx(1.01));
  CHECK(moment1[0] == doctest::Approx(0.05));
  CHECK(moment2[1] == doctest::Approx(20.0));
}

TEST_CASE("adamw: only ranges that say so decay, and nothing outside the ranges moves") {
  std::vector<float> master(6, 1.0F), moment1(6), moment2(6);
  const std::vector<float> gradient(6, 0.0F);
  AdamW adamw({{0, 2, true}, {2, 2, false}}, {.weight_decay = 0.5}, moment1, moment2);

  adamw.update(master, gradient, 1.0, /*learning_rate=*/0.1, 1);

  CHECK(master[1] == doctest::Approx(0.95));
  CHECK(master[2] == 1.0F);
  CHECK(master[5] == 1.0F);
}

TEST_CASE("adamw: five steps by hand agree") {
  std::vector<float> master{0.3F}, moment1(1), moment2(1);
  AdamW adamw({{0, 1, true}}, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1}, moment1,
              moment2);
  double parameter = 0.3, m = 0.0, v = 0.0;
  for (int step = 1; step <= 5; ++step) {
    const double gradient = 0.2 * step - 0.5, scaled = gradient * 0.5;
    m = 0.9 * m + 0.1 * scaled;
    v = 0.95 * v + 0.05 * scaled * scaled;
    const double direction =
        m / (1 - std::pow(0.9, step)) / (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-8);
    parameter -= 0.01 * (direction + 0.1 * parameter);

    const std::vector<float> gradients{static_cast<float>(gradient)};
    adamw.update(master, gradients, /*gradient_scale=*/0.5, /*learning_rate=*/0.01, step);
  }

  CHECK(master[0] == doctest::Approx(parameter).epsilon(1e-5));
}

TEST_CASE("clipping: scales down to the norm, never up, and 0 means off") {
  CHECK(clip_scale(4.0, 1.0) == doctest::Approx(0.25));
  CHECK(clip_scale(0.5, 1.0) == 1.0);
  CHECK(clip_scale(4.0, 0.0) == 1.0);
}

TEST_CASE("sum of squares: is in fp64 and counts every element") {
  std::vector<float> values(1003, 1.0F);
  values[0] = 1e4F;

  CHECK(sum_of_squares(values) == 1e8 + 1002);
  CHECK(sum_of_squares({}) == 0.0);
}

TEST_CASE("sum of squares: has the same bits on any number of threads") {
  std::vector<float> values(5'000'003);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0F / static_cast<float>(i + 3);
  const int before = omp_get_max_threads();

  omp_set_num_threads(1);
  const double alone = sum_of_squares(values);
  for (const int threads : {2, 3, 7}) {
    omp_set_num_threads(threads);
    CHECK(sum_of_squares(values) == alone);
  }

  omp_set_num_threads(before);
  CHECK(alone == doctest::Approx(0.3949339).epsilon(1e-6));  // the sum of 1/k² from 3 on
}

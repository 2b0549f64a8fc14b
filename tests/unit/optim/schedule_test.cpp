#include "runtime/trainer/optim/schedule.h"

#include <doctest/doctest.h>

using namespace shardrun::optim;

TEST_CASE("schedule: warm-up rises linearly and reaches the peak in its last step") {
  const ScheduleOptions options{Schedule::kConstant, 1.0, 0.0, 4, 10};

  CHECK(learning_rate(options, 0) == doctest::Approx(0.25));
  CHECK(learning_rate(options, 3) == doctest::Approx(1.0));
  CHECK(learning_rate(options, 9) == doctest::Approx(1.0));
}

TEST_CASE("schedule: cosine starts at the peak, is half way in the middle and would end at the minimum") {
  const ScheduleOptions options{Schedule::kCosine, 1.0, 0.2, 2, 12};

  CHECK(learning_rate(options, 2) == doctest::Approx(1.0));
  CHECK(learning_rate(options, 7) == doctest::Approx(0.6));
  CHECK(learning_rate(options, 12) == doctest::Approx(0.2));
}

TEST_CASE("schedule: linear falls by equal parts") {
  const ScheduleOptions options{Schedule::kLinear, 1.0, 0.0, 0, 4};

  CHECK(learning_rate(options, 0) == doctest::Approx(1.0));
  CHECK(learning_rate(options, 1) == doctest::Approx(0.75));
  CHECK(learning_rate(options, 3) == doctest::Approx(0.25));
}

TEST_CASE("schedule: a run that is all warm-up never divides by zero and never leaves the peak") {
  const ScheduleOptions options{Schedule::kCosine, 1.0, 0.0, 5, 5};

  CHECK(learning_rate(options, 4) == doctest::Approx(1.0));
  CHECK(learning_rate(options, 5) == doctest::Approx(1.0));
}

TEST_CASE("schedule: warm-up, stable, decay stays at the peak and falls along a line in its last steps") {
  const ScheduleOptions options{Schedule::kWarmupStableDecay, 1.0, 0.2, 2, 12, 4};

  CHECK(learning_rate(options, 0) == doctest::Approx(0.5));
  CHECK(learning_rate(options, 2) == doctest::Approx(1.0));
  CHECK(learning_rate(options, 8) == doctest::Approx(1.0));
  CHECK(learning_rate(options, 10) == doctest::Approx(0.6));
  CHECK(learning_rate(options, 11) == doctest::Approx(0.4));
}

TEST_CASE("schedule: without decay steps, warm-up, stable, decay ends at the peak") {
  const ScheduleOptions options{Schedule::kWarmupStableDecay, 1.0, 0.0, 0, 5, 0};

  CHECK(learning_rate(options, 4) == 1.0);
}

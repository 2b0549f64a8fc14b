#include "runtime/trainer/generate/sampling.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

using namespace shardrun;
using generate::check_logits;
using generate::next_token;
using generate::Sampling;

namespace {

// How often each of four tokens is drawn in 10,000 times.
std::array<int, 4> counts(const std::vector<float>& logits, Sampling sampling) {
  std::array<int, 4> drawn{};
  for (int64_t i = 0; i < 10000; ++i) ++drawn[static_cast<size_t>(next_token(logits, sampling, i))];
  return drawn;
}
const float kHalf = std::log(0.5f), kQuarter = std::log(0.25f), kEighth = std::log(0.125f);

}  // namespace

TEST_CASE("sampling: without temperature the likeliest token follows, of equal ones the lower") {
  CHECK_EQ(next_token(std::vector<float>{1.0f, 3.0f, 3.0f, -1.0f}, {}, 0), 1);
}

TEST_CASE("sampling: logits of damaged weights are an error, and minus infinity for some tokens is none") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  CHECK(check_logits(std::vector<float>{1.0F, -kInfinity, 0.5F}));
  CHECK_FALSE(check_logits(std::vector<float>{1.0F, kNan, 0.5F}));
  CHECK_FALSE(check_logits(std::vector<float>{kNan, 1.0F}));
  CHECK_FALSE(check_logits(std::vector<float>{kInfinity, 1.0F}));
  CHECK_FALSE(check_logits(std::vector<float>{-kInfinity, -kInfinity}));
}

TEST_CASE("sampling: tokens are drawn as often as the softmax says, sharper at a low temperature") {
  const std::vector<float> logits{kEighth, kHalf, kEighth, kQuarter};

  const auto plain = counts(logits, {.temperature = 1.0});
  CHECK(plain[0] == doctest::Approx(1250).epsilon(0.15));
  CHECK(plain[1] == doctest::Approx(5000).epsilon(0.05));
  CHECK(plain[3] == doctest::Approx(2500).epsilon(0.08));
  // Squared odds: 1, 16, 1, 4 of 22.
  CHECK(counts(logits, {.temperature = 0.5})[1] == doctest::Approx(10000 * 16.0 / 22).epsilon(0.05));
}

TEST_CASE("sampling: top_p leaves the likeliest tokens that reach it, at least one") {
  const std::vector<float> logits{kEighth, kHalf, kEighth, kQuarter};

  const auto three_quarters = counts(logits, {.temperature = 1.0, .top_p = 0.75});
  CHECK_EQ(three_quarters[0] + three_quarters[2], 0);
  CHECK(three_quarters[1] == doctest::Approx(10000 * 2.0 / 3).epsilon(0.05));
  CHECK_EQ(counts(logits, {.temperature = 1.0, .top_p = 0.0})[1], 10000);
}

TEST_CASE("sampling: a seed gives the same tokens again, another one others") {
  const std::vector<float> logits{kQuarter, kQuarter, kQuarter, kQuarter};
  std::vector<int32_t> first, again, other;
  for (int64_t i = 0; i < 32; ++i) {
    first.push_back(next_token(logits, {.temperature = 1.0, .seed = 7}, i));
    again.push_back(next_token(logits, {.temperature = 1.0, .seed = 7}, i));
    other.push_back(next_token(logits, {.temperature = 1.0, .seed = 8}, i));
  }
  CHECK(first == again);
  CHECK(first != other);
}

TEST_CASE("sampling: the logarithm of a token's probability, however large the logits are") {
  const std::vector<float> even{5.0F, 5.0F, 5.0F, 5.0F}, far{1000.0F, 1000.0F, 0.0F};
  CHECK(generate::log_probability(even, 2) == doctest::Approx(std::log(0.25)));
  CHECK(generate::log_probability(far, 0) == doctest::Approx(std::log(0.5)));
  CHECK(generate::log_probability(far, 2) == doctest::Approx(-1000.0 - std::log(2.0)));
}

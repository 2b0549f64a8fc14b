#include <doctest/doctest.h>

#include <algorithm>
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

struct Shape {
  int64_t N, V;
};
constexpr Shape kShapes[] = {{0, 8}, {1, 1}, {1, 5}, {21, 259}, {3, 2048}, {9, 32000}, {5, 50257}, {700, 24}};
constexpr float kLossScale = 0.25F;
constexpr double kLossTolerance = 1e-6;

// Every fifth row carries no loss.
std::vector<int32_t> targets_of(const Shape& s) {
  std::vector<int32_t> targets = random_tokens(s.N, s.V, 2);
  for (size_t n = 2; n < targets.size(); n += 5) targets[n] = -1;
  return targets;
}

struct Answer {
  Values dlogits;
  std::vector<double> loss;
};
Answer answer_of(const Values& logits, const std::vector<int32_t>& targets, const Shape& s) {
  Answer answer{Values(logits.size()), {}};
  answer.loss.push_back(
      reference::cross_entropy(answer.dlogits.data(), logits.data(), targets.data(), s.N, s.V, kLossScale));
  return answer;
}

}  // namespace

TEST_CASE_TEMPLATE("cross-entropy: loss and gradient, and a target of -1 carries neither", T, float, Bf16) {
  for (const Shape& s : kShapes) {
    const Values logits = random_values(s.N * s.V, 12, 4.0F);
    const auto targets = targets_of(s);
    const Answer answer = answer_of(logits, targets, s);
    check_op(what("cross_entropy", kDType<T>, {{"N", s.N}, {"V", s.V}}),
             [&](Run& run) {
               T* const dlogits = run.out<T>(s.N * s.V);
               double* const loss = run.out<double>(1);
               ops<T>().classifier.cross_entropy(loss, dlogits, run.in(logits), run.in(targets), s.N, s.V,
                                                 kLossScale);
             },
             {{"dlogits", answer.dlogits, kTolerance<T>}, {"loss", answer.loss, kLossTolerance}});
  }
}

TEST_CASE("cross-entropy: in place") {
  for (const Shape& s : kShapes) {
    const Values logits = random_values(s.N * s.V, 12, 4.0F);
    const auto targets = targets_of(s);
    const Answer answer = answer_of(logits, targets, s);
    check_op(what("cross_entropy in place", "fp32", {{"N", s.N}, {"V", s.V}}),
             [&](Run& run) {
               float* const both = run.inout(logits);
               double* const loss = run.out<double>(1);
               ops<float>().classifier.cross_entropy(loss, both, both, run.in(targets), s.N, s.V, kLossScale);
             },
             {{"dlogits", answer.dlogits, kTolerance<float>}, {"loss", answer.loss, kLossTolerance}});
  }
}

TEST_CASE("cross-entropy: logits of minus infinity have no share, and very large ones do not overflow") {
  const Shape s{2, 6};
  const float masked = -std::numeric_limits<float>::infinity();
  const Values logits = {masked, 2.0F, 3.0F, masked, 1.0F, masked, 3e38F, 1.0F, -3e38F, 3e38F, 0.0F, 5.0F};
  const std::vector<int32_t> targets = {1, 3};
  const Answer answer = answer_of(logits, targets, s);
  check_op(what("cross_entropy of extreme logits", "fp32", {{"N", s.N}, {"V", s.V}}),
           [&](Run& run) {
             float* const dlogits = run.out<float>(12);
             double* const loss = run.out<double>(1);
             ops<float>().classifier.cross_entropy(loss, dlogits, run.in(logits), run.in(targets), s.N, s.V,
                                                   kLossScale);
           },
           {{"dlogits", answer.dlogits, kTolerance<float>}, {"loss", answer.loss, kLossTolerance}});
}

TEST_CASE_TEMPLATE("cross-entropy: slices of the vocabulary give the whole one's loss and gradient", T, float,
                   Bf16) {
  constexpr int kRanks = 3;
  for (const Shape& s : {Shape{0, 24}, {21, 259 * kRanks}, {7, 1024 * kRanks}}) {
    const int64_t V = s.V / kRanks, N = s.N, kStats = kernels::kSliceStats;
    const Values logits = random_values(s.N * s.V, 12, 4.0F);
    const auto targets = targets_of(s);
    const Answer answer = answer_of(logits, targets, s);
    std::vector<Values> slices(kRanks), gradients(kRanks);
    std::vector<double> stats;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      for (int64_t n = 0; n < N; ++n) {
        const auto begin = static_cast<std::ptrdiff_t>(n * s.V + rank * V),
                   end = begin + static_cast<std::ptrdiff_t>(V);
        auto& slice = slices[static_cast<size_t>(rank)];
        auto& gradient = gradients[static_cast<size_t>(rank)];
        slice.insert(slice.end(), logits.begin() + begin, logits.begin() + end);
        gradient.insert(gradient.end(), answer.dlogits.begin() + begin, answer.dlogits.begin() + end);
        const double largest = *std::max_element(logits.begin() + begin, logits.begin() + end);
        double sum = 0.0;
        for (auto i = begin; i < end; ++i) sum += std::exp(double{logits[static_cast<size_t>(i)]} - largest);
        const int64_t target = targets[static_cast<size_t>(n)] - rank * V;
        stats.insert(stats.end(),
                     {largest, sum,
                      target >= 0 && target < V ? double{logits[static_cast<size_t>(begin + target)]} : 0.0});
      }
    }
    std::vector<double> losses(kRanks, answer.loss.front());
    check_op(what("cross_entropy_slice", kDType<T>, {{"N", N}, {"V", V}, {"ranks", kRanks}}),
             [&](Run& run) {
               float* const gathered = run.out<float>(kRanks * N * kStats);
               double* const loss = run.out<double>(kRanks);
               const int32_t* const ids = run.in(targets);
               const float* in[kRanks];
               for (int rank = 0; rank < kRanks; ++rank) {
                 in[rank] = run.in(slices[static_cast<size_t>(rank)]);
                 ops<T>().classifier.slice_stats(gathered + rank * N * kStats, in[rank], ids, N, V, rank * V);
               }
               for (int rank = 0; rank < kRanks; ++rank) {
                 T* const dlogits = run.out<T>(N * V);
                 ops<T>().classifier.cross_entropy_slice(loss + rank, dlogits, in[rank],
                                                         static_cast<const float*>(gathered), ids, N, V,
                                                         rank * V, kRanks, kLossScale);
               }
             },
             {{"stats", stats, kTolerance<float>},
              {"loss", losses, kLossTolerance},
              {"dlogits 0", gradients[0], kTolerance<T>},
              {"dlogits 1", gradients[1], kTolerance<T>},
              {"dlogits 2", gradients[2], kTolerance<T>}});
  }
}

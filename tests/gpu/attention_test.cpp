#include <doctest/doctest.h>

#include <cmath>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "runtime/trainer/kernels/cuda/tiles.h"
#include "tests/gpu/harness.h"
#include "tests/support/reference_ops.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;
namespace reference = kernels::reference;
using kernels::AttentionShape;
using kernels::Visibility;

namespace {

// Returns the log of the softmax's denominators, 0 where nothing is seen.
std::vector<double> log_sums(const Values& qkv, const AttentionShape& s, const Visibility& v) {
  std::vector<double> out;
  for (int64_t b = 0; b < s.B; ++b) {
    const cuda::Sight sight{static_cast<int32_t>(s.T),
                            v.lengths == nullptr ? static_cast<int32_t>(s.T) : v.lengths[b],
                            v.begins == nullptr ? nullptr : v.begins + b * s.T, v.causal};
    const auto row = [&](int64_t t, int64_t head) {
      return qkv.data() + (b * s.T + t) * s.qkv_stride() + head * s.D;
    };
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t t = 0; t < s.T; ++t) {
        double sum = 0.0;
        for (int64_t u = 0; u < s.T; ++u) {
          if (!sight.sees(static_cast<int32_t>(t), static_cast<int32_t>(u))) continue;
          double score = 0.0;
          for (int64_t d = 0; d < s.D; ++d) score += double{row(t, h)[d]} * row(u, s.H + h / (s.H / s.K))[d];
          sum += std::exp(score / std::sqrt(static_cast<double>(s.D)));
        }
        out.push_back(sum > 0.0 ? std::log(sum) : 0.0);
      }
    }
  }
  return out;
}

struct Host {
  bool causal;
  std::vector<int32_t> begins, lengths;  // empty: none
};

// Checks forward, then backward from what forward gave.
template <typename T>
void check_attention(const AttentionShape& s, const Host& host) {
  const int64_t N = s.B * s.T;
  const auto qkv = as<T>(random_values(N * s.qkv_stride(), 8)), dout = as<T>(random_values(N * s.H * s.D, 9));
  const Visibility visibility{host.causal, host.begins.empty() ? nullptr : host.begins.data(),
                              host.lengths.empty() ? nullptr : host.lengths.data()};
  Values out(dout.size()), dqkv(qkv.size());
  reference::attention_forward(out.data(), back(qkv).data(), s, visibility);
  reference::attention_backward(dqkv.data(), back(dout).data(), back(qkv).data(), s, visibility);
  const auto has = [](const std::vector<int32_t>& values) {
    return static_cast<int64_t>(values.empty() ? 0 : 1);
  };
  check_op(what("attention", kDType<T>,
                {{"B", s.B},
                 {"T", s.T},
                 {"H", s.H},
                 {"K", s.K},
                 {"D", s.D},
                 {"causal", host.causal ? 1 : 0},
                 {"documents", has(host.begins)},
                 {"padding", has(host.lengths)}}),
           [&](Run& run) {
             T* const got = run.out<T>(N * s.H * s.D);
             float* const lse = run.out<float>(N * s.H);
             T* const gradient = run.out<T>(N * s.qkv_stride());
             const T* const in = run.in(qkv);
             const Visibility there{host.causal, host.begins.empty() ? nullptr : run.in(host.begins),
                                    host.lengths.empty() ? nullptr : run.in(host.lengths)};
             ops<T>().attention.forward(got, lse, in, s, there);
             ops<T>().attention.backward(gradient, run.in(dout), static_cast<const T*>(got), in,
                                         static_cast<const float*>(lse), s, there);
           },
           {{"out", out, kTolerance<T>},
            // Tensor cores sum scores of bf16, and cut what they add.
            {"lse", log_sums(back(qkv), s, visibility), std::is_same_v<T, Bf16> ? 1e-5 : kTolerance<float>},
            {"dqkv", dqkv, 2 * kTolerance<T>}});  // the rounded output enters delta
}

// Returns documents of 1, 40, 64 and the remaining tokens.
std::vector<int32_t> documents(const AttentionShape& s) {
  std::vector<int32_t> begins;
  for (int64_t n = 0; n < s.B * s.T; ++n) {
    const int64_t t = n % s.T;
    begins.push_back(t < 1 ? 0 : t < 41 ? 1 : t < 105 ? 41 : 105);
  }
  return begins;
}

}  // namespace

TEST_CASE("attention: plain kernels, in fp32, for heads of any size") {
  for (const AttentionShape& s : {AttentionShape{1, 1, 1, 1, 2},
                                  {2, 33, 4, 2, 6},
                                  {1, 129, 2, 1, 16},
                                  {2, 70, 3, 3, 10},
                                  {1, 65, 8, 2, 64},
                                  {1, 130, 2, 2, 200},
                                  {1, 5, 1, 1, 256}}) {
    check_attention<float>(s, {.causal = true, .begins = {}, .lengths = {}});
    check_attention<float>(s, {.causal = false, .begins = {}, .lengths = {}});
  }
}

TEST_CASE("attention: plain kernels, in bf16, for heads that the tensor cores do not take") {
  for (const AttentionShape& s : {AttentionShape{2, 70, 3, 1, 10}, {1, 64, 2, 2, 96}}) {
    check_attention<Bf16>(s, {.causal = true, .begins = {}, .lengths = {}});
  }
}

TEST_CASE("attention: tensor cores, causal and not, at lengths around a tile") {
  for (const int64_t D : {64, 128}) {
    for (const int64_t T : {1, 63, 64, 65, 127, 128, 200}) {
      for (const bool is_causal : {true, false}) {
        check_attention<Bf16>({1, T, 3, 1, D}, {.causal = is_causal, .begins = {}, .lengths = {}});
      }
    }
    check_attention<Bf16>({3, 70, 8, 2, D}, {.causal = true, .begins = {}, .lengths = {}});
    check_attention<Bf16>({2, 65, 3, 3, D}, {.causal = true, .begins = {}, .lengths = {}});
    check_attention<Bf16>({1, 65, 1, 1, D}, {.causal = true, .begins = {}, .lengths = {}});
  }
}

TEST_CASE_TEMPLATE("attention: documents, padding and both directions", T, float, Bf16) {
  for (const int64_t D : {10, 64, 128}) {
    const AttentionShape s{3, 200, 2, 1, D};
    const std::vector<int32_t> lengths = {200, 97, 0};
    for (const bool is_causal : {false, true}) {
      check_attention<T>(s, {.causal = is_causal, .begins = documents(s), .lengths = {}});
      check_attention<T>(s, {.causal = is_causal, .begins = {}, .lengths = lengths});
      check_attention<T>(s, {.causal = is_causal, .begins = documents(s), .lengths = lengths});
    }
  }
}

TEST_CASE("attention: scores far from zero neither overflow nor vanish") {
  const AttentionShape s{1, 130, 2, 2, 64};
  const auto qkv = as<Bf16>(random_values(s.T * s.qkv_stride(), 8, 6.0F));
  Values out(static_cast<size_t>(s.T * s.H * s.D));
  reference::attention_forward(out.data(), back(qkv).data(), s);
  check_op(what("attention_forward of large scores", "bf16", {{"T", s.T}, {"H", s.H}, {"D", s.D}}),
           [&](Run& run) {
             Bf16* const got = run.out<Bf16>(s.T * s.H * s.D);
             float* const lse = run.out<float>(s.T * s.H);
             ops<Bf16>().attention.forward(got, lse, run.in(qkv), s);
           },
           {{"out", out, kTolerance<Bf16>}, {"lse", log_sums(back(qkv), s, {}), 1e-5}});
}

TEST_CASE("attention: equal scores weigh equally in every tile, however large they are") {
  const AttentionShape s{1, 192, 1, 1, 64};
  Values qkv;  // values of 1 in the first tile of keys, -1 in the last
  for (int64_t t = 0; t < s.T; ++t) {
    qkv.insert(qkv.end(), 2 * static_cast<size_t>(s.D), 3.0F);
    qkv.insert(qkv.end(), static_cast<size_t>(s.D), t < 64 ? 1.0F : t < 128 ? 0.0F : -1.0F);
  }
  check_op(what("attention_forward of equal scores", "bf16", {{"T", s.T}, {"D", s.D}}),
           [&](Run& run) {
             Bf16* const got = run.out<Bf16>(s.T * s.D);
             float* const lse = run.out<float>(s.T);
             ops<Bf16>().attention.forward(got, lse, run.in(as<Bf16>(qkv)), s, {.causal = false});
           },
           {{"out", Values(static_cast<size_t>(s.T * s.D), 0.0F), kExact},
            {"lse", std::vector<double>(static_cast<size_t>(s.T), 72.0 + std::log(192.0)), 1e-6}});
}

TEST_CASE("attention: by cuDNN, where it is, in bf16, and by our kernels again afterwards") {
  for (const AttentionShape& s :
       {AttentionShape{2, 256, 8, 2, 64}, {1, 1001, 4, 4, 128}, {2, 64, 3, 1, 128}}) {
    for (const bool is_causal : {true, false}) {
      const auto used = device().use_cudnn_attention(s, is_causal, /*most_bytes=*/int64_t{1} << 30);
      // Nothing of cuDNN's is tested then, which the warning says.
      WARN_MESSAGE(used, "not run by cuDNN: ", used ? "" : used.error().to_string());
      CHECK_EQ(device().cudnn_version() >= 90800, used.has_value());
      check_attention<Bf16>(s, {.causal = is_causal, .begins = {}, .lengths = {}});
      device().use_own_attention();
      CHECK_EQ(device().cudnn_version(), 0);
    }
  }
}

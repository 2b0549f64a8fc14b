// Tests each op against what PyTorch gives for the same input: peers/ops.txt, written by tests/peers/ops.py.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/plan/model/rotary.h"
#include "tests/unit/kernels/cpu_ops.h"

using namespace shardrun;
using tests::ops;
using tests::Values;

namespace {

// Relative distances below this are rounding in fp32.
constexpr double kRounding = 1e-6;

// Returns the tensors of the file by name.
const std::map<std::string, Values>& peers() {
  static const std::map<std::string, Values> tensors = [] {
    std::map<std::string, Values> read;
    std::ifstream file(SOURCE_DIR "/tests/unit/kernels/peers/ops.txt");
    std::string line, name;
    std::getline(file, line);  // says what it is
    size_t count = 0;
    while (file >> name >> count) {
      Values& values = read[name];
      values.resize(count);
      for (float& value : values) file >> value;
    }
    return read;
  }();
  return tensors;
}

Values normal(uint64_t key, int64_t count, double spread = 1.0) {
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(spread * base::random_normal(key, i));
  }
  return values;
}

std::vector<int32_t> integers(uint64_t key, size_t count, uint64_t limit) {
  std::vector<int32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(base::random_bits(key, i) % limit);
  return values;
}

void check_near(const Values& ours, const std::string& name) {
  CAPTURE(name);
  REQUIRE_EQ(peers().count(name), 1);
  const Values& theirs = peers().at(name);
  REQUIRE_EQ(ours.size(), theirs.size());
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < ours.size(); ++i) {
    difference += std::pow(double{ours[i]} - theirs[i], 2);
    norm += std::pow(double{theirs[i]}, 2);
  }
  CHECK_LT(std::sqrt(difference / norm), kRounding);
}

Values sized_as(const Values& other) {
  return Values(other.size(), std::nanf(""));
}

void check_attention(const std::string& name, const kernels::AttentionShape& shape,
                     const kernels::Visibility& visibility) {
  const Values qkv = normal(1, shape.B * shape.T * shape.qkv_stride());
  const Values dout = normal(2, shape.B * shape.T * shape.H * shape.D);
  Values out = sized_as(dout), dqkv = sized_as(qkv), lse(static_cast<size_t>(shape.B * shape.H * shape.T));

  ops<float>().attention.forward(out.data(), lse.data(), qkv.data(), shape, visibility);
  ops<float>().attention.backward(dqkv.data(), dout.data(), out.data(), qkv.data(), lse.data(), shape,
                                  visibility);

  check_near(out, name);
  check_near(dqkv, name + ".d0");
}

}  // namespace

TEST_CASE("peers: attention is PyTorch's, with shared key heads, documents, padding and both directions") {
  std::vector<int32_t> documents(70, 64);
  std::fill(documents.begin(), documents.begin() + 64, 26);
  std::fill(documents.begin(), documents.begin() + 26, 1);
  documents[0] = 0;
  const std::vector<int32_t> two_lengths = {37, 21}, one_length = {66};
  check_attention("attention.causal", {1, 70, 4, 2, 6}, {});
  check_attention("attention.causal.documents", {1, 70, 4, 1, 4}, {true, documents.data(), nullptr});
  check_attention("attention.padding", {2, 37, 2, 2, 5}, {false, nullptr, two_lengths.data()});
  check_attention("attention.documents.padding", {1, 70, 2, 2, 4},
                  {false, documents.data(), one_length.data()});
}

TEST_CASE("peers: a linear layer with bias is PyTorch's") {
  constexpr int64_t N = 5, C = 17, O = 9;
  const Values x = normal(3, N * C), w = normal(4, O * C), bias = normal(5, O), dy = normal(6, N * O);
  Values y = sized_as(dy), dx = sized_as(x), dw = sized_as(w), dbias = sized_as(bias);

  ops<float>().products.linear_bias_forward(y.data(), x.data(), w.data(), bias.data(), N, C, O);
  ops<float>().products.linear_backward_input(dx.data(), dy.data(), w.data(), N, C, O);
  ops<float>().products.linear_backward_weight(dw.data(), dy.data(), x.data(), N, C, O, /*accumulate=*/false);
  ops<float>().products.bias_backward(dbias.data(), dy.data(), N, O, /*accumulate=*/false);

  check_near(y, "linear");
  check_near(dx, "linear.d0");
  check_near(dw, "linear.d1");
  check_near(dbias, "linear.d2");
}

TEST_CASE("peers: both norms are PyTorch's") {
  constexpr int64_t N = 5, C = 17;
  Values x = normal(3, N * C);
  const Values gamma = normal(4, C), beta = normal(5, C), dy = normal(6, N * C);
  Values y = sized_as(x), dx = sized_as(x), dgamma = sized_as(gamma), dbeta = sized_as(beta), mean(N),
         rstd(N);

  ops<float>().norms.layernorm_forward(y.data(), mean.data(), rstd.data(), x.data(), nullptr, gamma.data(),
                                       beta.data(), N, C, 1e-12f);
  ops<float>().norms.layernorm_backward(dx.data(), dgamma.data(), dbeta.data(), dy.data(), x.data(),
                                        gamma.data(), mean.data(), rstd.data(), N, C);
  check_near(y, "layernorm");
  check_near(dx, "layernorm.d0");
  check_near(dgamma, "layernorm.d1");
  check_near(dbeta, "layernorm.d2");

  ops<float>().norms.rmsnorm_forward(y.data(), rstd.data(), x.data(), gamma.data(), N, C, 1e-5f);
  std::fill(dx.begin(), dx.end(), 0.0f);  // rmsnorm adds to the residual's gradient
  ops<float>().norms.rmsnorm_backward(dx.data(), dgamma.data(), dy.data(), x.data(), gamma.data(),
                                      rstd.data(), N, C);
  check_near(y, "rmsnorm");
  check_near(dx, "rmsnorm.d0");
  check_near(dgamma, "rmsnorm.d1");
}

TEST_CASE("peers: GELU, tanh and SwiGLU are PyTorch's") {
  const Values x = normal(3, 301, 3.0), dy = normal(6, 301);
  Values y = sized_as(x), dx = sized_as(x);
  ops<float>().pointwise.gelu_forward(y.data(), x.data(), 301);
  ops<float>().pointwise.gelu_backward(dx.data(), dy.data(), x.data(), 301);
  check_near(y, "gelu");
  check_near(dx, "gelu.d0");

  ops<float>().pointwise.tanh_forward(y.data(), x.data(), 301);
  ops<float>().pointwise.tanh_backward(dx.data(), dy.data(), y.data(), 301);
  check_near(y, "tanh");
  check_near(dx, "tanh.d0");

  constexpr int64_t N = 7, F = 13;
  const Values gate_up = normal(3, N * 2 * F), dgated = normal(6, N * F);
  Values gated = sized_as(dgated), dgate_up = sized_as(gate_up);
  ops<float>().pointwise.swiglu_forward(gated.data(), gate_up.data(), N, F);
  ops<float>().pointwise.swiglu_backward(dgate_up.data(), dgated.data(), gate_up.data(), N, F);
  check_near(gated, "swiglu");
  check_near(dgate_up, "swiglu.d0");
}

TEST_CASE("peers: the rotary embedding is that of LlamaForCausalLM") {
  constexpr int64_t B = 2, T = 11, H = 3, D = 8;
  Values x = normal(3, B * T * H * D);
  const Values table = plan::rope_table(T, D, 10000.0);
  ops<float>().attention.rope(x.data(), table.data(), B, T, H, D, H * D, /*inverse=*/false);
  check_near(x, "rope");
}

TEST_CASE("peers: cross-entropy is PyTorch's, summed over the targets that are there") {
  constexpr int64_t N = 7, V = 31;
  const Values logits = normal(3, N * V, 4.0);
  std::vector<int32_t> targets = integers(7, N, V);
  targets[2] = -1;
  Values dlogits = sized_as(logits);
  double loss = 0.0;
  ops<float>().classifier.cross_entropy(&loss, dlogits.data(), logits.data(), targets.data(), N, V, 0.25f);
  check_near({static_cast<float>(loss)}, "cross_entropy");
  check_near(dlogits, "cross_entropy.d0");
}

TEST_CASE("peers: BERT's sum of embeddings is PyTorch's") {
  constexpr int64_t N = 10, C = 6;
  const Values word = normal(3, 13 * C), position = normal(4, 5 * C), type = normal(5, 2 * C),
               dy = normal(6, N * C);
  const std::vector<int32_t> tokens = integers(7, N, 13), types = integers(8, N, 2);
  const std::vector<int32_t> positions = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4};
  Values y = sized_as(dy), dword = sized_as(word), dposition = sized_as(position), dtype = sized_as(type);
  ops<float>().embedding.sum_forward(y.data(), tokens.data(), positions.data(), types.data(), word.data(),
                                     position.data(), type.data(), N, C);
  ops<float>().embedding.backward(dword.data(), tokens.data(), dy.data(), N, C, 13);
  ops<float>().embedding.backward(dposition.data(), positions.data(), dy.data(), N, C, 5);
  ops<float>().embedding.backward(dtype.data(), types.data(), dy.data(), N, C, 2);
  check_near(y, "embedding");
  check_near(dword, "embedding.d0");
  check_near(dposition, "embedding.d1");
  check_near(dtype, "embedding.d2");
}

TEST_CASE("peers: three steps of AdamW are PyTorch's") {
  Values master = normal(3, 50), moment1(50), moment2(50);
  for (int step = 1; step <= 3; ++step) {
    const auto correction = [&](double beta) { return static_cast<float>(1.0 - std::pow(beta, step)); };
    kernels::cpu_backend().optimizer().adamw_step(master, moment1, moment2,
                                                  normal(static_cast<uint64_t>(9 + step), 50),
                                                  {.learning_rate = 1e-2f,
                                                   .beta1 = 0.9f,
                                                   .beta2 = 0.95f,
                                                   .epsilon = 1e-8f,
                                                   .weight_decay = 0.1f,
                                                   .gradient_scale = 1.0f,
                                                   .bias_correction1 = correction(0.9),
                                                   .bias_correction2 = correction(0.95)});
  }
  check_near(master, "adamw");
}

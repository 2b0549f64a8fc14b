// Kernels made by the real compiler: they compute what the library computes, and a model's list of them is complete.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/trainer/compile/load.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"
#include "tests/support/folder.h"

using namespace shardrun;
using kernels::Bf16;
using kernels::DType;
using kernels::KernelShape;
using kernels::Op;
namespace fs = std::filesystem;

namespace {

// One cache for the whole test program, removed at its end.
// Compiles, loads and installs the shapes, in place of those that were installed before.
void use(const std::vector<KernelShape>& shapes) {
  static const tests::Folder cache;
  kernels::forget_all();
  const auto opened = compile::KernelCache::open(cache.path());
  REQUIRE(opened);
  const auto compiler = compile::CxxCompiler::find();
  REQUIRE(compiler);
  compile::PrepareOptions options;
  options.workers = 2;
  const auto prepared = compile::prepare(*opened, *compiler, shapes, options);
  REQUIRE_MESSAGE(prepared, (prepared ? "" : prepared.error().to_string()));
  REQUIRE(compile::load(prepared->kernels));
}

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, float> ? DType::kFp32 : DType::kBf16;

template <typename T>
std::vector<T> random_values(int64_t count, uint64_t key) {
  std::vector<float> wide(static_cast<size_t>(count));
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(base::random_normal(key, i));
  if constexpr (std::is_same_v<T, float>) {
    return wide;
  } else {
    std::vector<Bf16> narrow(wide.size());
    kernels::fp32_to_bf16(wide, std::span(narrow));
    return narrow;
  }
}

std::vector<float> wide(const std::vector<float>& values) {
  return values;
}
std::vector<float> wide(const std::vector<Bf16>& values) {
  std::vector<float> result(values.size());
  kernels::bf16_to_fp32(values, result);
  return result;
}

// Largest difference, in parts of the largest value.
template <typename T>
double difference(const std::vector<T>& left, const std::vector<T>& right) {
  const std::vector<float> a = wide(left), b = wide(right);
  double largest = 0.0, apart = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i])));
    apart = std::max(apart, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return apart / largest;
}

// One rounding of T in parts of the largest value, and some of fp32.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 3e-6 : 1.0 / 128.0;

// Every output of the op, one behind the other, as the library computes it and as the kernel does.
template <typename T>
void check_same(const KernelShape& shape, const std::function<std::vector<T>()>& outputs) {
  kernels::forget_all();
  const std::vector<T> library = outputs();
  use({shape});
  const std::vector<T> specialised = outputs();
  CHECK(kernels::unspecialised_calls() == 0);
  CAPTURE(kernels::name_of(shape));
  CHECK(difference(library, specialised) < kTolerance<T>);
  kernels::forget_all();
}

template <typename T>
std::vector<T> joined(std::initializer_list<std::vector<T>> parts) {
  std::vector<T> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

constexpr int64_t kRows = 21;

template <typename T>
void check_attention() {
  constexpr int64_t kHeadSize = 40;
  const kernels::AttentionShape shape{2, 70, 4, 2, kHeadSize};
  const std::vector<int32_t> lengths = {70, 33};
  const auto qkv = random_values<T>(140 * shape.qkv_stride(), 1);
  const auto dout = random_values<T>(140 * 4 * kHeadSize, 2);
  for (const bool causal : {true, false}) {
    kernels::Visibility visibility;
    visibility.causal = causal;
    if (!causal) visibility.lengths = lengths.data();
    std::vector<T> out(dout.size());
    std::vector<float> lse(2 * 4 * 70);
    check_same<T>({Op::kAttentionForward, kDTypeOf<T>, kHeadSize}, [&] {
      kernels::attention_forward(out.data(), lse.data(), qkv.data(), shape, visibility);
      return out;
    });
    check_same<T>({Op::kAttentionBackward, kDTypeOf<T>, kHeadSize}, [&] {
      std::vector<T> dqkv(qkv.size());
      kernels::attention_backward(dqkv.data(), dout.data(), out.data(), qkv.data(), lse.data(), shape,
                                  visibility);
      return dqkv;
    });
  }
}

template <typename T>
void check_norms() {
  constexpr int64_t kColumns = 100;
  const auto x = random_values<T>(kRows * kColumns, 1), dy = random_values<T>(kRows * kColumns, 2);
  const auto w = random_values<T>(kColumns, 3), b = random_values<T>(kColumns, 4);
  std::vector<float> mean(kRows), rstd(kRows);
  check_same<T>({Op::kRmsNormForward, kDTypeOf<T>, kColumns}, [&] {
    std::vector<T> y(x.size());
    kernels::rmsnorm_forward(y.data(), rstd.data(), x.data(), w.data(), kRows, kColumns, 1e-5F);
    return y;
  });
  check_same<T>({Op::kRmsNormBackward, kDTypeOf<T>, kColumns}, [&] {
    std::vector<T> dx = dy;
    std::vector<float> dw(kColumns);
    kernels::rmsnorm_backward(dx.data(), dw.data(), dy.data(), x.data(), w.data(), rstd.data(), kRows,
                              kColumns);
    return dx;
  });
  check_same<T>({Op::kLayerNormForward, kDTypeOf<T>, kColumns}, [&] {
    std::vector<T> y(x.size()), sum = x;
    kernels::layernorm_forward(y.data(), mean.data(), rstd.data(), sum.data(), dy.data(), w.data(), b.data(),
                               kRows, kColumns, 1e-5F);
    return joined({y, sum});
  });
  check_same<T>({Op::kLayerNormBackward, kDTypeOf<T>, kColumns}, [&] {
    std::vector<T> dx(x.size());
    std::vector<float> dgamma(kColumns), dbeta(kColumns);
    kernels::layernorm_backward(dx.data(), dgamma.data(), dbeta.data(), dy.data(), x.data(), w.data(),
                                mean.data(), rstd.data(), kRows, kColumns);
    return dx;
  });
}

template <typename T>
void check_pointwise() {
  constexpr int64_t kSize = 72;
  const auto gate_up = random_values<T>(kRows * 2 * kSize, 1), dy = random_values<T>(kRows * kSize, 2);
  check_same<T>({Op::kSwiGluForward, kDTypeOf<T>, kSize}, [&] {
    std::vector<T> y(dy.size());
    kernels::swiglu_forward(y.data(), gate_up.data(), kRows, kSize);
    return y;
  });
  check_same<T>({Op::kSwiGluBackward, kDTypeOf<T>, kSize}, [&] {
    std::vector<T> d(gate_up.size());
    kernels::swiglu_backward(d.data(), dy.data(), gate_up.data(), kRows, kSize);
    return d;
  });
  std::vector<float> table(static_cast<size_t>(kRows * kSize));
  kernels::rope_table(table.data(), kRows, kSize, 10000.0);
  check_same<T>({Op::kRope, kDTypeOf<T>, kSize}, [&] {
    std::vector<T> rotated = gate_up;
    kernels::rope(rotated.data(), table.data(), 1, kRows, 2, kSize, 2 * kSize, false);
    return rotated;
  });
}

// A whole micro-step of a model of random weights.
void run_micro_step(model::Model& model, int64_t tokens, int vocabulary) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * 7 % static_cast<size_t>(vocabulary));
  std::vector<std::vector<float>> parameters;
  for (const model::BlockLayout& block : model.blocks()) {
    parameters.push_back(random_values<float>(block.elements, parameters.size()));
    for (float& value : parameters.back()) value *= 0.05F;
  }
  model::Batch batch;
  batch.tokens = ids;
  batch.targets = ids;
  batch.loss_scale = 1.0F / static_cast<float>(tokens);
  model.set_batch(batch);
  const auto visits = model.visits();
  for (size_t v = 0; v < visits.size(); ++v)
    REQUIRE(model.forward(static_cast<int>(v),
                          std::as_bytes(std::span(parameters[static_cast<size_t>(visits[v])]))));
  for (size_t v = visits.size(); v-- > 0;) {
    const auto& block = parameters[static_cast<size_t>(visits[v])];
    std::vector<float> gradient(block.size());
    REQUIRE(model.backward(static_cast<int>(v), std::as_bytes(std::span(block)), gradient));
  }
}

void check_list(model::Model& model, int64_t tokens, int vocabulary, const std::vector<KernelShape>& shapes) {
  use(shapes);
  run_micro_step(model, tokens, vocabulary);
  CHECK(kernels::unspecialised_calls() == 0);
  for (size_t left_out = 0; left_out < shapes.size(); ++left_out) {
    auto fewer = shapes;
    fewer.erase(fewer.begin() + static_cast<long>(left_out));
    use(fewer);
    run_micro_step(model, tokens, vocabulary);
    CAPTURE(kernels::name_of(shapes[left_out]));
    CHECK(kernels::unspecialised_calls() > 0);
  }
  kernels::forget_all();
}

}  // namespace

TEST_CASE("a_specialised_kernel_computes_what_the_library_computes") {
  check_attention<float>();
  check_attention<Bf16>();
  check_norms<float>();
  check_norms<Bf16>();
  check_pointwise<float>();
  check_pointwise<Bf16>();
}

TEST_CASE("a_llamas_list_of_kernels_is_what_a_micro_step_runs") {
  const model::LlamaConfig config{2, 80, 2, 1, 72, 50};
  auto llama = model::Llama::create(config, {DType::kFp32, 2, 12});
  REQUIRE(llama);
  check_list(**llama, 24, config.vocab, model::kernel_shapes(config, DType::kFp32, 1));
}

TEST_CASE("a_berts_list_of_kernels_is_what_a_micro_step_runs") {
  const model::BertConfig config{
      .layers = 2, .hidden = 80, .heads = 2, .ffn = 96, .vocab = 50, .max_positions = 16};
  auto bert = model::Bert::create(config, {DType::kFp32, 2, 12});
  REQUIRE(bert);
  check_list(**bert, 24, config.vocab, model::kernel_shapes(config, DType::kFp32));
}

// How close each op comes to its floor on one GPU, at the shapes of a 1.5B Llama: hidden 2048, 16 query and 8 key
// heads of 128, feed-forward 8192, vocabulary 32000, sequences of 2048, micro-batch 4. Attention is run by both
// who may run it.
//
// Data are random, the cache is emptied before every run, and of many runs the median, the fastest and the 90th
// percentile are shown. The ceilings are measured first, in this run: a copy of 1 GiB (bytes read and written) and
// a bf16 product of 8192³. Before an op is timed it must have filled its output with numbers. Sizes count as
// kernels/cuda/ops.h states the floors.
//
//   gpu_kernels_bench [RUNS] [TABLE]     products are tuned and the table of algorithms is written to TABLE
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/plan/model/rotary.h"
#include "runtime/trainer/kernels/cuda/ops.h"
#include "runtime/trainer/kernels/cuda/rounding.h"

using namespace shardrun;
namespace cuda = kernels::cuda;
using kernels::Bf16;

namespace {

constexpr int64_t B = 4, T = 2048, N = B * T, C = 2048, H = 16, K = 8, D = 128, F = 8192, V = 32000;
constexpr int64_t kClassifierRows = 2048;
constexpr size_t kCacheBytes = size_t{256} << 20;

template <typename T>
T need(base::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "FAIL %s\n", result.error().to_string().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

class Bench {
 public:
  explicit Bench(int runs)
      : runs_(runs), device_(need(cuda::Device::create({}))), cache_(make<std::byte>(int64_t{kCacheBytes})) {}
  cuda::Device& device() { return *device_; }
  const kernels::Ops<Bf16>& ops() const { return ops_.all(); }

  template <typename Element>
  Element* make(int64_t count) {
    memory_.push_back(need(device_->allocate(static_cast<size_t>(count) * sizeof(Element))));
    return reinterpret_cast<Element*>(memory_.back().get());
  }
  // Returns normal numbers: the first 2^20 of them, over and over.
  template <typename Element>
  Element* random(int64_t count, uint64_t key, double stddev = 1.0) {
    const int64_t distinct = std::min<int64_t>(count, 1 << 20);
    std::vector<Element> values(static_cast<size_t>(distinct));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(stddev * base::random_normal(key, i));
      if constexpr (std::is_same_v<Element, float>) {
        values[i] = value;
      } else {
        values[i] = cuda::nearest(value);
      }
    }
    auto* const memory = make<Element>(count);
    for (int64_t at = 0; at < count; at += distinct) {
      need(device_->copy_in(memory + at, values.data(),
                            static_cast<size_t>(std::min(distinct, count - at)) * sizeof(Element)));
    }
    return memory;
  }
  int32_t* tokens(int64_t count, int64_t below) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<int32_t>(base::random_bits(5, i) % static_cast<uint64_t>(below));
    auto* const memory = make<int32_t>(count);
    need(device_->copy_in(memory, values.data(), values.size() * sizeof(int32_t)));
    return memory;
  }

  // Microseconds: fastest, median, 90th percentile.
  struct Times {
    double fastest, median, slow;
  };
  Times time(const std::function<void()>& op) {
    for (int i = 0; i < 3; ++i) op();
    need(device_->synchronize());
    std::vector<double> times;
    for (int i = 0; i < runs_; ++i) {
      device_->fill(cache_, i, kCacheBytes);
      times.push_back(1e3 * static_cast<double>(need(device_->milliseconds_of(op))));
    }
    std::sort(times.begin(), times.end());
    return {times.front(), times[times.size() / 2], times[times.size() * 9 / 10]};
  }

  void set_ceilings(double bytes_per_second, double flops) {
    bytes_per_second_ = bytes_per_second;
    flops_ = flops;
    std::printf("ceilings: copy %.2f TB/s, bf16 product %.0f TFLOP/s\n", bytes_per_second / 1e12,
                flops / 1e12);
    std::printf("%-34s %10s %22s %12s %9s\n", "op", "median us", "fastest .. 90%", "rate", "of floor");
  }
  template <typename Out>
  void bytes(const char* name, double count, const Out* out, int64_t elements,
             const std::function<void()>& op) {
    const Times t = checked(name, out, elements, op);
    print(name, t, count / t.median / 1e6, "TB/s", 1e6 * count / bytes_per_second_ / t.median);
  }
  template <typename Out>
  void operations(const char* name, double count, const Out* out, int64_t elements,
                  const std::function<void()>& op) {
    const Times t = checked(name, out, elements, op);
    print(name, t, count / t.median / 1e6, "TFLOP/s", 1e6 * count / flops_ / t.median);
  }

 private:
  static void print(const char* name, const Times& t, double rate, const char* unit, double share) {
    std::printf("%-34s %10.1f %10.1f .. %8.1f %7.2f %-7s %5.0f %%\n", name, t.median, t.fastest, t.slow, rate,
                unit, 100 * share);
    std::fflush(stdout);
  }
  template <typename Out>
  Times checked(const char* name, const Out* out, int64_t elements, const std::function<void()>& op) {
    op();
    const int64_t looked_at = std::min<int64_t>(elements, 4096);
    for (const int64_t first : {int64_t{0}, elements - looked_at}) {
      std::vector<Out> values(static_cast<size_t>(looked_at));
      need(device_->copy_out(values.data(), out + first, values.size() * sizeof(Out)));
      for (const Out value : values) {
        float number = 0.0F;
        if constexpr (std::is_same_v<Out, Bf16>) {
          number = cuda::widened(value);
        } else {
          number = static_cast<float>(value);
        }
        if (std::isfinite(number)) continue;
        std::fprintf(stderr, "FAIL %s wrote something that is no number\n", name);
        std::exit(1);
      }
    }
    return time(op);
  }

  int runs_;
  std::unique_ptr<cuda::Device> device_;
  cuda::GpuOps<Bf16> ops_{*device_};
  std::vector<cuda::Memory> memory_;
  std::byte* cache_;
  double bytes_per_second_ = 1, flops_ = 1;
};

// Returns an output that still holds what no op may leave.
template <typename Element>
Element* poisoned(Bench& bench, int64_t count) {
  auto* const memory = bench.make<Element>(count);
  bench.device().fill(memory, 0xff, static_cast<size_t>(count) * sizeof(Element));
  return memory;
}

void measure_ceilings(Bench& bench) {
  constexpr size_t kCopy = size_t{1} << 30;
  auto* const from = bench.random<float>(kCopy / 4, 1);
  auto* const to = bench.make<float>(kCopy / 4);
  const double copy = bench.time([&] { bench.device().copy(to, from, kCopy); }).median;
  constexpr int64_t kSide = 8192;
  const Bf16 *a = bench.random<Bf16>(kSide * kSide, 2), *b = bench.random<Bf16>(kSide * kSide, 3);
  auto* const c = bench.make<Bf16>(kSide * kSide);
  const double product =
      bench.time([&] { bench.ops().products.linear_forward(c, a, b, kSide, kSide, kSide); }).median;
  bench.set_ceilings(2.0 * kCopy / copy * 1e6, 2.0 * kSide * kSide * kSide / product * 1e6);
}

void measure_products(Bench& bench) {
  const kernels::Ops<Bf16>& ops = bench.ops();
  struct Layer {
    const char* name;
    int64_t inputs, outputs;
  };
  for (const Layer& layer : {Layer{"qkv", C, (H + 2 * K) * D},
                             {"attention out", C, C},
                             {"gate and up", C, 2 * F},
                             {"down", F, C},
                             {"head", C, V}}) {
    const int64_t I = layer.inputs, O = layer.outputs;
    const Bf16 *x = bench.random<Bf16>(N * I, 1), *w = bench.random<Bf16>(O * I, 2, 0.02),
               *dy = bench.random<Bf16>(N * O, 3);
    auto* const y = poisoned<Bf16>(bench, N * O);
    auto* const dx = poisoned<Bf16>(bench, N * I);
    auto* const dw = poisoned<float>(bench, O * I);
    const double count = 2.0 * static_cast<double>(N) * static_cast<double>(I) * static_cast<double>(O);
    const std::string name(layer.name);
    bench.operations((name + ": forward").c_str(), count, y, N * O,
                     [&] { ops.products.linear_forward(y, x, w, N, I, O); });
    bench.operations((name + ": dx").c_str(), count, dx, N * I,
                     [&] { ops.products.linear_backward_input(dx, dy, w, N, I, O); });
    bench.operations((name + ": dw").c_str(), count, dw, O * I,
                     [&] { ops.products.linear_backward_weight(dw, dy, x, N, I, O, false); });
    bench.operations((name + ": dw, added").c_str(), count, dw, O * I,
                     [&] { ops.products.linear_backward_weight(dw, dy, x, N, I, O, true); });
  }
}

// Measures the feed-forward's first layer in fp8: quantizing, and the three products.
void measure_fp8(Bench& bench) {
  cuda::Device& device = bench.device();
  const auto fp8 = cuda::make_fp8(device);
  constexpr int64_t O = 2 * F;
  struct Factor {
    kernels::Fp8Matrix out;
    kernels::Fp8Scaling* scaling;
    const Bf16* in;
    int64_t rows, columns;
  };
  const auto factor = [&](kernels::Fp8Format format, int64_t rows, int64_t columns, uint64_t key,
                          double spread) {
    auto* const scaling = bench.make<kernels::Fp8Scaling>(1);
    device.fill(scaling, 0, sizeof *scaling);
    return Factor{{format, bench.make<uint8_t>(rows * columns), bench.make<uint8_t>(rows * columns),
                   poisoned<float>(bench, 1)},
                  scaling,
                  bench.random<Bf16>(rows * columns, key, spread),
                  rows,
                  columns};
  };
  const Factor x = factor(kernels::Fp8Format::kE4m3, N, C, 1, 1.0),
               w = factor(kernels::Fp8Format::kE4m3, O, C, 2, 0.02),
               dy = factor(kernels::Fp8Format::kE5m2, N, O, 3, 1e-3);
  const auto quantize = [&](const Factor& f, kernels::Fp8Scale scale = kernels::Fp8Scale::kDelayed) {
    fp8->quantize(f.out, f.scaling, f.in, f.rows, f.columns, scale);
  };
  for (const Factor* f : {&x, &w, &dy}) quantize(*f, kernels::Fp8Scale::kPresent);
  bench.bytes("fp8 quantize, both ways", 4.0 * N * O, dy.out.inverse, 1, [&] { quantize(dy); });
  auto* const y = poisoned<Bf16>(bench, N * O);
  auto* const dx = poisoned<Bf16>(bench, N * C);
  auto* const dw = poisoned<float>(bench, O * C);
  constexpr double kCount = 2.0 * N * C * O;  // fp8 operations, beside the ceiling of bf16's
  bench.operations("fp8 gate and up: forward", kCount, y, N * O,
                   [&] { fp8->linear_forward(y, x.out, w.out, N, C, O); });
  bench.operations("fp8 gate and up: dx", kCount, dx, N * C,
                   [&] { fp8->linear_backward_input(dx, dy.out, w.out, N, C, O); });
  bench.operations("fp8 gate and up: dw", kCount, dw, O * C,
                   [&] { fp8->linear_backward_weight(dw, dy.out, x.out, N, C, O, false); });
}

void measure_attention(Bench& bench) {
  cuda::Device& device = bench.device();
  const kernels::Ops<Bf16>& ops = bench.ops();
  const kernels::AttentionShape shape{B, T, H, K, D};
  const int64_t elements = N * shape.qkv_stride();
  const Bf16 *qkv = bench.random<Bf16>(elements, 1), *dout = bench.random<Bf16>(N * H * D, 2);
  auto* const out = poisoned<Bf16>(bench, N * H * D);
  auto* const dqkv = poisoned<Bf16>(bench, elements);
  auto* const lse = poisoned<float>(bench, N * H);
  const double pairs = static_cast<double>(B * H) * static_cast<double>(T) * static_cast<double>(T + 1) / 2;
  const auto both = [&](const std::string& whose) {
    bench.operations((whose + " attention forward").c_str(), 4 * D * pairs, out, N * H * D,
                     [&] { ops.attention.forward(out, lse, qkv, shape); });
    bench.operations((whose + " attention backward").c_str(), 10 * D * pairs, dqkv, elements, [&] {
      ops.attention.backward(dqkv, dout, static_cast<const Bf16*>(out), qkv, static_cast<const float*>(lse),
                             shape);
    });
  };
  both("our");
  const auto used = device.use_cudnn_attention(shape, /*causal=*/true, int64_t{4} << 30);
  if (used) {
    both("cuDNN's");
  } else {
    std::printf("no attention by cuDNN: %s\n", used.error().to_string().c_str());
  }
}

void measure_rows(Bench& bench) {
  const kernels::Ops<Bf16>& ops = bench.ops();
  constexpr double kRow = 2.0 * N * C;  // bytes of one pass over activations
  const Bf16 *x = bench.random<Bf16>(N * C, 1), *dy = bench.random<Bf16>(N * C, 2),
             *w = bench.random<Bf16>(C, 3);
  auto* const sum = bench.random<Bf16>(N * C, 4, 0.001);
  auto* const dx = bench.random<Bf16>(N * C, 5, 0.001);
  auto* const y = poisoned<Bf16>(bench, N * C);
  auto* const stats = poisoned<float>(bench, 2 * N);
  auto* const dw = poisoned<float>(bench, 2 * C);
  bench.bytes("rmsnorm forward", 2 * kRow, y, N * C,
              [&] { ops.norms.rmsnorm_forward(y, stats, x, w, N, C, 1e-5F); });
  bench.bytes("rmsnorm backward", 4 * kRow, dx, N * C,
              [&] { ops.norms.rmsnorm_backward(dx, dw, dy, x, w, static_cast<const float*>(stats), N, C); });
  bench.bytes("rmsnorm with residual", 4 * kRow, y, N * C,
              [&] { ops.norms.rmsnorm_residual_forward(y, stats, sum, y, w, N, C, 1e-5F); });
  bench.bytes("layernorm forward", 2 * kRow, y, N * C, [&] {
    ops.norms.layernorm_forward(y, stats, stats + N, sum, static_cast<const Bf16*>(nullptr), w, w, N, C,
                                1e-5F);
  });
  bench.bytes("layernorm backward", 3 * kRow, y, N * C, [&] {
    ops.norms.layernorm_backward(y, dw, dw + C, dy, x, w, static_cast<const float*>(stats),
                                 static_cast<const float*>(stats + N), N, C);
  });
  bench.bytes("bias backward", kRow, dw, C, [&] { ops.products.bias_backward(dw, dy, N, C, false); });
  bench.bytes("add", 3 * kRow, y, N * C, [&] { ops.pointwise.add(y, x, dy, N * C); });
  bench.bytes("gelu forward", 2 * kRow, y, N * C, [&] { ops.pointwise.gelu_forward(y, x, N * C); });
  bench.bytes("gelu backward", 3 * kRow, y, N * C, [&] { ops.pointwise.gelu_backward(y, dy, x, N * C); });

  auto* const table = poisoned<float>(bench, T * D);
  const std::vector<float> angles = plan::rope_table(T, D, 500000.0);
  need(bench.device().copy_in(table, angles.data(), angles.size() * sizeof(float)));
  constexpr int64_t kStride = (H + 2 * K) * D;
  auto* const qkv = bench.random<Bf16>(N * kStride, 6);
  bench.bytes("rope", 4.0 * N * (H + K) * D, qkv, N * kStride, [&] {
    ops.attention.rope(qkv, static_cast<const float*>(table), B, T, H + K, D, kStride, false);
  });

  const int32_t* const ids = bench.tokens(N, V);
  const Bf16* const words = bench.random<Bf16>(V * C, 7);
  auto* const dwords = poisoned<float>(bench, V * C);
  bench.bytes("embedding forward", 2 * kRow, y, N * C, [&] { ops.embedding.forward(y, ids, words, N, C); });
  bench.bytes("embedding backward", kRow + 4.0 * V * C, dwords, V * C,
              [&] { ops.embedding.backward(dwords, ids, dy, N, C, V); });
}

void measure_feed_forward(Bench& bench) {
  const kernels::Ops<Bf16>& ops = bench.ops();
  constexpr double kHalf = 2.0 * N * F;
  const Bf16 *gate_up = bench.random<Bf16>(N * 2 * F, 1), *dy = bench.random<Bf16>(N * F, 2);
  auto* const y = poisoned<Bf16>(bench, N * F);
  auto* const dgate_up = poisoned<Bf16>(bench, N * 2 * F);
  bench.bytes("swiglu forward", 3 * kHalf, y, N * F, [&] { ops.pointwise.swiglu_forward(y, gate_up, N, F); });
  bench.bytes("swiglu backward", 5 * kHalf, dgate_up, N * 2 * F,
              [&] { ops.pointwise.swiglu_backward(dgate_up, dy, gate_up, N, F); });
}

void measure_classifier(Bench& bench) {
  const kernels::Ops<Bf16>& ops = bench.ops();
  constexpr int64_t kCount = kClassifierRows * V;
  const auto* const logits = bench.random<float>(kCount, 1, 3.0);
  auto* const dlogits = poisoned<Bf16>(bench, kCount);
  auto* const loss = poisoned<double>(bench, 1);
  const int32_t* const targets = bench.tokens(kClassifierRows, V);
  bench.bytes("cross-entropy fp32 to bf16", 6.0 * kCount, dlogits, kCount, [&] {
    ops.classifier.cross_entropy(loss, dlogits, logits, targets, kClassifierRows, V, 1e-3F);
  });
}

void measure_optimizer(Bench& bench) {
  cuda::Device& device = bench.device();
  const auto optimizer = cuda::make_optimizer(device);
  constexpr int64_t kCount = 100'000'000;
  const auto span = [](auto* data) { return std::span(data, static_cast<size_t>(kCount)); };
  auto* const master = bench.random<float>(kCount, 1, 0.02);
  auto* const moment1 = bench.random<float>(kCount, 2, 1e-3);
  auto* const moment2 = poisoned<float>(bench, kCount);
  device.fill(moment2, 0, kCount * sizeof(float));
  const auto* const gradient = bench.random<float>(kCount, 3, 1e-3);
  auto* const sums = poisoned<double>(bench, 2);
  const auto* const rate = bench.random<float>(1, 4, 1e-3);
  const kernels::AdamWParameters adamw{1e-3F, 0.9F, 0.95F, 1e-8F, 0.1F, 1.0F, 0.1F, 0.05F};
  const kernels::LambParameters lamb{0.9F, 0.999F, 1e-6F, 0.01F, 1.0F, 0.1F, 0.001F};
  bench.bytes("adamw", 28.0 * kCount, master, kCount, [&] {
    optimizer->adamw_step(span(master), span(moment1), span(moment2), span(gradient), adamw);
  });
  const std::span<const float> weights(master, kCount), m(moment1, kCount), v(moment2, kCount);
  bench.bytes("lamb measure", 24.0 * kCount, sums, 2, [&] {
    optimizer->lamb_measure(reinterpret_cast<kernels::LambSquares*>(sums), weights, span(moment1),
                            span(moment2), span(gradient), lamb);
  });
  bench.bytes("lamb apply", 16.0 * kCount, master, kCount,
              [&] { optimizer->lamb_apply(span(master), m, v, rate, lamb); });
  bench.bytes("sum of squares", 4.0 * kCount, sums, 1,
              [&] { optimizer->sum_of_squares(sums, span(gradient)); });
}

// Measures a part on a device of its own, so that its memory is given back.
void measure(void (*part)(Bench&), int runs, const char* table) {
  Bench bench(runs);
  bench.device().tune_products(true);
  measure_ceilings(bench);
  part(bench);
  if (table != nullptr) std::ofstream(table) << bench.device().product_table();
}

}  // namespace

int main(int count, char** arguments) {
  if (need(cuda::device_count()) == 0) {
    std::puts("skipped: no NVIDIA GPU, or no driver for one");
    return 77;
  }
  const int runs = count > 1 ? std::max(1, std::atoi(arguments[1])) : 30;
  const char* const table = count > 2 ? arguments[2] : nullptr;
  measure(measure_products, runs, table);
  for (const auto part : {measure_fp8, measure_attention, measure_rows, measure_feed_forward,
                          measure_classifier, measure_optimizer}) {
    measure(part, runs, nullptr);
  }
  return 0;
}

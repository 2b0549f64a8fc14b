// Training speed of one rank without communication: forward and backward of a Llama or a BERT, and what
// they are made of.
//
// Before anything is timed, the loss of random weights must be ln V. A BERT predicts every seventh token. The peak
// is what oneDNN's own product x·wᵀ of 1024³ reaches here, in this run, in fp32 or bf16; beside it stands the trainer's,
// which may be of our own. Prints a table and one JSON object.
//
//   kernels_bench fp32|bf16 THREADS [LAYERS HIDDEN HEADS KV_HEADS FFN VOCAB MICRO_BATCH LENGTH]
//   kernels_bench bert-fp32|bert-bf16 THREADS [LAYERS HIDDEN HEADS FFN VOCAB MICRO_BATCH LENGTH]
#include <omp.h>

#include <dnnl.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/counter_random.h"
#include "runtime/base/json.h"
#include "runtime/plan/model/llama_sizes.h"
#include "runtime/plan/model/rotary.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"

using namespace shardrun;
using kernels::Bf16;

namespace {

// Returns the CPU's ops.
template <typename T>
const kernels::Ops<T>& ops() {
  return kernels::cpu_backend().ops<T>();
}

constexpr double kSecondsPerFigure = 0.5;

// Returns the median seconds of one call, after one that warms caches.
template <typename Call>
double seconds_of(Call call) {
  using Clock = std::chrono::steady_clock;
  call();
  std::vector<double> samples;
  const auto first = Clock::now();
  do {
    const auto start = Clock::now();
    call();
    samples.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  } while (samples.size() < 5 || Clock::now() - first < std::chrono::duration<double>(kSecondsPerFigure));
  std::nth_element(samples.begin(), samples.begin() + static_cast<long>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

template <typename T>
std::vector<T> random_values(int64_t count, uint64_t key, double stddev) {
  std::vector<float> wide(static_cast<size_t>(count));
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(stddev * base::random_normal(key, i));
  if constexpr (std::is_same_v<T, float>) {
    return wide;
  } else {
    std::vector<Bf16> narrow(wide.size());
    kernels::fp32_to_bf16(wide, std::span(narrow));
    return narrow;
  }
}

struct LlamaShape {
  model::LlamaConfig config{4, 256, 4, 2, 704, 256};
  int micro_batch = 8, length = 256;
  int64_t tokens() const { return int64_t{micro_batch} * length; }
  auto create(kernels::DType dtype) const {
    return model::Llama::create(config, {dtype, micro_batch, length}).value();
  }
};

struct BertShape {
  model::BertConfig config{24, 1024, 16, 4096, 30522};
  int micro_batch = 8, length = 128;
  int64_t tokens() const { return int64_t{micro_batch} * length; }
  auto create(kernels::DType dtype) const {
    return model::Bert::create(config, {dtype, micro_batch, length}).value();
  }
};

constexpr int64_t kSide = 1024;  // of the products that are the peak

// Returns a call of oneDNN's matrix product c = a·bᵀ of kSide³.
template <typename T>
auto onednn_product(T* c, T* a, T* b) {
  using dnnl::memory;
  constexpr auto kType = std::is_same_v<T, float> ? memory::data_type::f32 : memory::data_type::bf16;
  const memory::desc rows({kSide, kSide}, kType, memory::dims{kSide, 1}),
      columns({kSide, kSide}, kType, memory::dims{1, kSide});
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine, rows, columns, rows);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(rows, columns, rows), engine);
#endif
  return [product = dnnl::matmul(description), stream = dnnl::stream(engine),
          arguments = std::unordered_map<int, memory>{{DNNL_ARG_SRC, memory(rows, engine, a)},
                                                      {DNNL_ARG_WEIGHTS, memory(columns, engine, b)},
                                                      {DNNL_ARG_DST, memory(rows, engine, c)}}]() mutable {
    product.execute(stream, arguments);
    stream.wait();
  };
}

// FLOP/s of oneDNN's product and of the trainer's.
struct Peak {
  double onednn, trainer;
};

template <typename T>
Peak peak_flops() {
  auto a = random_values<T>(kSide * kSide, 1, 1.0), b = random_values<T>(kSide * kSide, 2, 1.0);
  std::vector<T> c(a.size());
  constexpr double kFlops = 2.0 * kSide * kSide * kSide;
  return {kFlops / seconds_of(onednn_product(c.data(), a.data(), b.data())),
          kFlops / seconds_of([&] {
            ops<T>().products.linear_forward(c.data(), a.data(), b.data(), kSide, kSide, kSide);
          })};
}

// Returns parameters as initialized: a LayerNorm that is all zero would make every logit equal.
template <typename T>
std::vector<T> initial_parameters(const model::BlockLayout& layout, uint64_t key) {
  std::vector<T> block = random_values<T>(layout.elements, key, 0.02);
  for (const auto& parameter : layout.parameters) {
    if (parameter.init_stddev != 0.0) continue;
    const std::vector<float> value(static_cast<size_t>(parameter.elements()),
                                   static_cast<float>(parameter.init_value));
    T* const begin = block.data() + parameter.offset;
    if constexpr (std::is_same_v<T, float>) {
      std::copy(value.begin(), value.end(), begin);
    } else {
      kernels::fp32_to_bf16(value, std::span<Bf16>(begin, value.size()));
    }
  }
  return block;
}

// A model with random parameters and one micro-batch.
template <typename T, typename Shape>
struct Rank {
  explicit Rank(const Shape& shape) {
    network = shape.create(std::is_same_v<T, float> ? kernels::DType::kFp32 : kernels::DType::kBf16);
    for (const auto& layout : network->blocks()) {
      parameters.push_back(initial_parameters<T>(layout, parameters.size() + 1));
      gradients.emplace_back(static_cast<size_t>(layout.elements));
    }
    std::vector<int32_t> tokens(static_cast<size_t>(shape.tokens()));
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(base::random_bits(9, i) % static_cast<uint64_t>(shape.config.vocab));
    std::vector<int32_t> targets = tokens, labels;
    if constexpr (std::is_same_v<Shape, BertShape>) {
      for (size_t i = 0; i < targets.size(); ++i) targets[i] = i % 7 == 3 ? tokens[i] : -1;
      labels.assign(static_cast<size_t>(shape.micro_batch), 1);
    }
    model::Batch batch{.tokens = tokens, .targets = targets};
    batch.next_sentence = labels;
    batch.loss_scale = 1.0f / static_cast<float>(tokens.size());
    batch.backward_follows = true;  // as in training, where logits are made once
    batch.sequence_scale = 1.0f / static_cast<float>(shape.micro_batch);
    network->set_batch(batch);
  }

  std::span<const std::byte> block_of(size_t visit) const {
    return std::as_bytes(std::span(parameters[static_cast<size_t>(network->visits()[visit])]));
  }
  void forward() {
    for (size_t visit = 0; visit < network->visits().size(); ++visit)
      SHARDRUN_CHECK(network->forward(static_cast<int>(visit), block_of(visit)));
  }
  void backward() {
    for (size_t visit = network->visits().size(); visit-- > 0;)
      SHARDRUN_CHECK(network->backward(static_cast<int>(visit), block_of(visit),
                                       gradients[static_cast<size_t>(network->visits()[visit])]));
  }

  std::unique_ptr<model::Model> network;
  std::vector<std::vector<T>> parameters;
  std::vector<std::vector<float>> gradients;
};

struct Figure {
  std::string_view name;
  double seconds;
};

// Measures the products and the softmax of the head, in chunks of rows as the model has them.
template <typename T>
std::vector<Figure> head_parts(const LlamaShape& shape) {
  const plan::LlamaSizes s(
      shape.config,
      {.compute = std::is_same_v<T, float> ? kernels::DType::kFp32 : kernels::DType::kBf16,
       .micro_batch = shape.micro_batch,
       .sequence_length = shape.length},
      1);
  const auto x = random_values<T>(s.N * s.C, 6, 1.0), w = random_values<T>(s.V * s.C, 7, 0.02);
  auto dx = x;
  std::vector<float> logits(static_cast<size_t>(s.chunk * s.V)), dw(w.size());
  std::vector<T> dlogits(logits.size());
  std::vector<int32_t> targets(static_cast<size_t>(s.N));
  for (size_t i = 0; i < targets.size(); ++i)
    targets[i] = static_cast<int32_t>(base::random_bits(8, i) % static_cast<uint64_t>(s.V));
  double loss = 0.0;
  const auto each_chunk = [&](const auto& call) {
    return seconds_of([&] {
      for (int64_t row = 0; row < s.N; row += s.chunk) call(row, std::min(s.chunk, s.N - row));
    });
  };
  return {{"head forward", each_chunk([&](int64_t row, int64_t rows) {
             ops<T>().products.linear_forward_fp32(logits.data(), x.data() + row * s.C, w.data(), rows, s.C,
                                                   s.V);
           })},
          {"head softmax", each_chunk([&](int64_t row, int64_t rows) {
             ops<T>().classifier.cross_entropy(&loss, dlogits.data(), logits.data(), targets.data() + row,
                                               rows, s.V, 1e-3f);
           })},
          {"head dx", each_chunk([&](int64_t row, int64_t rows) {
             ops<T>().products.linear_backward_input(dx.data() + row * s.C, dlogits.data(), w.data(), rows,
                                                     s.C, s.V, false);
           })},
          {"head dw", each_chunk([&](int64_t row, int64_t rows) {
             ops<T>().products.linear_backward_weight(dw.data(), dlogits.data(), x.data() + row * s.C, rows,
                                                      s.C, s.V, row > 0);
           })}};
}

// Measures one layer's ops at the model's shapes, forward and backward together, times the number of layers; and the head's.
template <typename T>
std::vector<Figure> parts(const LlamaShape& shape) {
  const auto& c = shape.config;
  const int64_t N = shape.tokens(), C = c.hidden, F = c.ffn, D = C / c.heads;
  const kernels::AttentionShape attention{shape.micro_batch, shape.length, c.heads, c.kv_heads, D};
  const int64_t QKV = attention.qkv_stride();
  const auto wide = random_values<T>(N * std::max(2 * F, QKV), 3, 1.0),
             narrow = random_values<T>(N * F, 4, 1.0);
  const auto w = random_values<T>(C * 2 * F, 5, 0.02);
  auto out = wide, dx = narrow, rotated = wide;
  std::vector<float> dw(w.size()), rrms(static_cast<size_t>(N)), lse(static_cast<size_t>(N * c.heads));
  const std::vector<float> table = plan::rope_table(shape.length, D, c.rope_theta);

  const auto products = [&](int64_t in, int64_t outputs) {
    ops<T>().products.linear_forward(out.data(), narrow.data(), w.data(), N, in, outputs);
    ops<T>().products.linear_backward_input(dx.data(), wide.data(), w.data(), N, in, outputs);
    ops<T>().products.linear_backward_weight(dw.data(), wide.data(), narrow.data(), N, in, outputs, false);
  };
  std::vector<Figure> figures = {
      {"products", seconds_of([&] { products(C, QKV), products(C, C), products(C, 2 * F), products(F, C); })},
      {"attention forward",
       seconds_of([&] { ops<T>().attention.forward(out.data(), lse.data(), wide.data(), attention); })},
      {"attention backward", seconds_of([&] {
         ops<T>().attention.backward(rotated.data(), narrow.data(), out.data(), wide.data(), lse.data(),
                                     attention);
       })},
      {"rmsnorm", 2.0 * seconds_of([&] {
                    ops<T>().norms.rmsnorm_forward(out.data(), rrms.data(), narrow.data(), w.data(), N, C,
                                                   1e-5f);
                    ops<T>().norms.rmsnorm_backward(dx.data(), dw.data(), narrow.data(), wide.data(),
                                                    w.data(), rrms.data(), N, C);
                  })},
      {"rope", 2.0 * seconds_of([&] {
                 ops<T>().attention.rope(rotated.data(), table.data(), shape.micro_batch, shape.length,
                                         c.heads + c.kv_heads, D, QKV, false);
               })},
      {"swiglu", seconds_of([&] {
         ops<T>().pointwise.swiglu_forward(dx.data(), wide.data(), N, F);
         ops<T>().pointwise.swiglu_backward(out.data(), narrow.data(), wide.data(), N, F);
       })},
      {"residual",
       2.0 * seconds_of([&] { ops<T>().pointwise.add(out.data(), wide.data(), narrow.data(), N * C); })}};
  for (Figure& figure : figures) figure.seconds *= c.layers;
  for (const Figure& figure : head_parts<T>(shape)) figures.push_back(figure);
  return figures;
}

template <typename T>
std::vector<Figure> parts(const BertShape& shape) {
  const auto& c = shape.config;
  const int64_t N = shape.tokens(), C = c.hidden, F = c.ffn;
  const kernels::AttentionShape attention{shape.micro_batch, shape.length, c.heads, c.heads, C / c.heads};
  const auto wide = random_values<T>(N * std::max(F, 3 * C), 3, 1.0),
             narrow = random_values<T>(N * F, 4, 1.0);
  const auto w = random_values<T>(C * std::max(F, 3 * C), 5, 0.02);
  auto out = wide, dx = narrow, sum = narrow;
  std::vector<float> dw(w.size()), mean(static_cast<size_t>(N)), rstd(mean),
      db(static_cast<size_t>(3 * C + F)), lse(static_cast<size_t>(N * c.heads));

  const auto products = [&](int64_t in, int64_t outputs) {
    ops<T>().products.linear_bias_forward(out.data(), narrow.data(), w.data(), w.data(), N, in, outputs);
    ops<T>().products.linear_backward_input(dx.data(), wide.data(), w.data(), N, in, outputs);
    ops<T>().products.linear_backward_weight(dw.data(), wide.data(), narrow.data(), N, in, outputs, false);
  };
  const kernels::Visibility everything{.causal = false};
  std::vector<Figure> figures = {
      {"products", seconds_of([&] { products(C, 3 * C), products(C, C), products(C, F), products(F, C); })},
      {"attention forward", seconds_of([&] {
         ops<T>().attention.forward(out.data(), lse.data(), wide.data(), attention, everything);
       })},
      {"attention backward", seconds_of([&] {
         ops<T>().attention.backward(sum.data(), narrow.data(), out.data(), wide.data(), lse.data(),
                                     attention, everything);
       })},
      {"layernorm", 2.0 * seconds_of([&] {
                      ops<T>().norms.layernorm_forward(out.data(), mean.data(), rstd.data(), sum.data(),
                                                       narrow.data(), w.data(), w.data(), N, C, 1e-12f);
                      ops<T>().norms.layernorm_backward(dx.data(), dw.data(), db.data(), narrow.data(),
                                                        wide.data(), w.data(), mean.data(), rstd.data(), N,
                                                        C);
                    })},
      {"gelu", seconds_of([&] {
         ops<T>().pointwise.gelu_forward(dx.data(), wide.data(), N * F);
         ops<T>().pointwise.gelu_backward(out.data(), narrow.data(), wide.data(), N * F);
       })},
      {"bias gradients", seconds_of([&] {
         for (const int64_t outputs : {3 * C, C, F, C})
           ops<T>().products.bias_backward(db.data(), wide.data(), N, outputs, false);
       })}};
  for (Figure& figure : figures) figure.seconds *= c.layers;
  return figures;
}

template <typename T, typename Shape>
int measure(const Shape& shape, std::string_view dtype, int threads) {
  Rank<T, Shape> rank(shape);
  rank.forward();
  rank.backward();
  const double loss = rank.network->loss().sum / static_cast<double>(rank.network->loss().tokens);
  if (std::abs(loss - std::log(shape.config.vocab)) > 0.5) {
    fmt::print(stderr, "kernels_bench: loss {} at random weights, expected ln {}\n", loss,
               shape.config.vocab);
    return 1;
  }
  const Peak peak = peak_flops<T>();
  std::vector<Figure> figures = {{"forward", seconds_of([&] { rank.forward(); })},
                                 {"backward", seconds_of([&] { rank.backward(); })}};
  const double step = figures[0].seconds + figures[1].seconds;
  const double rate = static_cast<double>(shape.tokens()) / step;
  const double flops = rate * plan::flops_per_token(shape.config, shape.length).causal;
  for (const Figure& part : parts<T>(shape)) figures.push_back(part);

  nlohmann::json result = {{"dtype", dtype},
                           {"threads", threads},
                           {"tokens_per_second", rate},
                           {"peak_flops", peak.onednn},
                           {"share_of_peak", flops / peak.onednn},
                           {"trainers_peak_flops", peak.trainer},
                           {"share_of_trainers_peak", flops / peak.trainer}};
  fmt::print(
      "{} tokens of {} in {:.1f} ms: {:.0f} tokens/s, {:.0f} % of the {:.0f} GFLOP/s of oneDNN's large "
      "product, {:.0f} % of "
      "the {:.0f} of the trainer's\n",
      shape.tokens(), dtype, step * 1e3, rate, flops / peak.onednn * 100.0, peak.onednn * 1e-9,
      flops / peak.trainer * 100.0, peak.trainer * 1e-9);
  for (const Figure& figure : figures) {
    fmt::print("  {:<20} {:8.2f} ms  {:5.1f} %\n", figure.name, figure.seconds * 1e3,
               100.0 * figure.seconds / step);
    result["seconds"][std::string(figure.name)] = figure.seconds;
  }
  fmt::print("{}\n", base::json_text(result));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc > 1 ? argv[1] : "";
  const bool is_bert = kind.starts_with("bert-");
  const std::string_view dtype = is_bert ? kind.substr(5) : kind;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  std::vector<int> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  LlamaShape llama;
  BertShape bert;
  if (is_bert && sizes.size() == 7) {
    bert = {{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], std::max(512, sizes[6])}, sizes[5], sizes[6]};
  } else if (!is_bert && sizes.size() == 8) {
    llama = {{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]}, sizes[6], sizes[7]};
  }
  const bool known = dtype == "fp32" || dtype == "bf16";
  if (!known || threads < 1 || (!sizes.empty() && sizes.size() != (is_bert ? 7 : 8)) ||
      !(is_bert ? plan::check(bert.config) : plan::check(llama.config)) || llama.tokens() < 1 ||
      bert.tokens() < 1) {
    fmt::print(stderr,
               "usage: kernels_bench fp32|bf16 THREADS [LAYERS HIDDEN HEADS KV_HEADS FFN VOCAB MICRO_BATCH "
               "LENGTH]\n       kernels_bench bert-fp32|bert-bf16 THREADS [LAYERS HIDDEN HEADS FFN VOCAB "
               "MICRO_BATCH LENGTH]\n");
    return 2;
  }
  ::omp_set_num_threads(threads);
  if (is_bert) {
    return dtype == "fp32" ? measure<float>(bert, kind, threads) : measure<Bf16>(bert, kind, threads);
  }
  return dtype == "fp32" ? measure<float>(llama, kind, threads) : measure<Bf16>(llama, kind, threads);
}

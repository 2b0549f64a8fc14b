// Ops that start kernels compiled for one size (kernels/cuda/specialised.h) against the same ops without them. Emulated,
// their bits are equal; on a GPU two compilers may contract other products.
#include "tests/gpu/specialised.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "runtime/trainer/kernels/sliced_ops.h"
#include "tests/gpu/harness.h"
#ifdef EMULATED_NVRTC
#include "tests/emulation/emulated_gpu.h"
#endif

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;
using cuda::Device;
using kernels::AttentionShape;
using kernels::DType;
using kernels::KernelShape;
using kernels::Op;
using kernels::Target;

namespace {

constexpr float kEpsilon = 1e-5F;

std::unique_ptr<Device> new_device() {
  auto created = Device::create({.wait_after_each_op = true});
  REQUIRE_MESSAGE(created, created.error().to_string());
  return std::move(created).value();
}

// The memory of a few ops on one device, and what they left in it.
class Scene {
 public:
  // `offset` elements off the alignment.
  explicit Scene(Device& device_in, int64_t offset = 0) : device(device_in), offset_(offset) {}

  template <typename T>
  T* inout(const std::vector<T>& values) {
    auto memory = device.allocate((values.size() + static_cast<size_t>(offset_)) * sizeof(T));
    REQUIRE(memory);
    T* const at = reinterpret_cast<T*>(memory->get()) + offset_;
    REQUIRE(device.copy_in(at, values.data(), values.size() * sizeof(T)));
    memory_.push_back(std::move(memory).value());
    readers_.push_back([this, at, count = values.size()] { return read(at, count); });
    return at;
  }
  template <typename T>
  const T* in(const std::vector<T>& values) {
    return inout(values);
  }
  template <typename T>
  T* out(int64_t count) {
    return inout(std::vector<T>(static_cast<size_t>(count)));
  }
  std::vector<std::vector<double>> all() {
    std::vector<std::vector<double>> buffers;
    for (const auto& reader : readers_) buffers.push_back(reader());
    return buffers;
  }

  Device& device;

 private:
  template <typename T>
  std::vector<double> read(const T* at, size_t count) {
    std::vector<T> values(count);
    const auto copied = device.copy_out(values.data(), at, count * sizeof(T));
    REQUIRE_MESSAGE(copied, copied.error().to_string());
    std::vector<double> numbers;
    for (const T value : values) {
      if constexpr (std::is_same_v<T, Bf16>) {
        numbers.push_back(cuda::widened(value));
      } else {
        numbers.push_back(static_cast<double>(value));
      }
    }
    return numbers;
  }

  int64_t offset_;
  std::vector<cuda::Memory> memory_;
  std::vector<std::function<std::vector<double>()>> readers_;
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return size > 0.0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

template <typename T>
constexpr DType kType = std::is_same_v<T, float> ? DType::kFp32 : DType::kBf16;

// Some ops, the shapes of their kernels, and how many calls of them ask for one.
struct Case {
  std::string name;
  std::vector<KernelShape> shapes;
  int calls;
  std::function<void(Scene&)> run;
  double tolerance;
};
using Cases = std::vector<Case>;

template <typename T>
void add_norms(Cases& cases, int64_t N, int64_t C) {
  const auto x = as<T>(random_values(N * C, 1)), more = as<T>(random_values(N * C, 2)),
             dy = as<T>(random_values(N * C, 3)), w = as<T>(random_values(C, 4)),
             beta = as<T>(random_values(C, 5));
  cases.push_back({what("rmsnorm", kDType<T>, {{"N", N}, {"C", C}}),
                   {{Op::kRmsNormForward, kType<T>, C, Target::kCuda},
                    {Op::kRmsNormBackward, kType<T>, C, Target::kCuda}},
                   3,
                   [=](Scene& s) {
                     float* const rrms = s.out<float>(N);
                     T* const sum = s.inout(x);
                     const T* const weight = s.in(w);
                     cuda::rmsnorm_forward(s.device, s.out<T>(N * C), rrms, s.in(x), weight, N, C, kEpsilon);
                     cuda::rmsnorm_residual_forward(s.device, s.out<T>(N * C), rrms, sum, s.in(more), weight,
                                                    N, C, kEpsilon);
                     cuda::rmsnorm_backward(s.device, s.inout(more), s.out<float>(C), s.in(dy),
                                            static_cast<const T*>(sum), weight,
                                            static_cast<const float*>(rrms), N, C);
                   },
                   kTolerance<T>});
  cases.push_back({what("layernorm", kDType<T>, {{"N", N}, {"C", C}}),
                   {{Op::kLayerNormForward, kType<T>, C, Target::kCuda},
                    {Op::kLayerNormBackward, kType<T>, C, Target::kCuda}},
                   3,
                   [=](Scene& s) {
                     float *const means = s.out<float>(N), *const rstds = s.out<float>(N);
                     T* const sum = s.inout(x);
                     const T *const gamma = s.in(w), *const shift = s.in(beta);
                     cuda::layernorm_forward(s.device, s.out<T>(N * C), means, rstds, s.inout(x),
                                             static_cast<const T*>(nullptr), gamma, shift, N, C, kEpsilon);
                     cuda::layernorm_forward(s.device, s.out<T>(N * C), means, rstds, sum, s.in(more), gamma,
                                             shift, N, C, kEpsilon);
                     cuda::layernorm_backward(s.device, s.out<T>(N * C), s.out<float>(C), s.out<float>(C),
                                              s.in(dy), static_cast<const T*>(sum), gamma,
                                              static_cast<const float*>(means),
                                              static_cast<const float*>(rstds), N, C);
                   },
                   kTolerance<T>});
}

template <typename T>
void add_swiglu(Cases& cases, int64_t N, int64_t F) {
  const auto gate_up = as<T>(random_values(2 * N * F, 6)), dy = as<T>(random_values(N * F, 7));
  cases.push_back(
      {what("swiglu", kDType<T>, {{"N", N}, {"F", F}}),
       {{Op::kSwiGluForward, kType<T>, F, Target::kCuda}, {Op::kSwiGluBackward, kType<T>, F, Target::kCuda}},
       2,
       [=](Scene& s) {
         const T* const both = s.in(gate_up);
         cuda::swiglu_forward(s.device, s.out<T>(N * F), both, N, F);
         cuda::swiglu_backward(s.device, s.out<T>(2 * N * F), s.in(dy), both, N, F);
       },
       kTolerance<T>});
}

// Rotary embedding of queries and keys, then attention both ways.
template <typename T>
void add_attention(Cases& cases, const AttentionShape& shape, bool causal) {
  const int64_t N = shape.B * shape.T;
  const auto qkv = as<T>(random_values(N * shape.qkv_stride(), 8)),
             dout = as<T>(random_values(N * shape.H * shape.D, 9));
  const auto of = [&](Op op) { return KernelShape{op, kType<T>, shape.D, Target::kCuda, shape.H, shape.K}; };
  cases.push_back({what("attention", kDType<T>, {{"T", shape.T}, {"H", shape.H}, {"D", shape.D}}),
                   {of(Op::kRope), of(Op::kAttentionForward), of(Op::kAttentionBackward)},
                   5,
                   [=](Scene& s) {
                     T* const turned = s.inout(qkv);
                     float* const table = s.out<float>(shape.T * shape.D);
                     cuda::rope_table(s.device, table, shape.T, shape.D, 1e4);
                     for (const bool inverse : {false, true}) {
                       cuda::rope(s.device, inverse ? s.inout(qkv) : turned, static_cast<const float*>(table),
                                  shape.B, shape.T, shape.H + shape.K, shape.D, shape.qkv_stride(), inverse);
                     }
                     T* const out = s.out<T>(N * shape.H * shape.D);
                     float* const lse = s.out<float>(shape.B * shape.H * shape.T);
                     cuda::attention_forward(s.device, out, lse, static_cast<const T*>(turned), shape,
                                             {causal, nullptr, nullptr});
                     cuda::attention_backward(s.device, s.out<T>(N * shape.qkv_stride()), s.in(dout),
                                              static_cast<const T*>(out), static_cast<const T*>(turned),
                                              static_cast<const float*>(lse), shape,
                                              {causal, nullptr, nullptr});
                   },
                   4 * kTolerance<T>});
}

template <typename T>
void add_classifier(Cases& cases, int64_t N, int64_t V) {
  const Values logits = random_values(N * V, 10, 4.0F);
  auto targets = random_tokens(N, V, 11);
  targets[1] = -1;
  const bool narrow = std::is_same_v<T, Bf16>;
  cases.push_back({what("cross_entropy", kDType<T>, {{"N", N}, {"V", V}}),
                   {{Op::kCrossEntropy, kType<T>, V, Target::kCuda}},
                   narrow ? 2 : 1,
                   [=](Scene& s) {
                     const int32_t* const ids = s.in(targets);
                     cuda::cross_entropy(s.device, s.out<double>(1), s.out<T>(N * V), s.in(logits), ids, N, V,
                                         0.5F);
                     if constexpr (std::is_same_v<T, Bf16>) {
                       Bf16* const both = s.inout(as<Bf16>(logits));
                       cuda::cross_entropy_bf16(s.device, s.out<double>(1), both, both, ids, N, V, 0.5F);
                     }
                   },
                   kTolerance<T>});
  cases.push_back({what("cross_entropy_slice", kDType<T>, {{"N", N}, {"V", V}}),
                   {{Op::kCrossEntropySlice, kType<T>, V, Target::kCuda}},
                   2,
                   [=](Scene& s) {
                     const int32_t* const ids = s.in(targets);
                     const float* const slice = s.in(logits);
                     float* const stats = s.out<float>(N * kernels::kSliceStats);
                     cuda::classifier_slice_stats(s.device, stats, slice, ids, N, V, 0);
                     cuda::cross_entropy_slice(s.device, s.out<double>(1), s.out<T>(N * V), slice,
                                               static_cast<const float*>(stats), ids, N, V, 0, 1, 0.5F);
                   },
                   kTolerance<T>});
}

Cases all_cases() {
  Cases cases;
  add_norms<float>(cases, 3, 100);
  add_norms<Bf16>(cases, 70, 96);
  add_norms<Bf16>(cases, 3, 1001);  // an element at a time
  add_norms<Bf16>(cases, 2, 6400);  // more shared memory than a kernel may have unasked
  add_swiglu<float>(cases, 3, 36);
  add_swiglu<Bf16>(cases, 5, 2056);
  add_swiglu<Bf16>(cases, 5, 37);
  add_attention<float>(cases, {2, 70, 4, 2, 32}, true);
  add_attention<Bf16>(cases, {2, 70, 4, 2, 64}, true);
  add_attention<Bf16>(cases, {1, 130, 2, 1, 128}, false);
  add_attention<Bf16>(cases, {2, 70, 6, 3, 48}, true);
  add_classifier<float>(cases, 5, 516);
  add_classifier<Bf16>(cases, 5, 1032);
  add_classifier<Bf16>(cases, 5, 259);
  return cases;
}

}  // namespace

TEST_CASE("specialised kernels: every op starts the one of its size and computes what the library's does") {
  const Cases cases = all_cases();
  std::vector<KernelShape> shapes;
  for (const Case& one : cases) shapes.insert(shapes.end(), one.shapes.begin(), one.shapes.end());
  const auto plain = new_device(), loaded = new_device();
  const auto kernels = compiled(shapes, loaded->architecture());
  const auto done = loaded->load_kernels(kernels);
  REQUIRE_MESSAGE(done, done.error().to_string());
  for (const Case& one : cases) {
    INFO(one.name);
    Scene want(*plain), got(*loaded);
    const auto before = loaded->kernel_calls();
    one.run(want);
    one.run(got);
    CHECK_EQ(loaded->kernel_calls().served - before.served, one.calls);
    const auto wanted = want.all(), gotten = got.all();
    for (size_t i = 0; i < wanted.size(); ++i) {
      CAPTURE(i);
      if (kEmulated) CHECK(gotten[i] == wanted[i]);
      CHECK_LE(distance(gotten[i], wanted[i]), one.tolerance);
    }
  }
  CHECK_EQ(loaded->kernel_calls().missed, 0);
  CHECK_EQ(plain->kernel_calls().served, 0);
}

TEST_CASE("specialised kernels: a call of another size, or off the alignment, starts the library's kernel") {
  const auto plain = new_device(), loaded = new_device();
  REQUIRE(loaded->load_kernels(
      compiled({{Op::kSwiGluForward, DType::kBf16, 96, Target::kCuda}}, loaded->architecture())));
  const auto run = [](Device& device, int64_t F, int64_t offset) {
    Scene scene(device, offset);
    cuda::swiglu_forward(device, scene.out<Bf16>(2 * F), scene.in(as<Bf16>(random_values(4 * F, 12))), 2, F);
    return scene.all();
  };
  CHECK_EQ(run(*loaded, 104, 0), run(*plain, 104, 0));
  CHECK_EQ(run(*loaded, 96, 1), run(*plain, 96, 1));
  CHECK_EQ(loaded->kernel_calls().served, 0);
  CHECK_EQ(loaded->kernel_calls().missed, 2);
  run(*loaded, 96, 0);
  CHECK_EQ(loaded->kernel_calls().served, 1);
}

#ifdef EMULATED_NVRTC
TEST_CASE("specialised kernels: code for another GPU, without its functions or cut off is not loaded") {
  const auto device = new_device();
  const KernelShape shape{Op::kSwiGluForward, DType::kBf16, 96, Target::kCuda};
  const auto refused = [&](const kernels::KernelCode& code) {
    const auto loaded = device->load_kernels(std::vector{code});
    return !loaded && loaded.error().code() == base::Code::kCorrupt;
  };
  auto foreign = compiled({shape}, "sm_80");
  CHECK(refused(foreign.front()));
  auto other = compiled({shape}, "sm_90");
  KernelShape norm = shape;
  norm.op = Op::kRmsNormForward;
  CHECK(refused({norm, other.front().code}));
  CHECK(refused({shape, std::string(4096, '\0')}));
  CHECK(device->status());
}

TEST_CASE("specialised kernels: one that was compiled for other sizes is found by what it promised") {
  const auto device = new_device();
  auto kernels = compiled({{Op::kSwiGluForward, DType::kBf16, 96, Target::kCuda}}, "sm_90");
  kernels.front().shape.size = 104;  // whose blocks are as wide
  REQUIRE(device->load_kernels(kernels));
  Scene scene(*device);
  cuda::swiglu_forward(*device, scene.out<Bf16>(104), scene.in(as<Bf16>(random_values(208, 13))), 1, 104);
  CHECK_FALSE(device->synchronize());
  CHECK(emulation::forget_findings().find("was compiled for F == 96") != std::string::npos);
}
#endif

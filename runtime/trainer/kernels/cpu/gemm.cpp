// Linear layers through oneDNN, or through our own loops where these are faster (packed_products.h, tiled_products.h). This is
// the only file that includes oneDNN.
//
// A thread's engine, stream and compiled products live in one thread-local cache, created at its first product:
// start-up pays nothing, and threads share nothing. Products are keyed by shape, types and strides.
#include <dnnl.hpp>

#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/plan/workspace.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/cpu/ops.h"
#include "runtime/trainer/kernels/cpu/packed_products.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/thread_workspace.h"
#include "runtime/trainer/kernels/cpu/tile_products.h"
#include "runtime/trainer/kernels/cpu/tiled_products.h"
#include "runtime/trainer/kernels/cpu/vector.h"
#include "runtime/trainer/kernels/workspace.h"

namespace shardrun::kernels {
namespace {

using base::Cursor;
using dnnl::memory;

template <typename T>
constexpr memory::data_type kType = memory::data_type::f32;
template <>
constexpr memory::data_type kType<Bf16> = memory::data_type::bf16;

// Says whether this machine has the instruction set and oneDNN may use it. In every version of oneDNN its sets are
// bits, a larger set has those of the smaller ones, and no bit means that it does not know.
bool may_use(dnnl::cpu_isa wanted) {
  const auto bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::kFp32 ? kType<float> : kType<Bf16>;
}

// c (M,N) = op(a) (M,K) · op(b) (K,N), or +=; plus bias (N) of the operands' type. The operands are stored
// row-major and read transposed or not.
struct Product {
  int64_t M, K, N;
  memory::data_type type, c_type;
  bool a_transposed, b_transposed, has_bias, accumulate;

  auto key() const {
    return std::tuple(M, K, N, static_cast<int>(type), static_cast<int>(c_type), a_transposed, b_transposed,
                      has_bias, accumulate);
  }
};

struct Pointers {
  void* c;
  const void *a, *b, *bias;
};

class Products {
 public:
  static Products& of_this_thread() {
    thread_local Products products;
    return products;
  }

  struct Compiled {
    dnnl::matmul primitive;
    memory a, b, c, bias, scratch;
    int64_t scratch_bytes = 0;
    std::unordered_map<int, memory> arguments;
  };

  // `scratch` is scratch_bytes(product) of memory.
  void multiply(Compiled& compiled, const Product& product, const Pointers& at, std::byte* scratch) {
    compiled.a.set_data_handle(const_cast<void*>(at.a));
    compiled.b.set_data_handle(const_cast<void*>(at.b));
    compiled.c.set_data_handle(at.c);
    if (product.has_bias) compiled.bias.set_data_handle(const_cast<void*>(at.bias));
    compiled.scratch.set_data_handle(scratch);
    compiled.primitive.execute(stream_, compiled.arguments);
    stream_.wait();
  }

  Compiled& compile(const Product& product) {
    const auto found = compiled_.find(product.key());
    if (found != compiled_.end()) return found->second;
    const dnnl::matmul::primitive_desc description = describe(product);
    const auto empty = [&](const memory::desc& desc) { return memory(desc, engine_, nullptr); };
    Compiled compiled{primitive(description),
                      empty(description.src_desc()),
                      empty(description.weights_desc()),
                      empty(description.dst_desc()),
                      product.has_bias ? empty(description.bias_desc()) : memory(),
                      empty(description.scratchpad_desc()),
                      static_cast<int64_t>(description.scratchpad_desc().get_size()),
                      {}};
    compiled.arguments = {{DNNL_ARG_SRC, compiled.a},
                          {DNNL_ARG_WEIGHTS, compiled.b},
                          {DNNL_ARG_DST, compiled.c},
                          {DNNL_ARG_SCRATCHPAD, compiled.scratch}};
    if (product.has_bias) compiled.arguments.emplace(DNNL_ARG_BIAS, compiled.bias);
    return compiled_.emplace(product.key(), std::move(compiled)).first->second;
  }
  int64_t compiled() const { return static_cast<int64_t>(compiled_.size()); }

  // Returns the bytes of scratch that the product needs, without compiling it.
  int64_t scratch_bytes(const Product& product) const {
    const auto found = compiled_.find(product.key());
    if (found != compiled_.end()) return found->second.scratch_bytes;
    return static_cast<int64_t>(describe(product).scratchpad_desc().get_size());
  }

  // Without the instructions, oneDNN 2.6 refuses bf16 (below AVX-512) or emulates it (a quarter of fp32's speed,
  // measured); operands are widened instead.
  bool has_bf16() const { return has_bf16_; }

 private:
  Products()
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        has_bf16_(may_use(dnnl::cpu_isa::avx512_core_bf16)) {}

  static memory::desc matrix(memory::data_type type, int64_t rows, int64_t columns, bool transposed) {
    return transposed ? memory::desc({rows, columns}, type, memory::dims{1, rows})
                      : memory::desc({rows, columns}, type, memory::dims{columns, 1});
  }

  dnnl::matmul::primitive_desc describe(const Product& p) const {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const auto a = matrix(p.type, p.M, p.K, p.a_transposed), b = matrix(p.type, p.K, p.N, p.b_transposed);
    const auto bias = p.has_bias ? matrix(p.type, 1, p.N, false) : memory::desc();
    const auto c = matrix(p.c_type, p.M, p.N, false);
#if DNNL_VERSION_MAJOR >= 3
    return {engine_, a, b, bias, c, attributes};
#else
    return {dnnl::matmul::desc(a, b, bias, c), attributes, engine_};
#endif
  }

  // oneDNN 2.6 compares keys of its process-wide primitive cache while another thread replaces them (the
  // thread sanitizer sees it). Compiling is rare, so one thread at a time does it.
  static dnnl::matmul primitive(const dnnl::matmul::primitive_desc& description) {
    static std::mutex compiling;
    const std::lock_guard lock(compiling);
    return dnnl::matmul(description);
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  bool has_bf16_;
  std::map<decltype(std::declval<Product>().key()), Compiled> compiled_;
};

// Returns `call` as a product of operands of `dtype`.
Product product_of(DType dtype, const LinearCall& call) {
  const auto type = type_of(dtype);
  const plan::Product p = plan::product_of(call);
  return {p.M,    p.K,         p.N, type, p.is_narrow ? type : kType<float>, p.a_transposed, p.b_transposed,
          p.bias, p.accumulate};
}

Product in_fp32(Product product) {
  product.type = product.c_type = kType<float>;
  return product;
}

bool must_widen(const Product& product) {
  return product.type == kType<Bf16> && !Products::of_this_thread().has_bf16();
}

void multiply_widened(const LinearCall& call, const Product& p, const Pointers& at) {
  Products& products = Products::of_this_thread();
  std::byte* const workspace =
      thread_workspace(plan::widened_bytes(call) + products.scratch_bytes(in_fp32(p)));
  Cursor pieces(workspace);
  const plan::Widened wide(pieces, call);
  const auto narrow = [](const void* values) { return static_cast<const Bf16*>(values); };
  vector::widen(wide.a, narrow(at.a), p.M * p.K);
  vector::widen(wide.b, narrow(at.b), p.K * p.N);
  if (p.has_bias) vector::widen(wide.bias, narrow(at.bias), p.N);
  if (wide.c != nullptr && p.accumulate) vector::widen(wide.c, narrow(at.c), p.M * p.N);
  void* const c = wide.c != nullptr ? wide.c : at.c;
  products.multiply(products.compile(in_fp32(p)), p, {c, wide.a, wide.b, wide.bias},
                    workspace + pieces.bytes());
  if (wide.c != nullptr) vector::narrow(static_cast<Bf16*>(at.c), wide.c, p.M * p.N);
}

template <typename T>
constexpr DType kDType = std::is_same_v<T, float> ? DType::kFp32 : DType::kBf16;

// How this machine multiplies: by our own loops where they were measured to do more than oneDNN's.
plan::CpuProducts cpu_products_of_machine() {
  static const plan::CpuProducts how = [] {
    if (!may_use(dnnl::cpu_isa::avx512_core_bf16)) return plan::CpuProducts::kWidened;
    if (tiles::unit() == tiles::Unit::kAmx) return plan::CpuProducts::kTiled;
#if defined(__x86_64__)
    if (__builtin_cpu_is("amd")) return plan::CpuProducts::kPacked;
#endif
    return plan::CpuProducts::kOneDnn;
  }();
  return how;
}

bool packs(const plan::Product& product, DType dtype) {
  return plan::packs(cpu_products_of_machine(), product, dtype);
}

template <typename C, typename T>
void multiply_packed(const plan::Product& product, const Pointers& at) {
  const int threads = omp_get_max_threads();
  const plan::CpuProducts how = cpu_products_of_machine();
  std::byte* const scratch = thread_workspace(plan::packed_bytes(how, product, kDType<T>, threads));
  auto* const c = static_cast<C*>(at.c);
  const auto *const a = static_cast<const T*>(at.a), *const b = static_cast<const T*>(at.b),
                    *const bias = static_cast<const T*>(at.bias);
  if constexpr (std::is_same_v<T, Bf16>) {
    if (how == plan::CpuProducts::kTiled)
      return packed::multiply_tiled(c, a, b, bias, product, scratch, threads);
  }
  packed::multiply(c, a, b, bias, product, scratch, threads);
}

template <typename T>
void run(const LinearCall& call, const Pointers& at) {
  SHARDRUN_CHECK(call.N > 0 && call.C > 0 && call.O > 0);
  if (const plan::Product packed = plan::product_of(call); packs(packed, kDType<T>))
    return packed.is_narrow ? multiply_packed<T, T>(packed, at) : multiply_packed<float, T>(packed, at);
  const Product product = product_of(kDType<T>, call);
  if (must_widen(product)) return multiply_widened(call, product, at);
  Products& products = Products::of_this_thread();
  auto& compiled = products.compile(product);
  products.multiply(compiled, product, at, thread_workspace(compiled.scratch_bytes));
}

using Op = LinearCall::Op;

template <typename T>
class CpuProducts final : public ProductOps<T> {
 public:
  void linear_forward(T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const override {
    run<T>({Op::kForward, N, C, O}, {y, x, w, nullptr});
  }

  void linear_forward_fp32(float* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const override {
    run<T>({Op::kForwardFp32, N, C, O}, {y, x, w, nullptr});
  }

  void linear_bias_forward(T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                           int64_t O) const override {
    run<T>({Op::kForward, N, C, O, /*bias=*/true}, {y, x, w, bias});
  }

  void linear_bias_forward_fp32(float* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                                int64_t O) const override {
    run<T>({Op::kForwardFp32, N, C, O, /*bias=*/true}, {y, x, w, bias});
  }

  void linear_backward_input(T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O,
                             bool accumulate) const override {
    run<T>({Op::kBackwardInput, N, C, O, /*bias=*/false, accumulate}, {dx, dy, w, nullptr});
  }

  void linear_backward_input_fp32(float* dx, const T* dy, const T* w, int64_t N, int64_t C,
                                  int64_t O) const override {
    run<T>({Op::kBackwardInputFp32, N, C, O}, {dx, dy, w, nullptr});
  }

  void linear_backward_weight(float* dw, const T* dy, const T* x, int64_t N, int64_t C, int64_t O,
                              bool accumulate) const override {
    run<T>({Op::kBackwardWeight, N, C, O, /*bias=*/false, accumulate}, {dw, dy, x, nullptr});
  }

  // Sums rows in groups and then the groups in order, which keeps the error of a long sum small.
  void bias_backward(float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate) const override {
    constexpr int64_t kGroup = 32, kSmallestColumns = 64;
    parallel_for(O, kSmallestColumns, [&](int64_t begin, int64_t end) {
      const int64_t columns = end - begin;
      std::vector<float> buffers(3 * columns);
      float *wide = buffers.data(), *group = wide + columns, *total = group + columns;
      if (accumulate) std::copy(dbias + begin, dbias + end, total);
      for (int64_t first = 0; first < N; first += kGroup) {
        std::fill_n(group, columns, 0.0f);
        for (int64_t n = first; n < std::min(N, first + kGroup); ++n) {
          vector::add(group, group, vector::load(dy + n * O + begin, wide, columns), columns);
        }
        vector::add(total, total, group, columns);
      }
      std::copy(total, total + columns, dbias + begin);
    });
  }
};

}  // namespace

vector::InstructionSet vector::instruction_set() {
  static const InstructionSet level = [] {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && may_use(dnnl::cpu_isa::avx512_core)) return InstructionSet::kAvx512;
    if (avx2 && may_use(dnnl::cpu_isa::avx2)) return InstructionSet::kAvx2;
#endif
    return InstructionSet::kBaseline;
  }();
  return level;
}

tiles::Unit tiles::unit() {
  static const Unit found =
      unit_of(may_use(dnnl::cpu_isa::avx512_core_amx), may_use(dnnl::cpu_isa::avx512_core_bf16));
  return found;
}

std::string cpu_instructions() {
  const dnnl_version_t* const library = dnnl_version();
  const std::string_view set = [] {
    if (tiles::unit() == tiles::Unit::kAmx) return "AMX";
    if (tiles::unit() == tiles::Unit::kAvx512Bf16) return "AVX-512 with bf16";
    if (vector::instruction_set() == vector::InstructionSet::kAvx512) return "AVX-512";
    if (vector::instruction_set() == vector::InstructionSet::kAvx2) return "AVX2";
    return "no vectors beyond the baseline's";
  }();
  return fmt::format("{}, oneDNN {}.{}.{}", set, library->major, library->minor, library->patch);
}

int64_t product_bytes(const OpList& ops) {
  const Products& products = Products::of_this_thread();
  int64_t most = 0;
  for (const LinearCall& call : ops.linears) {
    const Product product = product_of(ops.dtype, call);
    if (const plan::Product packed = plan::product_of(call); packs(packed, ops.dtype))
      most = std::max(
          most, plan::packed_bytes(cpu_products_of_machine(), packed, ops.dtype, omp_get_max_threads()));
    else if (must_widen(product))
      most = std::max(most, plan::widened_bytes(call) + products.scratch_bytes(in_fp32(product)));
    else
      most = std::max(most, products.scratch_bytes(product));
  }
  return most;
}

void prepare(const OpList& ops) {
  for (const LinearCall& call : ops.linears) {
    if (packs(plan::product_of(call), ops.dtype)) continue;
    const Product product = product_of(ops.dtype, call);
    Products::of_this_thread().compile(must_widen(product) ? in_fp32(product) : product);
  }
}

int64_t compiled_products() {
  return Products::of_this_thread().compiled();
}

template <typename T>
const ProductOps<T>& cpu_products() {
  static const CpuProducts<T> ops;
  return ops;
}
template const ProductOps<float>& cpu_products();
template const ProductOps<Bf16>& cpu_products();

}  // namespace shardrun::kernels

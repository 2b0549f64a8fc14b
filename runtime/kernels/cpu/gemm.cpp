// Linear layers through oneDNN, the only file that includes it.
//
// A thread's engine, stream and compiled products live in one thread-local cache, created at its first
// product: start-up pays nothing, and threads share nothing. Products are keyed by shape, types and strides.
#include <dnnl.hpp>

#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/kernels/cpu/parallel.h"
#include "runtime/kernels/cpu/vector.h"
#include "runtime/kernels/ops.h"

namespace shardrun::kernels {
namespace {

using dnnl::memory;

template <typename T>
constexpr memory::data_type kType = memory::data_type::f32;
template <>
constexpr memory::data_type kType<Bf16> = memory::data_type::bf16;

bool has_avx512_core(dnnl::cpu_isa isa) {
  return isa == dnnl::cpu_isa::avx512_core || isa == dnnl::cpu_isa::avx512_core_vnni ||
         isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

// One matrix operand: stored row-major as (rows, columns), read transposed or not.
struct Operand {
  const void* data;
  memory::data_type type;
  bool transposed;
};

class Products {
 public:
  static Products& of_this_thread() {
    thread_local Products products;
    return products;
  }

  // c (M,N) = op(a) (M,K) · op(b) (K,N), or +=; plus bias (N), of a's type, unless it is null.
  void multiply(void* c, memory::data_type c_type, const Operand& a, const Operand& b, const void* bias,
                int64_t M, int64_t K, int64_t N, bool accumulate) {
    const Key key{M,
                  K,
                  N,
                  static_cast<int>(a.type),
                  static_cast<int>(c_type),
                  (bias != nullptr) * 8 + a.transposed * 4 + b.transposed * 2 + accumulate};
    auto found = compiled_.find(key);
    if (found == compiled_.end())
      found = compiled_.emplace(key, compile(a, b, c_type, bias != nullptr, M, K, N, accumulate)).first;
    Compiled& product = found->second;
    product.a.set_data_handle(const_cast<void*>(a.data));
    product.b.set_data_handle(const_cast<void*>(b.data));
    product.c.set_data_handle(c);
    if (bias != nullptr) product.bias.set_data_handle(const_cast<void*>(bias));
    product.primitive.execute(stream_, product.arguments);
    stream_.wait();
  }

  // Without the instructions, oneDNN 2.6 refuses bf16 (below AVX-512) or emulates it (a quarter of fp32's speed,
  // measured); operands are widened instead.
  bool has_bf16() const { return has_bf16_; }

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, int, int, int>;
  struct Compiled {
    dnnl::matmul primitive;
    memory a, b, c, bias;
    std::unordered_map<int, memory> arguments;
  };

  Products() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    has_bf16_ = isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  }

  static memory::desc describe(memory::data_type type, int64_t rows, int64_t columns, bool transposed) {
    return transposed ? memory::desc({rows, columns}, type, memory::dims{1, rows})
                      : memory::desc({rows, columns}, type, memory::dims{columns, 1});
  }

  Compiled compile(const Operand& a, const Operand& b, memory::data_type c_type, bool has_bias, int64_t M,
                   int64_t K, int64_t N, bool accumulate) {
    const memory::desc a_desc = describe(a.type, M, K, a.transposed);
    const memory::desc b_desc = describe(b.type, K, N, b.transposed);
    const memory::desc c_desc = describe(c_type, M, N, false);
    const memory::desc bias_desc = has_bias ? describe(a.type, 1, N, false) : memory::desc();
    // oneDNN 2.6 compares keys of its process-wide primitive cache while another thread replaces them (the
    // thread sanitizer sees it). Compiling is rare, so one thread at a time does it.
    static std::mutex compiling;
    const std::lock_guard lock(compiling);
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::desc operation(a_desc, b_desc, bias_desc, c_desc);
    const dnnl::matmul::primitive_desc description(operation, attributes, engine_);
    Compiled product{dnnl::matmul(description),
                     memory(a_desc, engine_, nullptr),
                     memory(b_desc, engine_, nullptr),
                     memory(c_desc, engine_, nullptr),
                     has_bias ? memory(bias_desc, engine_, nullptr) : memory(),
                     {}};
    product.arguments = {{DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.c}};
    if (has_bias) product.arguments.emplace(DNNL_ARG_BIAS, product.bias);
    return product;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  bool has_bf16_ = false;
  std::map<Key, Compiled> compiled_;
};

std::vector<float> widened(const Bf16* values, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  vector::widen(out.data(), values, count);
  return out;
}

// What a product does besides multiplying.
template <typename T>
struct Extras {
  const T* bias = nullptr;  // (N)
  bool accumulate = false;
};

// c (M,N) of C = op(a) · op(b), both of T. `a` holds M·K values, `b` K·N.
template <typename C, typename T>
void product(C* c, const T* a, bool a_transposed, const T* b, bool b_transposed, int64_t M, int64_t K,
             int64_t N, const Extras<T>& extras = {}) {
  SHARDRUN_CHECK(M > 0 && K > 0 && N > 0);
  Products& products = Products::of_this_thread();
  if constexpr (std::is_same_v<T, Bf16>) {
    if (!products.has_bf16()) {
      const std::vector<float> wide_a = widened(a, M * K), wide_b = widened(b, K * N);
      const std::vector<float> wide_bias = widened(extras.bias, extras.bias != nullptr ? N : 0);
      const Extras<float> wide{extras.bias != nullptr ? wide_bias.data() : nullptr, extras.accumulate};
      if constexpr (std::is_same_v<C, float>) {
        product(c, wide_a.data(), a_transposed, wide_b.data(), b_transposed, M, K, N, wide);
      } else {
        std::vector<float> wide_c =
            extras.accumulate ? widened(c, M * N) : std::vector<float>(static_cast<size_t>(M * N));
        product(wide_c.data(), wide_a.data(), a_transposed, wide_b.data(), b_transposed, M, K, N, wide);
        vector::narrow(c, wide_c.data(), M * N);
      }
      return;
    }
  }
  products.multiply(c, kType<C>, {a, kType<T>, a_transposed}, {b, kType<T>, b_transposed}, extras.bias, M, K,
                    N, extras.accumulate);
}

}  // namespace

vector::InstructionSet vector::instruction_set() {
  static const InstructionSet level = [] {
#if defined(__x86_64__)
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && has_avx512_core(isa)) return InstructionSet::kAvx512;
    if (avx2 && isa != dnnl::cpu_isa::sse41 && isa != dnnl::cpu_isa::avx && isa != dnnl::cpu_isa::all)
      return InstructionSet::kAvx2;
#endif
    return InstructionSet::kBaseline;
  }();
  return level;
}

template <typename T>
void linear_forward(T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) {
  product(y, x, false, w, true, N, C, O);
}

template <typename T>
void linear_forward_fp32(float* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) {
  product(y, x, false, w, true, N, C, O);
}

template <typename T>
void linear_bias_forward(T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C, int64_t O) {
  product(y, x, false, w, true, N, C, O, Extras<T>{.bias = bias});
}

template <typename T>
void linear_bias_forward_fp32(float* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                              int64_t O) {
  product(y, x, false, w, true, N, C, O, Extras<T>{.bias = bias});
}

template <typename T>
void linear_backward_input(T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O, bool accumulate) {
  product(dx, dy, false, w, false, N, O, C, Extras<T>{.accumulate = accumulate});
}

template <typename T>
void linear_backward_input_fp32(float* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O) {
  product(dx, dy, false, w, false, N, O, C);
}
template <typename T>
void linear_backward_weight(float* dw, const T* dy, const T* x, int64_t N, int64_t C, int64_t O,
                            bool accumulate) {
  product(dw, dy, true, x, false, O, N, C, Extras<T>{.accumulate = accumulate});
}

#define SHARDRUN_INSTANTIATE(T)                                                                            \
  template void linear_forward(T*, const T*, const T*, int64_t, int64_t, int64_t);                         \
  template void linear_forward_fp32(float*, const T*, const T*, int64_t, int64_t, int64_t);                \
  template void linear_bias_forward(T*, const T*, const T*, const T*, int64_t, int64_t, int64_t);          \
  template void linear_bias_forward_fp32(float*, const T*, const T*, const T*, int64_t, int64_t, int64_t); \
  template void linear_backward_input(T*, const T*, const T*, int64_t, int64_t, int64_t, bool);            \
  template void linear_backward_input_fp32(float*, const T*, const T*, int64_t, int64_t, int64_t);         \
  template void linear_backward_weight(float*, const T*, const T*, int64_t, int64_t, int64_t, bool);
SHARDRUN_INSTANTIATE(float)
SHARDRUN_INSTANTIATE(Bf16)
#undef SHARDRUN_INSTANTIATE

}  // namespace shardrun::kernels

// Linear layers through cublasLt; this is the only file that calls it.
//
// cublasLt counts matrices by columns, so it is asked for the transposes: yᵀ (O,N) = w·xᵀ and so on; no data moves.
// What a product of some shape needs (descriptors, algorithm) is made once and kept. Products accumulate in fp32,
// also where cublasLt splits the inner dimension: other reductions are not allowed. fp32 is never TF32.
// A product that cublasLt has no kernel for, or one with an inner dimension of 0, runs in a plain loop of ours.
#include <algorithm>
#include <map>
#include <vector>

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"

namespace shardrun::kernels::cuda {
namespace {

using base::Code;

constexpr size_t kProductWorkspace = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr int kProposals = 8, kTimedRuns = 5;

// d (m,n) = op(a)·op(b) [· a_scale · b_scale] [+ bias (m)] [+ d], all by columns; op(a) (m,k), op(b) (k,n).
struct Product {
  bool transpose_a = false, transpose_b = false, accumulate = false;
  bool adds_fast = false;  // for fp8: sums have the tensor cores' own precision
  cudaDataType_t a_type = CUDA_R_32F, b_type = CUDA_R_32F, out = CUDA_R_32F;
  int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr, *bias = nullptr;  // bias has the type `out`
  void* d = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;  // for fp8

  int64_t a_rows() const { return transpose_a ? k : m; }
  int64_t b_rows() const { return transpose_b ? n : k; }
  int64_t a_columns() const { return transpose_a ? m : k; }
  int64_t b_columns() const { return transpose_b ? k : n; }
};

uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return address == 0 ? 256 : static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

const char* name_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
      return "fp32";
    case CUDA_R_8F_E4M3:
      return "e4m3";
    case CUDA_R_8F_E5M2:
      return "e5m2";
    default:
      return "bf16";
  }
}

// Says in words all that the choice of an algorithm depends on.
std::string shape_of(const Product& p) {
  std::string text = name_of(p.a_type);
  if (p.b_type != p.a_type) text += std::string("*") + name_of(p.b_type);
  text += std::string(">") + name_of(p.out) + (p.adds_fast ? " fast" : "") + " " +
          (p.transpose_a ? "T" : "N") + (p.transpose_b ? "T" : "N");
  for (const int64_t size : {p.m, p.n, p.k}) text += " " + std::to_string(size);
  if (p.bias != nullptr) text += " bias";
  if (p.accumulate) text += " add";
  text += " aligned";
  for (const void* pointer : {p.a, p.b, static_cast<const void*>(p.d), p.bias})
    text += " " + std::to_string(alignment_of(pointer));
  return text;
}

using Key = std::array<int64_t, 8>;
Key key_of(const Product& p) {
  const int64_t flags = (p.transpose_a ? 1 : 0) | (p.transpose_b ? 2 : 0) | (p.accumulate ? 4 : 0) |
                        (p.bias != nullptr ? 8 : 0) | (p.adds_fast ? 16 : 0) | int64_t{p.a_type} << 8 |
                        int64_t{p.b_type} << 16 | int64_t{p.out} << 24;
  return {
      flags, p.m, p.n, p.k, alignment_of(p.a), alignment_of(p.b), alignment_of(p.d), alignment_of(p.bias)};
}

// cublasLt's descriptors of a shape, and the algorithm chosen for it.
struct Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (preference != nullptr) (void)cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout != nullptr) (void)cublasLtMatrixLayoutDestroy(layout);
    }
    if (product != nullptr) (void)cublasLtMatmulDescDestroy(product);
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool is_plain = false;  // whether cublasLt has no algorithm
};

}  // namespace

struct ProductPlans {
  std::map<Key, Plan> of_shape;
};

namespace {

#define RETURN_IF_REFUSED(call)                                                                \
  do {                                                                                         \
    if (const cublasStatus_t status_of_call = (call); status_of_call != CUBLAS_STATUS_SUCCESS) \
      return status_of_call;                                                                   \
  } while (false)

template <typename Value>
cublasStatus_t set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                   const Value& value) {
  return cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value);
}
template <typename Value>
cublasStatus_t set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                   const Value& value) {
  return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
}

cublasStatus_t set_scales(Plan& plan, const Product& p) {
  RETURN_IF_REFUSED(set(plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.a_scale));
  return set(plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.b_scale);
}

cublasStatus_t describe(Plan& plan, const Product& p) {
  RETURN_IF_REFUSED(cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t op_a = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  RETURN_IF_REFUSED(set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, op_a));
  RETURN_IF_REFUSED(set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, op_b));
  if (p.bias != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    RETURN_IF_REFUSED(set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
    RETURN_IF_REFUSED(set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(p.out)));
    RETURN_IF_REFUSED(set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
  }
  if (p.a_scale != nullptr) {
    RETURN_IF_REFUSED(
        set(plan.product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(p.adds_fast ? 1 : 0)));
    RETURN_IF_REFUSED(set_scales(plan, p));
  }
  const auto u = [](int64_t size) { return static_cast<uint64_t>(size); };
  RETURN_IF_REFUSED(
      cublasLtMatrixLayoutCreate(&plan.a, p.a_type, u(p.a_rows()), u(p.a_columns()), p.a_rows()));
  RETURN_IF_REFUSED(
      cublasLtMatrixLayoutCreate(&plan.b, p.b_type, u(p.b_rows()), u(p.b_columns()), p.b_rows()));
  RETURN_IF_REFUSED(cublasLtMatrixLayoutCreate(&plan.d, p.out, u(p.m), u(p.n), p.m));
  RETURN_IF_REFUSED(cublasLtMatmulPreferenceCreate(&plan.preference));
  RETURN_IF_REFUSED(set(plan.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kProductWorkspace));
  RETURN_IF_REFUSED(set(plan.preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  RETURN_IF_REFUSED(set(plan.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.a)));
  RETURN_IF_REFUSED(set(plan.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.b)));
  RETURN_IF_REFUSED(set(plan.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.d)));
  return set(plan.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
             std::min(alignment_of(p.d), alignment_of(p.bias)));
}

cublasStatus_t run(OpScope& op, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Product& p,
                   void* d, std::byte* workspace) {
  const float one = 1.0F, rest = p.accumulate ? 1.0F : 0.0F;
  return cublasLtMatmul(op.state().products, plan.product, &one, p.a, plan.a, p.b, plan.b, &rest, d, plan.d,
                        d, plan.d, &algorithm, workspace, kProductWorkspace, op.stream());
}

// Chooses the fastest of the proposals by the median of a few runs; false after a failure. A product that
// overwrites its result is timed where it belongs. One that adds to it needs other memory for the timing, which
// nobody planned: without it the first proposal stays.
bool choose_by_time(OpScope& op, Plan& plan, const Product& p,
                    std::span<const cublasLtMatmulHeuristicResult_t> proposals, std::byte* workspace) {
  void* d = p.d;
  bool ok = true;
  if (p.accumulate) {
    const size_t bytes = static_cast<size_t>(p.m * p.n) * (p.out == CUDA_R_32F ? 4 : 2);
    const cudaError_t allocated = cudaMallocAsync(&d, bytes, op.stream());
    if (allocated == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return true;
    }
    if (!op.check(allocated)) return false;
    ok = op.check(cudaMemsetAsync(d, 0, bytes, op.stream()));
  }
  cudaEvent_t* const marks = op.state().marks;
  float best = 0.0F;
  const cublasLtMatmulAlgo_t* chosen = nullptr;
  for (const auto& proposal : proposals) {
    std::vector<float> times;
    for (int i = 0; ok && i <= kTimedRuns; ++i) {  // the first one warms up
      ok = op.check(cudaEventRecord(marks[0], op.stream()));
      if (run(op, plan, proposal.algo, p, d, workspace) != CUBLAS_STATUS_SUCCESS) break;
      float time = 0.0F;
      ok = ok && op.check(cudaEventRecord(marks[1], op.stream())) &&
           op.check(cudaEventSynchronize(marks[1])) &&
           op.check(cudaEventElapsedTime(&time, marks[0], marks[1]));
      if (i > 0) times.push_back(time);
    }
    if (!ok) break;
    if (times.size() < kTimedRuns) continue;
    std::nth_element(times.begin(), times.begin() + kTimedRuns / 2, times.end());
    if (chosen == nullptr || times[kTimedRuns / 2] < best) {
      best = times[kTimedRuns / 2];
      chosen = &proposal.algo;
    }
  }
  if (chosen != nullptr) plan.algorithm = *chosen;
  return (!p.accumulate || op.check(cudaFreeAsync(d, op.stream()))) && ok;
}

// Fills in plan.algorithm or plan.is_plain; false after a failure.
bool choose(OpScope& op, Plan& plan, const Product& p, std::byte* workspace) {
  Device::State& state = op.state();
  const std::string shape = shape_of(p);
  static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(ProductAlgorithm::words));
  if (const ProductAlgorithm* known = state.table.find(shape)) {
    std::memcpy(&plan.algorithm, known->words.data(), sizeof plan.algorithm);
    cublasLtMatmulHeuristicResult_t checked{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(state.products, plan.product, plan.a, plan.b,
                                                          plan.d, plan.d, &plan.algorithm, &checked);
    if (status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= kProductWorkspace) return true;
    op.fail(Code::kCorrupt,
            "cublasLt refuses what the table of products says for " + shape + "; remove the table's file");
    return false;
  }
  cublasLtMatmulHeuristicResult_t proposals[kProposals] = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(state.products, plan.product, plan.a, plan.b, plan.d, plan.d,
                                     plan.preference, kProposals, proposals, &count);
  int usable = 0;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    if (proposals[i].state == CUBLAS_STATUS_SUCCESS) proposals[usable++] = proposals[i];
  }
  if (usable == 0) {
    plan.is_plain = true;
    state.plain_products.push_back(shape + ": " + cublasLtGetStatusString(status));
    return true;
  }
  plan.algorithm = proposals[0].algo;
  if (!state.tuning) return op.runs();
  if (!choose_by_time(op, plan, p, {proposals, static_cast<size_t>(usable)}, workspace)) return false;
  ProductAlgorithm found;
  std::memcpy(found.words.data(), &plan.algorithm, sizeof plan.algorithm);
  state.table.set(shape, found);
  return true;
}

constexpr int kTile = 16;

template <typename T>
__device__ float number_of(T value, cudaDataType_t) {
  return wide(value);
}
__device__ float number_of(uint8_t value, cudaDataType_t type) {
  return widened(type == CUDA_R_8F_E4M3 ? Fp8Format::kE4m3 : Fp8Format::kE5m2, value);
}
template <typename T>
__device__ float value_at(const T* matrix, cudaDataType_t type, bool transpose, int64_t rows, int64_t row,
                          int64_t column) {
  return number_of(transpose ? matrix[row * rows + column] : matrix[column * rows + row], type);
}

struct ProductTiles {
  float a[kTile][kTile + 1], b[kTile][kTile + 1];
};

// Computes the same product in a plain loop, with a thread for each result.
template <typename In, typename Out>
__global__ void __launch_bounds__(kTile* kTile) multiply_plainly(Product p) {
  auto& [a_tile, b_tile] = shared_memory<ProductTiles>();
  const auto* const a = static_cast<const In*>(p.a);
  const auto* const b = static_cast<const In*>(p.b);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t across = (p.m + kTile - 1) / kTile;  // one dimension of blocks, which may be many
  const int64_t row0 = int64_t{blockIdx.x} % across * kTile, column0 = int64_t{blockIdx.x} / across * kTile;
  const int64_t a_rows = p.transpose_a ? p.k : p.m, b_rows = p.transpose_b ? p.n : p.k;
  float sum = 0.0F;
  for (int64_t k0 = 0; k0 < p.k; k0 += kTile) {
    // a_tile[k][m], b_tile[k][n]
    a_tile[y][x] = row0 + x < p.m && k0 + y < p.k
                       ? value_at(a, p.a_type, p.transpose_a, a_rows, row0 + x, k0 + y)
                       : 0.0F;
    b_tile[x][y] = column0 + y < p.n && k0 + x < p.k
                       ? value_at(b, p.b_type, p.transpose_b, b_rows, k0 + x, column0 + y)
                       : 0.0F;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += a_tile[i][x] * b_tile[i][y];
    __syncthreads();
  }
  const int64_t row = row0 + x, column = column0 + y;
  if (row >= p.m || column >= p.n) return;
  Out* const d = static_cast<Out*>(p.d) + column * p.m + row;
  if (p.a_scale != nullptr) sum *= *p.a_scale * *p.b_scale;
  if (p.bias != nullptr) sum += wide(static_cast<const Out*>(p.bias)[row]);
  if (p.accumulate) sum += wide(*d);
  *d = narrow<Out>(sum);
}

void multiply_plainly(OpScope& op, const Product& p) {
  const auto blocks = static_cast<unsigned>(quotient_up(p.m, kTile) * quotient_up(p.n, kTile));
  const dim3 threads(kTile, kTile);
  const bool to_fp32 = p.out == CUDA_R_32F;
  const auto kernel = p.a_type == CUDA_R_32F ? multiply_plainly<float, float>
                      : p.a_type == CUDA_R_16BF
                          ? to_fp32 ? multiply_plainly<Bf16, float> : multiply_plainly<Bf16, Bf16>
                      : to_fp32 ? multiply_plainly<uint8_t, float>
                                : multiply_plainly<uint8_t, Bf16>;
  launch(op.stream(), {blocks, threads}, kernel, p);
}

void multiply(OpScope& op, const Product& p, std::byte* workspace) {
  if (!op.runs() || p.m == 0 || p.n == 0) return;
  if (p.k == 0) return multiply_plainly(op, p);
  Device::State& state = op.state();
  if (state.plans == nullptr) state.plans.reset(new ProductPlans);
  const auto [found, is_new] = state.plans->of_shape.try_emplace(key_of(p));
  Plan& plan = found->second;
  if (is_new) {
    if (const cublasStatus_t status = describe(plan, p); status != CUBLAS_STATUS_SUCCESS) {
      return op.fail(Code::kIo,
                     std::string("describing the product to cublasLt: ") + cublasLtGetStatusString(status));
    }
    if (!choose(op, plan, p, workspace)) return;
  }
  if (plan.is_plain) return multiply_plainly(op, p);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (p.bias != nullptr) status = set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (p.a_scale != nullptr) status = set_scales(plan, p);
  if (status == CUBLAS_STATUS_SUCCESS) status = run(op, plan, plan.algorithm, p, p.d, workspace);
  if (status != CUBLAS_STATUS_SUCCESS) {
    op.fail(Code::kIo, "cublasLtMatmul of " + shape_of(p) + ": " + cublasLtGetStatusString(status));
  }
}

template <typename T>
constexpr cudaDataType_t kType = CUDA_R_32F;
template <>
constexpr cudaDataType_t kType<Bf16> = CUDA_R_16BF;

__global__ void widen_bias(float* out, const Bf16* in, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = wide(in[i]);
}

// yᵀ (O,N) = w (O,C) · xᵀ (C,N): by columns w is (C,O) and wants transposing, x is (C,N).
template <typename Out, typename T>
void forward(Device& device, const char* name, Out* y, const T* x, const T* w, const T* bias, int64_t N,
             int64_t C, int64_t O) {
  OpScope op(device, name);
  constexpr bool kWidensBias = !std::is_same_v<Out, T>;  // cublasLt wants the bias in the result's type
  const size_t bias_bytes = kWidensBias && bias != nullptr ? static_cast<size_t>(O) * sizeof(float) : 0;
  std::byte* const workspace = op.scratch(kProductWorkspace + bias_bytes);
  if (!op.runs() || N == 0 || O == 0) return;
  const void* used_bias = bias;
  if constexpr (kWidensBias) {
    if (bias != nullptr) {
      auto* const widened = reinterpret_cast<float*>(workspace + kProductWorkspace);
      launch(op.stream(), {static_cast<unsigned>(quotient_up(O, 256)), 256}, widen_bias, widened, bias, O);
      used_bias = widened;
    }
  }
  multiply(op,
           {.transpose_a = true,
            .a_type = kType<T>,
            .b_type = kType<T>,
            .out = kType<Out>,
            .m = O,
            .n = N,
            .k = C,
            .a = w,
            .b = x,
            .bias = used_bias,
            .d = y},
           workspace);
}

// dxᵀ (C,N) = wᵀ (C,O) · dyᵀ (O,N): by columns w is (C,O) and dy (O,N).
template <typename Out, typename T>
void backward_input(Device& device, const char* name, Out* dx, const T* dy, const T* w, int64_t N, int64_t C,
                    int64_t O, bool accumulate) {
  OpScope op(device, name);
  std::byte* const workspace = op.scratch(kProductWorkspace);
  multiply(op,
           {.accumulate = accumulate,
            .a_type = kType<T>,
            .b_type = kType<T>,
            .out = kType<Out>,
            .m = C,
            .n = N,
            .k = O,
            .a = w,
            .b = dy,
            .d = dx},
           workspace);
}

cudaDataType_t type_of(const Fp8Matrix& matrix) {
  return matrix.format == Fp8Format::kE4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

template <typename T>
class GpuProducts final : public ProductOps<T> {
 public:
  explicit GpuProducts(Device& device) : device_(device) {}

  void linear_forward(T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const override {
    forward<T, T>(device_, "linear_forward", y, x, w, nullptr, N, C, O);
  }

  void linear_forward_fp32(float* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const override {
    forward<float, T>(device_, "linear_forward_fp32", y, x, w, nullptr, N, C, O);
  }

  void linear_bias_forward(T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                           int64_t O) const override {
    forward<T, T>(device_, "linear_bias_forward", y, x, w, bias, N, C, O);
  }

  void linear_bias_forward_fp32(float* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                                int64_t O) const override {
    forward<float, T>(device_, "linear_bias_forward_fp32", y, x, w, bias, N, C, O);
  }

  void linear_backward_input(T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O,
                             bool accumulate) const override {
    backward_input<T, T>(device_, "linear_backward_input", dx, dy, w, N, C, O, accumulate);
  }

  void linear_backward_input_fp32(float* dx, const T* dy, const T* w, int64_t N, int64_t C,
                                  int64_t O) const override {
    backward_input<float, T>(device_, "linear_backward_input_fp32", dx, dy, w, N, C, O, false);
  }

  // dwᵀ (C,O) = xᵀ (C,N) · dy (N,O): by columns x is (C,N), and dy (O,N) wants transposing.
  void linear_backward_weight(float* dw, const T* dy, const T* x, int64_t N, int64_t C, int64_t O,
                              bool accumulate) const override {
    OpScope op(device_, "linear_backward_weight");
    std::byte* const workspace = op.scratch(kProductWorkspace);
    multiply(op,
             {.transpose_b = true,
              .accumulate = accumulate,
              .a_type = kType<T>,
              .b_type = kType<T>,
              .out = CUDA_R_32F,
              .m = C,
              .n = O,
              .k = N,
              .a = x,
              .b = dy,
              .d = dw},
             workspace);
  }

  void bias_backward(float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate) const override {
    OpScope op(device_, "bias_backward");
    std::byte* const partial = op.scratch(sum_rows_bytes(N, O));
    if (op.runs()) sum_rows(op.stream(), dbias, dy, N, O, accumulate, partial);
  }

 private:
  Device& device_;
};

}  // namespace

template <typename T>
std::unique_ptr<ProductOps<T>> make_products(Device& device) {
  return std::make_unique<GpuProducts<T>>(device);
}
template std::unique_ptr<ProductOps<float>> make_products(Device&);
template std::unique_ptr<ProductOps<Bf16>> make_products(Device&);

template <typename Out>
void multiply_fp8(Device& device, const char* name, Out* d, const Fp8Matrix& a, const uint8_t* a_bytes,
                  const Fp8Matrix& b, const uint8_t* b_bytes, std::array<int64_t, 3> mnk, bool accumulate,
                  bool adds_fast) {
  SHARDRUN_CHECK(a_bytes != nullptr && b_bytes != nullptr && a.inverse != nullptr && b.inverse != nullptr);
  OpScope op(device, name);
  std::byte* const workspace = op.scratch(kProductWorkspace);
  multiply(op,
           {.transpose_a = true,
            .accumulate = accumulate,
            .adds_fast = adds_fast,
            .a_type = type_of(a),
            .b_type = type_of(b),
            .out = kType<Out>,
            .m = mnk[0],
            .n = mnk[1],
            .k = mnk[2],
            .a = a_bytes,
            .b = b_bytes,
            .d = d,
            .a_scale = a.inverse,
            .b_scale = b.inverse},
           workspace);
}

template void multiply_fp8(Device&, const char*, float*, const Fp8Matrix&, const uint8_t*, const Fp8Matrix&,
                           const uint8_t*, std::array<int64_t, 3>, bool, bool);
template void multiply_fp8(Device&, const char*, Bf16*, const Fp8Matrix&, const uint8_t*, const Fp8Matrix&,
                           const uint8_t*, std::array<int64_t, 3>, bool, bool);

}  // namespace shardrun::kernels::cuda

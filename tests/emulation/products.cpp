// The calls of include/cublasLt.h: plain loops with fp32 sums, in an order that the algorithm sets.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include "tests/emulation/settings.h"

struct EmulatedProduct {
  cublasOperation_t a_operation = CUBLAS_OP_N, b_operation = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1;  // the type of the result
  const void* bias = nullptr;
  int8_t adds_fast = 0;
  const float *a_scale = nullptr, *b_scale = nullptr;
};
struct EmulatedMatrix {
  cudaDataType_t type;
  int64_t rows, columns, leading;
};
struct EmulatedPreference {
  std::map<cublasLtMatmulPreferenceAttributes_t, uint64_t> values;
  uint64_t of(cublasLtMatmulPreferenceAttributes_t attribute, uint64_t otherwise) const {
    const auto found = values.find(attribute);
    return found == values.end() ? otherwise : found->second;
  }
};

namespace shardrun::emulation {
namespace {

constexpr uint64_t kMark = 0x656d756c61746564;  // marks algorithms of ours
constexpr uint64_t kAlgorithms = 3;
constexpr size_t kWorkspaceOfOne = 4096;

bool is_fp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
size_t bytes_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1;
}

float from_fp8(uint8_t bits, int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const bool is_e4m3 = exponent_bits == 4;
  if (is_e4m3 ? (bits & 0x7f) == 0x7f : exponent == 31 && mantissa != 0) return NAN;
  const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
  if (!is_e4m3 && exponent == 31) return sign * INFINITY;
  const auto fraction = static_cast<float>(exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits));
  return sign * std::ldexp(fraction, std::max(exponent, 1) - bias - mantissa_bits);
}

float number_at(const void* matrix, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_32F:
      return static_cast<const float*>(matrix)[i];
    case CUDA_R_16BF:
      return __uint_as_float(uint32_t{static_cast<const uint16_t*>(matrix)[i]} << 16);
    case CUDA_R_8F_E4M3:
      return from_fp8(static_cast<const uint8_t*>(matrix)[i], 4);
    case CUDA_R_8F_E5M2:
      return from_fp8(static_cast<const uint8_t*>(matrix)[i], 5);
  }
  return NAN;
}

void write_at(void* matrix, cudaDataType_t type, int64_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(matrix)[i] = value;
    return;
  }
  const uint32_t bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  static_cast<uint16_t*>(matrix)[i] =
      is_nan ? uint16_t{0x7fff} : static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// Returns element (row, column) of op(matrix) at [column · rows + row].
std::vector<float> numbers_of(const void* matrix, const EmulatedMatrix& layout, bool transposed) {
  const int64_t rows = transposed ? layout.columns : layout.rows,
                columns = transposed ? layout.rows : layout.columns;
  std::vector<float> numbers(static_cast<size_t>(rows * columns));
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = transposed ? row * layout.leading + column : column * layout.leading + row;
      numbers[static_cast<size_t>(column * rows + row)] = number_at(matrix, layout.type, at);
    }
  }
  return numbers;
}

struct Call {
  EmulatedProduct product;
  float alpha, beta;
  const void *a, *b, *c;
  void* d;
  EmulatedMatrix a_layout, b_layout, c_layout, d_layout;
  int64_t parts;  // parts of the inner dimension, each summed by itself
};

void multiply(const Call& call) {
  const int64_t m = call.d_layout.rows, n = call.d_layout.columns;
  const bool a_transposed = call.product.a_operation == CUBLAS_OP_T;
  const int64_t inner = a_transposed ? call.a_layout.rows : call.a_layout.columns;
  const std::vector<float> a = numbers_of(call.a, call.a_layout, a_transposed);
  const std::vector<float> b = numbers_of(call.b, call.b_layout, call.product.b_operation == CUBLAS_OP_T);
  float alpha = call.alpha;
  if (call.product.a_scale != nullptr) alpha *= *call.product.a_scale;
  if (call.product.b_scale != nullptr) alpha *= *call.product.b_scale;
  const auto bias_type =
      call.product.bias_type < 0 ? call.d_layout.type : static_cast<cudaDataType_t>(call.product.bias_type);
  std::vector<float> sums(static_cast<size_t>(m)), part_sums(static_cast<size_t>(m));
  for (int64_t column = 0; column < n; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (int64_t part = 0; part < call.parts; ++part) {
      std::fill(part_sums.begin(), part_sums.end(), 0.0F);
      for (int64_t k = inner * part / call.parts; k < inner * (part + 1) / call.parts; ++k) {
        const float factor = b[static_cast<size_t>(column * inner + k)];
        const float* const row = a.data() + k * m;
        for (int64_t i = 0; i < m; ++i) part_sums[static_cast<size_t>(i)] += row[i] * factor;
      }
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += part_sums[i];
    }
    for (int64_t i = 0; i < m; ++i) {
      float value = alpha * sums[static_cast<size_t>(i)];
      if (call.product.epilogue == CUBLASLT_EPILOGUE_BIAS)
        value += number_at(call.product.bias, bias_type, i);
      if (call.beta != 0.0F)
        value += call.beta * number_at(call.c, call.c_layout.type, column * call.c_layout.leading + i);
      write_at(call.d, call.d_layout.type, column * call.d_layout.leading + i, value);
    }
  }
}

bool fits(const EmulatedProduct& p, const EmulatedMatrix& a, const EmulatedMatrix& b, const EmulatedMatrix& c,
          const EmulatedMatrix& d) {
  const bool ta = p.a_operation == CUBLAS_OP_T, tb = p.b_operation == CUBLAS_OP_T;
  return (ta ? a.columns : a.rows) == d.rows && (tb ? b.rows : b.columns) == d.columns &&
         (ta ? a.rows : a.columns) == (tb ? b.columns : b.rows) && c.rows == d.rows &&
         c.columns == d.columns && a.leading >= a.rows && b.leading >= b.rows && c.leading >= c.rows &&
         d.leading >= d.rows && c.type == d.type;
}

bool is_supported(const EmulatedProduct& p, const EmulatedMatrix& a, const EmulatedMatrix& b,
                  const EmulatedMatrix& d) {
  if (is_fp8(d.type)) return false;
  if (is_fp8(a.type) != is_fp8(b.type)) return false;
  if (!is_fp8(a.type)) {
    return a.type == b.type && (a.type == d.type || d.type == CUDA_R_32F) && p.a_scale == nullptr &&
           p.b_scale == nullptr;
  }
  const bool is_multiple =
      a.leading % 16 == 0 && b.leading % 16 == 0 && d.leading % 16 == 0 && a.rows % 16 == 0;
  return is_multiple && p.a_operation == CUBLAS_OP_T && p.b_operation == CUBLAS_OP_N &&
         !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2);
}

template <typename Value>
cublasStatus_t read(Value& to, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Returns the alignments of a, b, c and d that an algorithm was promised, and may therefore need.
std::array<uint16_t, 4> promised(const EmulatedPreference& preference) {
  const auto of = [&](cublasLtMatmulPreferenceAttributes_t attribute) {
    return static_cast<uint16_t>(preference.of(attribute, 256));
  };
  return {of(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES), of(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES),
          of(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES), of(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)};
}
bool is_kept(const cublasLtMatmulAlgo_t& algorithm, std::array<const void*, 4> pointers) {
  const auto alignments = std::bit_cast<std::array<uint16_t, 4>>(algorithm.data[2]);
  for (size_t i = 0; i < pointers.size(); ++i) {
    if (alignments[i] == 0 || !is_aligned(pointers[i], alignments[i])) return false;
  }
  return true;
}

cublasLtMatmulHeuristicResult_t proposal_of(uint64_t parts, std::array<uint16_t, 4> alignments) {
  cublasLtMatmulHeuristicResult_t made{};
  made.algo.data[0] = kMark;
  made.algo.data[1] = parts;
  made.algo.data[2] = std::bit_cast<uint64_t>(alignments);
  made.workspaceSize = parts * kWorkspaceOfOne;
  return made;
}

}  // namespace
}  // namespace shardrun::emulation

using namespace shardrun::emulation;

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
  return "unknown";
}

size_t cublasLtGetVersion() {
  return 0;  // no library has this version
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int one;
  *handle = reinterpret_cast<cublasLtHandle_t>(&one);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *product = new EmulatedProduct;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return read(product->a_operation, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return read(product->b_operation, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return read(product->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return read(product->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return read(product->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return read(product->adds_fast, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return read(product->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return read(product->b_scale, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matrix, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *matrix = new EmulatedMatrix{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matrix) {
  delete matrix;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new EmulatedPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  uint32_t word = 0;
  uint64_t& to = preference->values[attribute];
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return read(to, value, bytes);
  const cublasStatus_t status = read(word, value, bytes);
  to = word;
  return status;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* proposals, int* count) {
  *count = 0;
  if (!fits(*product, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  const std::array<uint16_t, 4> alignments = promised(*preference);
  const size_t inputs = is_fp8(a->type) ? 16 : bytes_of(a->type),
               results = is_fp8(a->type) ? 16 : bytes_of(d->type);
  const bool is_aligned_enough = alignments[0] >= inputs && alignments[1] >= inputs &&
                                 alignments[2] >= results && alignments[3] >= results;
  if (!settings().has_products || !is_supported(*product, *a, *b, *d) || !is_aligned_enough)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint64_t parts = 1; parts <= kAlgorithms && *count < most; ++parts) {
    const cublasLtMatmulHeuristicResult_t made = proposal_of(parts, alignments);
    if (made.workspaceSize > preference->of(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0)) break;
    proposals[(*count)++] = made;
  }
  return *count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const uint64_t parts = algorithm->data[1];
  if (algorithm->data[0] != kMark || parts == 0 || parts > kAlgorithms || !fits(*product, *a, *b, *c, *d) ||
      !is_supported(*product, *a, *b, *d)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  *result = proposal_of(parts, std::bit_cast<std::array<uint16_t, 4>>(algorithm->data[2]));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  cublasLtMatmulHeuristicResult_t checked{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, product, a_layout, b_layout, c_layout, d_layout, algorithm, &checked);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  // As seen of cublasLt 13.0 on an H100: it looks at the scales' addresses here and not where it proposes.
  constexpr size_t kScaleAlignment = 16;
  if (!is_aligned(product->a_scale, kScaleAlignment) || !is_aligned(product->b_scale, kScaleAlignment))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  constexpr size_t kWorkspaceAlignment = 256;
  if (checked.workspaceSize > workspace_bytes || workspace == nullptr ||
      !is_aligned(workspace, kWorkspaceAlignment) || !is_kept(*algorithm, {a, b, c, d}) ||
      (product->epilogue == CUBLASLT_EPILOGUE_BIAS && product->bias == nullptr)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (int& refused = settings().refused_products; refused != 0) {
    refused -= refused > 0 ? 1 : 0;
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  const Call call{*product,
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta),
                  a,
                  b,
                  c,
                  d,
                  *a_layout,
                  *b_layout,
                  *c_layout,
                  *d_layout,
                  static_cast<int64_t>(algorithm->data[1])};
  const cudaError_t error = put_on(stream, [call, workspace, bytes = checked.workspaceSize] {
    std::memset(workspace, 0xff, bytes);
    multiply(call);
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

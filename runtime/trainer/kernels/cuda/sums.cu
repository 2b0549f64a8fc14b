// Sums over rows in a fixed order, the second half of every op that makes one number for each column; and the
// bias's gradient.
#include <algorithm>

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kColumns = 32, kLanes = 16;  // for each block
constexpr int64_t kMostGroups = 128;       // blocks of rows; that many rows or fewer are one block

int64_t groups_of(int64_t rows) {
  return rows <= kMostGroups ? 1 : std::min(kMostGroups, quotient_up(rows, kMostGroups));
}

// A block sums its group of rows for 32 columns: 16 lanes take every 16th row each, then the lanes are added in
// order. The result is row blockIdx.y of out.
template <typename T>
__global__ void __launch_bounds__(kColumns* kLanes)
    sum_group(float* out, const T* in, int64_t rows, int64_t columns, bool accumulate) {
  auto& sums = shared_memory<float[kLanes][kColumns]>();
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x, groups = gridDim.y;
  const int64_t begin = rows * blockIdx.y / groups, end = rows * (blockIdx.y + 1) / groups;
  float sum = 0.0F;
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kLanes) sum += wide(in[row * columns + column]);
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float* const result = out + blockIdx.y * columns + column;
  float total = accumulate ? *result : 0.0F;
  for (int lane = 0; lane < kLanes; ++lane) total += sums[lane][threadIdx.x];
  *result = total;
}

}  // namespace

size_t sum_rows_bytes(int64_t rows, int64_t columns) {
  const int64_t groups = groups_of(rows);
  return groups == 1 ? 0 : static_cast<size_t>(groups * columns) * sizeof(float);
}

template <typename T>
void sum_rows(cudaStream_t stream, float* out, const T* in, int64_t rows, int64_t columns, bool accumulate,
              std::byte* partial) {
  if (columns == 0) return;
  const int64_t groups = groups_of(rows);
  const dim3 block(kColumns, kLanes);
  const auto across = static_cast<unsigned>(quotient_up(columns, kColumns));
  if (groups == 1) {
    launch(stream, {dim3(across, 1), block}, sum_group<T>, out, in, rows, columns, accumulate);
    return;
  }
  auto* const sums = reinterpret_cast<float*>(partial);
  launch(stream, {dim3(across, static_cast<unsigned>(groups)), block}, sum_group<T>, sums, in, rows, columns,
         false);
  launch(stream, {dim3(across, 1), block}, sum_group<float>, out, sums, groups, columns, accumulate);
}

template void sum_rows(cudaStream_t, float*, const float*, int64_t, int64_t, bool, std::byte*);
template void sum_rows(cudaStream_t, float*, const Bf16*, int64_t, int64_t, bool, std::byte*);

}  // namespace shardrun::kernels::cuda

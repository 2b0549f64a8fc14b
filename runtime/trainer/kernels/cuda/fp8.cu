// Quantizes to fp8; gemm.cu has the products.
//
// A block takes 64 by 64 elements, writes them in rows and, through shared memory, in columns. Its largest value
// goes to scratch; a last block finds the largest of all. A maximum does not depend on its order. Largest values
// are compared as bits, where NaN is above all.
#include <cuda_fp8.h>

#include <algorithm>

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/ops.h"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kThreads = 256, kSide = 64;
constexpr uint32_t kAbsolute = 0x7fffffffU;

// Returns the block's largest value, to every thread; the number of threads is a multiple of 32.
__device__ uint32_t block_largest(uint32_t mine) {
  auto& of_warps = shared_memory<uint32_t[32]>();
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffU, mine, offset);
    mine = other > mine ? other : mine;
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
  __syncthreads();
  uint32_t largest = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp)
    largest = of_warps[warp] > largest ? of_warps[warp] : largest;
  return largest;
}

__device__ float scale_of(const Fp8Scaling& scaling) {
  return scaling.scale > 0.0F ? scaling.scale : 1.0F;
}

template <Fp8Format kFormat>
__device__ uint8_t quantized(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, kFormat == Fp8Format::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}

template <int W>
__device__ void store_bytes(uint8_t* to, const uint8_t (&bytes)[W]) {
  if constexpr (W == 4) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    *reinterpret_cast<uint32_t*>(to) = word;
  } else {
    static_assert(W == 1);
    *to = bytes[0];
  }
}

struct QuantizedTile {
  uint8_t values[kSide][kSide + 4];
};

// Quantizes one tile; W neighbours at once, in rows and in columns.
template <int W, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    quantize_tiles(Fp8Matrix out, uint32_t* largest_of_tiles, const Fp8Scaling* scaling, const Bf16* in,
                   int64_t rows, int64_t columns) {
  auto& tile = shared_memory<QuantizedTile>().values;
  const float scale = scale_of(*scaling);
  // There is one dimension of blocks, which may be many; without any column there is one block.
  const int64_t across = columns == 0 ? 1 : (columns + kSide - 1) / kSide;
  const int64_t row0 = int64_t{blockIdx.x} / across * kSide, column0 = int64_t{blockIdx.x} % across * kSide;
  constexpr int kLine = kSide / W, kLines = kThreads / kLine;
  const int line = static_cast<int>(threadIdx.x) / kLine, at = static_cast<int>(threadIdx.x) % kLine * W;
  uint32_t largest = 0;
  for (int r = line; r < kSide; r += kLines) {
    if (row0 + r >= rows || column0 + at >= columns) continue;
    const int64_t place = (row0 + r) * columns + column0 + at;
    float values[W];
    load(values, in + place);
    uint8_t bytes[W];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const uint32_t magnitude = __float_as_uint(values[j]) & kAbsolute;
      largest = magnitude > largest ? magnitude : largest;
      tile[r][at + j] = bytes[j] = quantized<kFormat>(values[j] * scale);
    }
    if (out.values != nullptr) store_bytes(out.values + place, bytes);
  }
  largest = block_largest(largest);  // also waits until the tile is whole
  if (threadIdx.x == 0) largest_of_tiles[blockIdx.x] = largest;
  if (threadIdx.x == 0 && blockIdx.x == 0) *out.inverse = 1.0F / scale;
  if (out.transposed == nullptr) return;
  for (int c = line; c < kSide; c += kLines) {
    if (column0 + c >= columns || row0 + at >= rows) continue;
    uint8_t bytes[W];
#pragma unroll
    for (int j = 0; j < W; ++j) bytes[j] = tile[at + j][c];
    store_bytes(out.transposed + (column0 + c) * rows + row0 + at, bytes);
  }
}

// Finds the largest of as many elements as a tile has, one behind the other.
__global__ void __launch_bounds__(kThreads)
    find_largest(uint32_t* largest_of_tiles, const Bf16* in, int64_t count) {
  const int64_t begin = int64_t{blockIdx.x} * kSide * kSide;
  const int64_t end = begin + kSide * kSide < count ? begin + kSide * kSide : count;
  uint32_t largest = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const uint32_t magnitude = __float_as_uint(wide(in[i])) & kAbsolute;
    largest = magnitude > largest ? magnitude : largest;
  }
  largest = block_largest(largest);
  if (threadIdx.x == 0) largest_of_tiles[blockIdx.x] = largest;
}

// Returns the largest of all, to every thread of the one block.
__device__ uint32_t largest_of_all(const uint32_t* largest_of_tiles, int64_t tiles) {
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < tiles; i += kThreads)
    largest = largest_of_tiles[i] > largest ? largest_of_tiles[i] : largest;
  return block_largest(largest);
}

template <Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    set_present_scale(Fp8Scaling* scaling, const uint32_t* largest_of_tiles, int64_t tiles) {
  const uint32_t largest = largest_of_all(largest_of_tiles, tiles);
  if (threadIdx.x == 0) scaling->scale = scale_for(kFormat, __uint_as_float(largest), 1.0F);
}

__global__ void __launch_bounds__(kThreads)
    note_largest(Fp8Scaling* scaling, const uint32_t* largest_of_tiles, int64_t tiles) {
  const uint32_t largest = largest_of_all(largest_of_tiles, tiles);
  if (threadIdx.x == 0 && largest > __float_as_uint(scaling->largest))
    scaling->largest = __uint_as_float(largest);
}

template <Fp8Format kFormat>
void quantize(OpScope& op, const Fp8Matrix& out, Fp8Scaling* scaling, const Bf16* in, int64_t rows,
              int64_t columns, Fp8Scale scale) {
  // At least one, for the inverse of an empty matrix, and no fewer than the pieces of find_largest.
  const int64_t tiles = std::max<int64_t>(1, quotient_up(rows, kSide) * quotient_up(columns, kSide));
  auto* const largest =
      reinterpret_cast<uint32_t*>(op.scratch(static_cast<size_t>(tiles) * sizeof(uint32_t)));
  if (!op.runs()) return;
  if (scale == Fp8Scale::kPresent) {
    const int64_t pieces = std::max<int64_t>(1, quotient_up(rows * columns, int64_t{kSide} * kSide));
    launch(op.stream(), {static_cast<unsigned>(pieces), kThreads}, find_largest, largest, in, rows * columns);
    launch(op.stream(), {1, kThreads}, set_present_scale<kFormat>, scaling, largest, pieces);
  }
  constexpr int W = 4;
  const bool vectors = rows % W == 0 && columns % W == 0 && is_aligned(in, W * sizeof(Bf16)) &&
                       is_aligned(out.values, W) && is_aligned(out.transposed, W);
  launch(op.stream(), {static_cast<unsigned>(tiles), kThreads},
         vectors ? quantize_tiles<W, kFormat> : quantize_tiles<1, kFormat>, out, largest, scaling, in, rows,
         columns);
  launch(op.stream(), {1, kThreads}, note_largest, scaling, largest, tiles);
}

class GpuFp8 final : public Fp8Ops {
 public:
  explicit GpuFp8(Device& device) : device_(device) {}

  void quantize(const Fp8Matrix& out, Fp8Scaling* scaling, const Bf16* in, int64_t rows, int64_t columns,
                Fp8Scale scale) const override {
    SHARDRUN_CHECK(out.inverse != nullptr);
    OpScope op(device_, "fp8_quantize");
    if (out.format == Fp8Format::kE4m3) {
      cuda::quantize<Fp8Format::kE4m3>(op, out, scaling, in, rows, columns, scale);
    } else {
      cuda::quantize<Fp8Format::kE5m2>(op, out, scaling, in, rows, columns, scale);
    }
  }
  void linear_forward(Bf16* y, const Fp8Matrix& x, const Fp8Matrix& w, int64_t N, int64_t C,
                      int64_t O) const override {
    forward(y, x, w, N, C, O);
  }
  void linear_forward_fp32(float* y, const Fp8Matrix& x, const Fp8Matrix& w, int64_t N, int64_t C,
                           int64_t O) const override {
    forward(y, x, w, N, C, O);
  }
  void linear_backward_input(Bf16* dx, const Fp8Matrix& dy, const Fp8Matrix& w, int64_t N, int64_t C,
                             int64_t O) const override {
    backward_input(dx, dy, w, N, C, O);
  }
  void linear_backward_input_fp32(float* dx, const Fp8Matrix& dy, const Fp8Matrix& w, int64_t N, int64_t C,
                                  int64_t O) const override {
    backward_input(dx, dy, w, N, C, O);
  }
  void linear_backward_weight(float* dw, const Fp8Matrix& dy, const Fp8Matrix& x, int64_t N, int64_t C,
                              int64_t O, bool accumulate) const override {
    multiply_fp8(device_, "fp8_linear_backward_weight", dw, x, x.transposed, dy, dy.transposed, {C, O, N},
                 accumulate, false);
  }

 private:
  template <typename Out>
  void forward(Out* y, const Fp8Matrix& x, const Fp8Matrix& w, int64_t N, int64_t C, int64_t O) const {
    multiply_fp8(device_, "fp8_linear_forward", y, w, w.values, x, x.values, {O, N, C}, false, true);
  }
  template <typename Out>
  void backward_input(Out* dx, const Fp8Matrix& dy, const Fp8Matrix& w, int64_t N, int64_t C,
                      int64_t O) const {
    multiply_fp8(device_, "fp8_linear_backward_input", dx, w, w.transposed, dy, dy.values, {C, N, O}, false,
                 false);
  }

  Device& device_;
};

}  // namespace

std::unique_ptr<Fp8Ops> make_fp8(Device& device) {
  return std::make_unique<GpuFp8>(device);
}

}  // namespace shardrun::kernels::cuda

// Attention in tiles with a running maximum (Dao 2023) by mma.sync m16n8k16 on bf16 with fp32 sums; D is 64 or 128.
//
// A block of four warps owns 64 rows, of which each warp has 16: they are queries forward and for dq, and keys for
// dk and dv, where the scores are made transposed. So every gradient is summed by one warp in one order, and
// nothing is added atomically; the price is that backward makes the scores twice. Weights and their gradients are
// rounded to bf16 before they are multiplied.
//
// Tiles in shared memory are rows of D without padding; the 16-byte chunks of a row are swapped by the last three
// bits of its number, so that the eight rows which ldmatrix reads at once lie in different banks.
#include "runtime/trainer/kernels/cuda/attention_problem.cuh"
#include "runtime/trainer/kernels/cuda/attention_tensor.cuh"
#include "runtime/trainer/kernels/cuda/vectors.cuh"

namespace shardrun::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 64;  // rows that a block owns; 16 for each warp
constexpr float kLog2OfE = 1.44269504F;
// How many blocks of the gradient of queries a multiprocessor must have registers for: 168 for each thread with
// three blocks, 255 with two. Without this a compiler takes what it likes for heads of 64. The other kernels get as
// many anyway, and spill when told so.
template <int D>
constexpr int kBlocksOfQueries = D == 64 ? 3 : 2;

template <int D>
__device__ const Bf16* chunk_of(const Bf16* tile, int row, int chunk) {
  return tile + row * D + (chunk ^ (row & 7)) * 8;
}

// Starts copying rows [first, first + kCount) of a matrix into a tile; rows from `limit` on become zero.
template <int D, int kCount>
__device__ void start_tile(Bf16* tile, const Bf16* matrix, int64_t stride, int first, int limit) {
  constexpr int kChunks = D / 8;
  static_assert(kCount * kChunks % kThreads == 0);
#pragma unroll
  for (int step = 0; step < kCount * kChunks / kThreads; ++step) {
    const int i = step * kThreads + static_cast<int>(threadIdx.x), row = i / kChunks, chunk = i % kChunks;
    const bool is_there = first + row < limit;
    const Bf16* const from = matrix + (is_there ? (first + row) * stride + chunk * 8 : 0);
    start_copy(chunk_of<D>(tile, row, chunk), from, is_there);
  }
}
// Waits until all but the last kPending groups have arrived, for every thread of the block.
template <int kPending>
__device__ void wait_for_tiles() {
  wait_for_copies<kPending>();
  __syncthreads();
}

__device__ uint32_t pair_of(float low, float high) {
  return static_cast<uint32_t>(narrow<Bf16>(low).bits) | static_cast<uint32_t>(narrow<Bf16>(high).bits) << 16;
}

// A warp's sums: 16 rows and 8·kParts columns. Of part p a lane has, in order, columns 8p + 2·(lane % 4) and the
// next one of row lane / 4, then the same columns of row lane / 4 + 8.
template <int kParts>
using Sums = float[kParts][4];

template <int kParts>
__device__ void clear(Sums<kParts>& sums) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[p][i] = 0.0F;
  }
}

// Computes sums (16, 8·kParts) += rows [row, row+16) of a (rows, D) · the first 8·kParts rows of b (rows,
// D), transposed.
template <int D, int kParts>
__device__ void add_rows_by_rows(Sums<kParts>& sums, const Bf16* a, int row, const Bf16* b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < D / 8; k += 2) {
    uint32_t left[4];
    load_matrices(left, chunk_of<D>(a, row + lane % 16, k + lane / 16));
#pragma unroll
    for (int p = 0; p < kParts; p += 2) {
      uint32_t right[4];
      load_matrices(right, chunk_of<D>(b, p * 8 + lane % 8 + lane / 16 * 8, k + lane / 8 % 2));
      multiply_add(sums[p], left, right[0], right[1]);
      multiply_add(sums[p + 1], left, right[2], right[3]);
    }
  }
}

// Computes sums (16, D) += weights (16, 8·kParts), rounded to bf16, · the first 8·kParts rows of b (rows, D).
template <int D, int kParts>
__device__ void add_weights_by_rows(Sums<D / 8>& sums, const Sums<kParts>& weights, const Bf16* b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kParts; k += 2) {
    const uint32_t left[4] = {pair_of(weights[k][0], weights[k][1]), pair_of(weights[k][2], weights[k][3]),
                              pair_of(weights[k + 1][0], weights[k + 1][1]),
                              pair_of(weights[k + 1][2], weights[k + 1][3])};
#pragma unroll
    for (int p = 0; p < D / 8; p += 2) {
      uint32_t right[4];
      load_matrices_transposed(right, chunk_of<D>(b, k * 8 + lane % 16, p + lane / 16));
      multiply_add(sums[p], left, right[0], right[1]);
      multiply_add(sums[p + 1], left, right[2], right[3]);
    }
  }
}

// Return the row and the column, inside the warp's 16 rows, of number i of part p of a lane's sums.
__device__ int row_of(int i) {
  return static_cast<int>(threadIdx.x) % 32 / 4 + (i < 2 ? 0 : 8);
}
__device__ int column_of(int p, int i) {
  return p * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
}
__device__ int warp_row() {
  return static_cast<int>(threadIdx.x) / 32 * 16;
}

// Writes the warp's 16 rows, those below `limit`, each multiplied by its factor. `first` is the block's first row.
template <int D>
__device__ void write_rows(Bf16* matrix, int64_t stride, int first, int limit, const Sums<D / 8>& sums,
                           float upper_factor, float lower_factor) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int row = first + warp_row() + row_of(i);
    if (row >= limit) continue;
    const float factor = i == 0 ? upper_factor : lower_factor;
#pragma unroll
    for (int p = 0; p < D / 8; ++p) {
      *reinterpret_cast<uint32_t*>(matrix + row * stride + column_of(p, 0)) =
          pair_of(sums[p][i] * factor, sums[p][i + 1] * factor);
    }
  }
}

__device__ int next_key_tile(const Sight& sight, int t0, int tile, int last) {
  while (tile < last && seen(sight, t0, kRows, tile * kRows, kRows) == Seen::kNothing) ++tile;
  return tile;
}

// The running softmax of two rows of a lane, upper and lower, in units of scores before scaling.
struct Running {
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0F, 0.0F};  // sum: over this lane's columns

  // Turns scores into weights; `out` is scaled to the new maximum.
  template <int kParts, int kOutParts>
  __device__ void take(Sums<kParts>& scores, Sums<kOutParts>& out, float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = largest[half];
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        most = fmaxf(most, fmaxf(scores[p][2 * half], scores[p][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 2));
      const float seen_most = most == -INFINITY ? 0.0F : most;  // nothing seen so far: all weights are 0
      const float base = seen_most * scale_log2;
      // The power is taken of the difference, so that it is 1 where the maximum stays, also by fused multiply-adds.
      const float shrink = fast_exp2((largest[half] - seen_most) * scale_log2);
      largest[half] = most;
      sum[half] *= shrink;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[p][i] = fast_exp2(scores[p][i] * scale_log2 - base);
          sum[half] += scores[p][i];
        }
      }
#pragma unroll
      for (int p = 0; p < kOutParts; ++p) {
        out[p][2 * half] *= shrink;
        out[p][2 * half + 1] *= shrink;
      }
    }
  }
};

template <int D>
__global__ void __launch_bounds__(kThreads)
    forward_tiles(Bf16* out, float* lse, const Bf16* qkv, const AttentionProblem problem) {
  Bf16* const q_tile = dynamic_shared_memory<Bf16>();
  Bf16 *const k_tile = q_tile + kRows * D, *const v_tile = k_tile + kRows * D;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  // Under a causal mask the longest ones come first.
  const int t0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const Sight sight = problem.sight(b);
  const Bf16* const q = qkv + problem.at(b, 0, h);
  const Bf16* const k = qkv + problem.at(b, 0, problem.key_head(h));
  const Bf16* const v = k + problem.K * D;

  const TileRange range = key_tiles(sight, t0, kRows, kRows);
  int tile = next_key_tile(sight, t0, range.first, range.last);
  start_tile<D, kRows>(q_tile, q, problem.stride, t0, problem.T);
  if (tile < range.last) start_tile<D, kRows>(k_tile, k, problem.stride, tile * kRows, problem.T);
  commit_copies();

  Running running;
  Sums<D / 8> sums;
  clear(sums);
  while (tile < range.last) {
    const int u0 = tile * kRows, next = next_key_tile(sight, t0, tile + 1, range.last);
    start_tile<D, kRows>(v_tile, v, problem.stride, u0, problem.T);
    commit_copies();
    wait_for_tiles<1>();  // the keys are there
    Sums<kRows / 8> scores;
    clear(scores);
    add_rows_by_rows<D>(scores, q_tile, warp_row(), k_tile);
    __syncthreads();  // wait until every warp has read the keys
    if (next < range.last) start_tile<D, kRows>(k_tile, k, problem.stride, next * kRows, problem.T);
    commit_copies();
    if (seen(sight, t0, kRows, u0, kRows) != Seen::kAll) {
#pragma unroll
      for (int p = 0; p < kRows / 8; ++p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!sight.sees(t0 + warp_row() + row_of(i), u0 + column_of(p, i))) scores[p][i] = -INFINITY;
        }
      }
    }
    running.take(scores, sums, problem.scale * kLog2OfE);
    wait_for_tiles<1>();  // the values are there
    add_weights_by_rows<D>(sums, scores, v_tile);
    __syncthreads();  // wait until every warp has read the values
    tile = next;
  }
  wait_for_copies<0>();  // a block must not end before its copies

  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = running.sum[half];
    sum += __shfl_xor_sync(0xffffffffU, sum, 1);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    factors[half] = sum > 0.0F ? 1.0F / sum : 0.0F;
    const int t = t0 + warp_row() + row_of(2 * half);
    if (t < problem.T && threadIdx.x % 4 == 0) {
      lse[problem.stat_at(b, h) + t] = sum > 0.0F ? running.largest[half] * problem.scale + logf(sum) : 0.0F;
    }
  }
  write_rows<D>(out + problem.out_at(b, 0, h), problem.out_stride, t0, problem.T, sums, factors[0],
                factors[1]);
}

// One query's numbers.
struct QueryStats {
  float lse_log2, delta;  // lse in units of log2
};
__device__ QueryStats stats_of(const float* lse, const float* delta, int64_t first, int t, int T) {
  if (t >= T) return {0.0F, 0.0F};
  return {lse[first + t] * kLog2OfE, delta[first + t]};
}

template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksOfQueries<D>)
    query_gradient_tiles(Bf16* dqkv, const Bf16* dout, const Bf16* qkv, const float* lse, const float* delta,
                         const AttentionProblem problem) {
  Bf16* const q_tile = dynamic_shared_memory<Bf16>();
  Bf16 *const dout_tile = q_tile + kRows * D, *const k_tile = dout_tile + kRows * D,
              *const v_tile = k_tile + kRows * D;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int t0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const Sight sight = problem.sight(b);
  const int64_t q_offset = problem.at(b, 0, h);
  const Bf16* const k = qkv + problem.at(b, 0, problem.key_head(h));
  const Bf16* const v = k + problem.K * D;
  start_tile<D, kRows>(q_tile, qkv + q_offset, problem.stride, t0, problem.T);
  start_tile<D, kRows>(dout_tile, dout + problem.out_at(b, 0, h), problem.out_stride, t0, problem.T);
  commit_copies();

  const int64_t first_stat = problem.stat_at(b, h);
  const QueryStats stats[2] = {stats_of(lse, delta, first_stat, t0 + warp_row() + row_of(0), problem.T),
                               stats_of(lse, delta, first_stat, t0 + warp_row() + row_of(2), problem.T)};
  const float scale_log2 = problem.scale * kLog2OfE;
  Sums<D / 8> sums;
  clear(sums);
  const TileRange range = key_tiles(sight, t0, kRows, kRows);
  for (int tile = range.first; tile < range.last; ++tile) {
    const int u0 = tile * kRows;
    const Seen what = seen(sight, t0, kRows, u0, kRows);
    if (what == Seen::kNothing) continue;
    start_tile<D, kRows>(k_tile, k, problem.stride, u0, problem.T);
    start_tile<D, kRows>(v_tile, v, problem.stride, u0, problem.T);
    commit_copies();
    wait_for_tiles<0>();
    Sums<kRows / 8> scores, products;
    clear(scores);
    clear(products);
    add_rows_by_rows<D>(scores, q_tile, warp_row(), k_tile);
    add_rows_by_rows<D>(products, dout_tile, warp_row(), v_tile);
#pragma unroll
    for (int p = 0; p < kRows / 8; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool counts =
            what == Seen::kAll || sight.sees(t0 + warp_row() + row_of(i), u0 + column_of(p, i));
        const float weight = fast_exp2(scores[p][i] * scale_log2 - stats[i / 2].lse_log2);
        scores[p][i] = counts ? weight * (products[p][i] - stats[i / 2].delta) : 0.0F;
      }
    }
    add_weights_by_rows<D>(sums, scores, k_tile);
    __syncthreads();  // wait until every warp has read the tiles
  }
  wait_for_copies<0>();
  write_rows<D>(dqkv + q_offset, problem.stride, t0, problem.T, sums, problem.scale, problem.scale);
}

// How many queries a block takes at once: fewer for a large head, whose gradients fill the registers.
template <int D>
inline constexpr int kQueries = D == 128 ? 32 : 64;

// Adds what queries [t0, t0 + kQueries) of one head give to the gradients of the block's keys and values.
template <int D>
__device__ void add_key_gradients(Sums<D / 8>& dk, Sums<D / 8>& dv, const Bf16* k_tile, const Bf16* v_tile,
                                  const Bf16* q_tile, const Bf16* dout_tile, const QueryStats* stats,
                                  const Sight& sight, int t0, int u0, bool sees_all, float scale_log2) {
  Sums<kQueries<D> / 8> weights, products;  // transposed: rows are keys, columns are queries
  clear(weights);
  clear(products);
  add_rows_by_rows<D>(weights, k_tile, warp_row(), q_tile);
  add_rows_by_rows<D>(products, v_tile, warp_row(), dout_tile);
#pragma unroll
  for (int p = 0; p < kQueries<D> / 8; ++p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = column_of(p, i);
      const QueryStats query = stats[column];
      const bool counts = sees_all || sight.sees(t0 + column, u0 + warp_row() + row_of(i));
      const float weight = counts ? fast_exp2(weights[p][i] * scale_log2 - query.lse_log2) : 0.0F;
      weights[p][i] = weight;
      products[p][i] = weight * (products[p][i] - query.delta);
    }
  }
  add_weights_by_rows<D>(dv, weights, dout_tile);
  add_weights_by_rows<D>(dk, products, q_tile);
}

template <int D>
__global__ void __launch_bounds__(kThreads)
    key_gradient_tiles(Bf16* dqkv, const Bf16* dout, const Bf16* qkv, const float* lse, const float* delta,
                       const AttentionProblem problem) {
  constexpr int kCount = kQueries<D>;
  auto& stats = shared_memory<QueryStats[kCount]>();
  Bf16* const k_tile = dynamic_shared_memory<Bf16>();
  Bf16 *const v_tile = k_tile + kRows * D, *const q_tile = v_tile + kRows * D,
              *const dout_tile = q_tile + kCount * D;
  const int k_head = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int u0 = static_cast<int>(blockIdx.x) * kRows, group = problem.H / problem.K;
  const Sight sight = problem.sight(b);
  const int64_t k_offset = problem.at(b, 0, problem.H + k_head);
  const int64_t v_offset = k_offset + problem.K * D;
  start_tile<D, kRows>(k_tile, qkv + k_offset, problem.stride, u0, problem.T);
  start_tile<D, kRows>(v_tile, qkv + v_offset, problem.stride, u0, problem.T);
  commit_copies();

  Sums<D / 8> dk, dv;
  clear(dk);
  clear(dv);
  const TileRange range = query_tiles(sight, u0, kCount);
  for (int h = k_head * group; h < (k_head + 1) * group; ++h) {
    const Bf16* const q = qkv + problem.at(b, 0, h);
    const Bf16* const dy = dout + problem.out_at(b, 0, h);
    for (int tile = range.first; tile < range.last; ++tile) {
      const int t0 = tile * kCount;
      const Seen what = seen(sight, t0, kCount, u0, kRows);
      if (what == Seen::kNothing) continue;
      start_tile<D, kCount>(q_tile, q, problem.stride, t0, problem.T);
      start_tile<D, kCount>(dout_tile, dy, problem.out_stride, t0, problem.T);
      commit_copies();
      if (static_cast<int>(threadIdx.x) < kCount) {
        stats[threadIdx.x] =
            stats_of(lse, delta, problem.stat_at(b, h), t0 + static_cast<int>(threadIdx.x), problem.T);
      }
      wait_for_tiles<0>();
      add_key_gradients<D>(dk, dv, k_tile, v_tile, q_tile, dout_tile, stats, sight, t0, u0,
                           what == Seen::kAll, problem.scale * kLog2OfE);
      __syncthreads();  // wait until every warp has read the tiles and the stats
    }
  }
  wait_for_copies<0>();
  write_rows<D>(dqkv + k_offset, problem.stride, u0, problem.T, dk, problem.scale, problem.scale);
  write_rows<D>(dqkv + v_offset, problem.stride, u0, problem.T, dv, 1.0F, 1.0F);
}

// What follows puts the kernels on a stream.

constexpr size_t tile_bytes(int rows, int D) {
  return static_cast<size_t>(rows) * static_cast<size_t>(D) * sizeof(Bf16);
}

template <int D>
void launch_forward(OpScope& op, Bf16* out, float* lse, const Bf16* qkv, const AttentionShape& s,
                    const Visibility& visibility) {
  constexpr size_t kShared = 3 * tile_bytes(kRows, D);
  launch(op.stream(), {attention_grid(s, s.H, kRows), kThreads, kShared}, forward_tiles<D>, out, lse, qkv,
         AttentionProblem(s, visibility));
}

template <int D>
void launch_backward(OpScope& op, Bf16* dqkv, const Bf16* dout, const Bf16* qkv, const float* lse,
                     const float* delta, const AttentionShape& s, const Visibility& visibility) {
  const AttentionProblem problem(s, visibility);
  constexpr size_t kBytesOfQueries = 4 * tile_bytes(kRows, D);
  constexpr size_t kBytesOfKeys = 2 * tile_bytes(kRows, D) + 2 * tile_bytes(kQueries<D>, D);
  launch(op.stream(), {attention_grid(s, s.H, kRows), kThreads, kBytesOfQueries}, query_gradient_tiles<D>,
         dqkv, dout, qkv, lse, delta, problem);
  launch(op.stream(), {attention_grid(s, s.K, kRows), kThreads, kBytesOfKeys}, key_gradient_tiles<D>, dqkv,
         dout, qkv, lse, delta, problem);
}

}  // namespace

bool tensor_attention_takes(const AttentionShape& shape) {
  return shape.D == 64 || shape.D == 128;
}

void tensor_attention_forward(OpScope& op, Bf16* out, float* lse, const Bf16* qkv,
                              const AttentionShape& shape, const Visibility& visibility) {
  if (shape.D == 64) {
    launch_forward<64>(op, out, lse, qkv, shape, visibility);
  } else {
    launch_forward<128>(op, out, lse, qkv, shape, visibility);
  }
}

void tensor_attention_backward(OpScope& op, Bf16* dqkv, const Bf16* dout, const Bf16* qkv, const float* lse,
                               const float* delta, const AttentionShape& shape,
                               const Visibility& visibility) {
  if (shape.D == 64) {
    launch_backward<64>(op, dqkv, dout, qkv, lse, delta, shape, visibility);
  } else {
    launch_backward<128>(op, dqkv, dout, qkv, lse, delta, shape, visibility);
  }
}

}  // namespace shardrun::kernels::cuda

// The ops of the trainer: one documented prototype per op, and one folder per backend that defines it.
//
//   kernels/reference/  readable, single-threaded, written to be checked by eye
//   kernels/cpu/        what runs: oneDNN for GEMM, vectorised loops for the rest, same results within tolerance
#pragma once

namespace shardrun::kernels {

enum class DType { kFp32, kBf16 };
inline int size_of(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

}  // namespace shardrun::kernels

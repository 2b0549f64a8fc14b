// LoadedKernels: the specialised kernels that a device has (kernels/cuda/specialised.h), found by the shape of a call.
//
// Thread rule: as Device.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/cuda/specialised.h"
#include "runtime/trainer/kernels/specialised.h"

namespace shardrun::kernels::cuda {

// A kernel and the width of its blocks. Null: start the one of the library.
struct SpecialisedEntry {
  cudaKernel_t kernel = nullptr;
  unsigned threads = 0;
};

class LoadedKernels {
 public:
  LoadedKernels() = default;
  ~LoadedKernels();
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  // Into the current device. kCorrupt: not a cubin of its architecture with the shape's functions. kIo.
  base::Result<void> add(const KernelCode& kernel);
  bool has(const KernelShape& shape) const;
  // Null unless it is there and the call `fits`; counts which.
  SpecialisedEntry entry(const KernelShape& shape, size_t which, bool fits);
  // Calls of specialisable ops so far, none while nothing is loaded.
  int64_t calls_served() const { return served_; }
  int64_t calls_missed() const { return missed_; }

 private:
  struct Loaded {
    KernelShape shape;
    unsigned threads;
    cudaLibrary_t library;
    std::array<cudaKernel_t, kMostEntries> entries;
  };
  std::vector<Loaded> loaded_;
  int64_t served_ = 0, missed_ = 0;
};

template <typename T>
inline constexpr DType kDTypeOf = sizeof(T) == sizeof(float) ? DType::kFp32 : DType::kBf16;

}  // namespace shardrun::kernels::cuda

// The GPU's specialised kernels: what NVRTC is given to translate an op's own source for one size, and what a loaded one
// is. Needs no CUDA, so a node without a GPU can ask it.
//
// A translation unit includes the op's .cu file with its kernels turned into device functions, behind them entries that
// call those with the sizes as constants. The compiler then knows how often loops run and by what it divides. Which ops
// are worth it: those that take a row or a head a block; AdamW and the like run over elements, and gain nothing.
// Thread rule: pure functions.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/kernels/specialised.h"

struct CUfunc_st;    // CUfunction is a pointer to it
struct CUstream_st;  // and CUstream

namespace shardrun::kernels::cuda {

// Every file that a translation includes, the few names of the standard library's that it asks for among them.
std::span<const SourceFile> kernel_sources();
// `shape` is of Target::kCuda.
std::string translation_unit(const KernelShape& shape);
// What NVRTC is told beside the architecture.
std::span<const std::string_view> kernel_flags();
// The functions of a kernel's cubin, in the order of LoadedKernel::functions. Their arguments are those of the kernel in
// the source, without the sizes that are constants.
std::vector<std::string_view> entry_names(const KernelShape& shape);

// The most functions of a kernel. Their order, by op:
inline constexpr size_t kMostEntries = 2;
inline constexpr size_t kOnlyEntry = 0;
inline constexpr size_t kWithoutResidual = 0, kWithResidual = 1;  // forward of norms
inline constexpr size_t kOfQueries = 0, kOfKeys = 1;              // attention_backward
inline constexpr size_t kLogitsInFp32 = 0, kLogitsInBf16 = 1;     // cross_entropy; the second for bf16 alone
inline constexpr size_t kSliceMeasured = 0, kSliceWithGradient = 1;  // cross_entropy_slice

// Elements that a thread takes at once in a row of `size`: 16 bytes of the widest type, if they divide it.
int64_t width_for(DType narrowest, int64_t size);

// What install() of kernels/specialised.h holds for a shape of Target::kCuda.
struct LoadedKernel {
  std::array<CUfunc_st*, kMostEntries> functions{};
  // cuLaunchKernel and cuFuncSetAttribute of the driver.
  int (*launch)(CUfunc_st*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                CUstream_st*, void** arguments, void** extra) = nullptr;
  int (*set_attribute)(CUfunc_st*, int attribute, int value) = nullptr;
};

}  // namespace shardrun::kernels::cuda

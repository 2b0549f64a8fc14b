// The GPU's specialised kernels: what NVRTC is given to translate an op's own source for one size. Needs no CUDA, so a
// node without a GPU can ask it. Device::load_kernels() takes what came out, and launch.cuh starts it.
//
// A translation unit includes the op's .cu file with its kernels turned into device functions, behind them an entry for
// each, with the kernel's own parameters, that sets those which are sizes to constants. The compiler then knows how often
// loops run and by what it divides. Which ops are worth it: those that take a row or a head a block; AdamW and the like run
// over elements, and gain nothing.
// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/trainer/kernels/specialised.h"

namespace shardrun::kernels::cuda {

// Every file that a translation includes, the few names of the standard library's that it asks for among them.
std::span<const SourceFile> kernel_sources();
// `shape` is of Target::kCuda.
std::string translation_unit(const KernelShape& shape);
// What NVRTC is told beside the architecture.
std::span<const std::string_view> kernel_flags();
// The functions of a kernel's cubin, in the order below. Each has the signature of the kernel in the source that it
// stands for, which the translation unit asserts.
std::vector<std::string_view> entry_names(const KernelShape& shape);
// The kernels of the source that they stand for, as it writes them: "swiglu_rows<8, Bf16>".
std::vector<std::string> kernel_names(const KernelShape& shape);
// That a block of them must have, in one dimension.
unsigned block_threads(const KernelShape& shape);

// The most functions of a kernel. Their order, by op:
inline constexpr size_t kMostEntries = 2;
inline constexpr size_t kOnlyEntry = 0;
inline constexpr size_t kWithoutResidual = 0, kWithResidual = 1;  // forward of norms
inline constexpr size_t kOfQueries = 0, kOfKeys = 1;              // attention_backward
inline constexpr size_t kLogitsInFp32 = 0, kLogitsInBf16 = 1;     // cross_entropy; the second for bf16 alone
inline constexpr size_t kSliceMeasured = 0, kSliceWithGradient = 1;  // cross_entropy_slice

// Elements that a thread takes at once in a row of `size`: 16 bytes of the narrowest type, if they divide it.
constexpr int64_t width_for(DType narrowest, int64_t size) {
  const int64_t width = 16 / size_of(narrowest);
  return size % width == 0 ? width : 1;
}
// Whether attention of heads of D runs on the tensor cores, where pointers are aligned.
constexpr bool fits_tensor_cores(DType dtype, int64_t D) {
  return dtype == DType::kBf16 && (D == 64 || D == 128);
}

}  // namespace shardrun::kernels::cuda

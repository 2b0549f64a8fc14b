// Specialised kernels: an op's own source, translated once more for one size and one kind of processor.
//
// The sources of kernels/cpu take the size that an op's inner loops run over (head size of attention and rotary
// embedding, hidden size of norms, feed-forward size of SwiGLU) as a constant when SHARDRUN_SPECIALISED names it.
// runtime/trainer/compile translates them so; what it loads is installed here, and the op then runs it for calls of that
// size. Results agree with the library's to rounding, not to the bit: the compiler contracts other products.
// Thread rule: install() and forget_all() before other threads run ops; everything else is thread-safe.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels {

// In the order of what they cost to compile, dearest first.
enum class Op {
  kAttentionBackward,
  kAttentionForward,
  kRmsNormBackward,
  kRmsNormForward,
  kLayerNormBackward,
  kLayerNormForward,
  kSwiGluBackward,
  kSwiGluForward,
  kRope,
  kCrossEntropy,  // of GPUs alone, as is the next
  kCrossEntropySlice,
};

// Kernels for CPUs are shared libraries of this folder's cpu/, those for NVIDIA GPUs cubins of its cuda/.
enum class Target { kCpu, kCuda };

struct KernelShape {
  Op op;
  DType dtype;
  int64_t size;
  Target target = Target::kCpu;
  int64_t heads = 0, kv_heads = 0;  // of the GPU's attention and rotary embedding
  auto operator<=>(const KernelShape&) const = default;
};

// "attention_forward_bf16_64", "cuda_attention_forward_bf16_64_32_8"
std::string name_of(const KernelShape& shape);

struct SourceFile {
  std::string_view path;  // as #include names it
  std::string_view text;
};
// What was compiled of it: a shared library's bytes, or a cubin's.
struct KernelCode {
  KernelShape shape;
  std::string code;
};

// What follows is of the CPU's kernels; kernels/cuda/specialised.h and Backend::load_kernels() have its like for GPUs.
//
// Every file that a translation includes, but for the standard library's.
std::span<const SourceFile> kernel_sources();
// The text of the one translation unit of a kernel. Its symbols are extern "C" kKernelSymbol, the op,
std::string translation_unit(const KernelShape& shape);
inline constexpr const char* kKernelSymbol = "shardrun_kernel";
// And a variable of type Workspace that whoever loads the kernel sets, so that it works on the memory of the thread that
// the plan knows of (kernels/workspace.h).
inline constexpr const char* kWorkspaceSymbol = "shardrun_workspace";
using Workspace = std::byte* (*)(int64_t bytes);
Workspace workspace();
// What the compiler is told: language, optimisation, and the processors that may run the result.
std::span<const std::string_view> kernel_flags();

// `kernel` is what kKernelSymbol named; it stays loaded while ops run.
void install(const KernelShape& shape, void* kernel);
void forget_all();
// Null when there is none.
void* find(const KernelShape& shape);
// Calls of specialisable ops for which kernels of other sizes were installed, but not this one: 0 when the list of
// shapes was complete.
int64_t unspecialised_calls();

}  // namespace shardrun::kernels

// Attention by cuDNN: one graph forward, one backward, on the interleaved qkv as it lies, with grouped heads and the
// causal mask. Documents and padding are not for it: see takes().
//
// cuDNN is opened at run time (libcudnn.so.9). A shape's plan is cuDNN's first proposal that it supports, a rule that
// repeats; backward is asked to be deterministic. Built only where cudnn-frontend's headers are; elsewhere create() says
// so and our kernels (attention_tensor.cu) do the work.
// Thread rule: as Device.
// State: graphs are accepted by cuDNN 9.19 for compute capability 9.0 without a GPU (tests/gpu/cudnn_plans_test.cpp);
// never run on a GPU yet.
// Source: https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/trainer/kernels/ops.h"

struct CUstream_st;

namespace shardrun::kernels::cuda {

class CudnnAttention {
 public:
  // For the current device, of compute capability 90 for 9.0. kNotFound, kUnsupported: no cuDNN, or none that is new enough,
  // or no libcudart.so, which the frontend opens by itself; with the mend.
  static base::Result<std::unique_ptr<CudnnAttention>> create(int capability);
  // For a GPU that is not here: cuDNN's own description of it, and its compute capability, or 0 to ask the current device.
  // Only check().
  static base::Result<std::unique_ptr<CudnnAttention>> create_for(std::string_view properties,
                                                                  int capability);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // bf16 alone; whether cuDNN's masks can say what is seen, and its kernels take the head size.
  static bool takes(const AttentionShape& shape, const Visibility& visibility);

  enum class Pass { kForward, kBackward };
  // Whether cuDNN supports the pass, without compiling it. kUnsupported with cuDNN's words.
  base::Result<void> check(Pass pass, const AttentionShape& shape, bool causal);

  // Compiles the pass's plan, which takes seconds: the bytes of workspace that it needs.
  base::Result<size_t> prepare(Pass pass, const AttentionShape& shape, bool causal);
  // The same of a plan that there is.
  std::optional<size_t> prepared(Pass pass, const AttentionShape& shape, bool causal) const;
  int64_t version() const;  // 91900 for 9.19.0
  // Of prepared plans. Pointers as in kernels/ops.h; `workspace` of at least that many bytes.
  base::Result<void> forward(CUstream_st* stream, void* workspace, Bf16* out, float* lse, const Bf16* qkv,
                             const AttentionShape& shape, bool causal);
  base::Result<void> backward(CUstream_st* stream, void* workspace, Bf16* dqkv, const Bf16* dout,
                              const Bf16* out, const Bf16* qkv, const float* lse, const AttentionShape& shape,
                              bool causal);

 private:
  struct State;
  explicit CudnnAttention(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shardrun::kernels::cuda

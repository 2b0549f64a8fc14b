// Attention by cuDNN: one graph forward, one backward, on the interleaved qkv as it lies, with grouped heads and
// the causal mask. It does not take documents and padding: see takes().
//
// cuDNN is opened at run time (libcudnn.so.9). The plan of a shape is cuDNN's first proposal that it supports, a
// rule that repeats; backward is asked to be deterministic. This class is built only where cudnn-frontend's headers
// are; elsewhere create() says so and our kernels (attention_tensor.cu) do the work.
//
// Thread rule: as Device.
// State: cuDNN 9.19 accepts the graphs for compute capability 9.0 without a GPU (tests/gpu/cudnn_plans_test.cpp), and ran
// them on an H100.
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
  // Opens cuDNN for the current device, whose `capability` is 90 for 9.0. kNotFound, kUnsupported, with the mend:
  // there is no cuDNN, or none that is new enough, or no libcudart.so, which the frontend opens by itself.
  static base::Result<std::unique_ptr<CudnnAttention>> create(int capability);
  // Does the same for a GPU that is not here, from cuDNN's own description of it and its compute capability, or 0
  // to ask the current device. Only check() may be called on the result.
  static base::Result<std::unique_ptr<CudnnAttention>> create_for(std::string_view properties,
                                                                  int capability);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Says whether cuDNN's masks can say what is seen, and whether its kernels take the head size. For bf16 alone.
  static bool takes(const AttentionShape& shape, const Visibility& visibility);

  enum class Pass { kForward, kBackward };
  // Asks whether cuDNN supports the pass, without compiling it. kUnsupported with cuDNN's words.
  base::Result<void> check(Pass pass, const AttentionShape& shape, bool causal);

  // Compiles the pass's plan, which takes seconds, and returns the bytes of workspace that it needs.
  base::Result<size_t> prepare(Pass pass, const AttentionShape& shape, bool causal);
  // Returns the same for a plan that is prepared already.
  std::optional<size_t> prepared(Pass pass, const AttentionShape& shape, bool causal) const;
  int64_t version() const;  // 91900 for 9.19.0
  // Run prepared plans. Pointers are as in kernels/ops.h; `workspace` has at least that many bytes.
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

// Backend: where a model is computed. The trainer is written once, against this interface; kernels/ops.h says what each
// op does.
//
// Every pointer and span that an op takes lies in the backend's memory (allocate()), which the host cannot touch
// unless it is the CPU's: upload() and download() are the way in and out. An op comes after the ops and copies that
// were called before it; a GPU's ops may still be under way when a call returns, and only download() and finish()
// wait.
//
// Errors: a GPU keeps its first failure, does nothing more, and reports it at the next download() or finish().
// Thread rule: one thread at a time, but read_aside() may run on another; a CPU's ops use the OpenMP
// threads of the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/device_link.h"
#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/trainer/kernels/fp8.h"
#include "runtime/trainer/kernels/ops.h"
#include "runtime/trainer/kernels/repetition.h"

namespace shardrun::kernels {

using base::Result;

using base::DeviceKind;

// What attention by cuDNN takes on a GPU.
struct CudnnAttentionUse {
  int64_t version = 0;  // 91900 for 9.19.0; the bits depend on it
  int64_t workspace_bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;  // "CPU", "NVIDIA H200"
  virtual int index() const = 0;         // the GPU's number, as CUDA counts them; -1: the CPU
  // Returns, for a GPU, the CUstream_st* that ops are put on; communicators of the GPU's memory and copies beside
  // the ops need it. Null for the CPU. Links go before the backend.
  virtual void* stream() const = 0;
  virtual Result<std::unique_ptr<base::DeviceLink>> make_link() = 0;

  // Returns the ops on float or Bf16.
  template <typename T>
  const Ops<T>& ops() const;
  virtual const OptimizerOps& optimizer() const = 0;
  // Returns the fp8 ops. kUnsupported, with the mend: the CPU, and GPUs that do not multiply fp8.
  virtual Result<const Fp8Ops*> fp8_ops() const = 0;

  // On a GPU: from now on cuDNN runs attention of this shape in bf16, without documents or padding; everything else,
  // and after use_own_attention() all attention, is run by our kernels. Takes seconds. kNotFound, kUnsupported: there
  // is no cuDNN here, or it cannot do this shape, or not within `most_bytes` of workspace; nothing has changed then.
  virtual Result<CudnnAttentionUse> use_cudnn_attention(const AttentionShape& shape, bool causal,
                                                        int64_t most_bytes) = 0;
  virtual void use_own_attention() = 0;

  // ---- memory
  // Returns `bytes` bytes of zeros, aligned to a page on the CPU or to 256 bytes on a GPU. The backend outlives it.
  virtual Result<base::Memory> allocate(int64_t bytes) = 0;
  virtual void zero(void* memory, int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // Copies from the host's memory, which may change when the call returns.
  virtual void upload(void* to, const void* host, int64_t bytes) = 0;
  // Copies to the host's memory, after everything before. Waits.
  virtual Result<void> download(void* host, const void* from, int64_t bytes) = 0;
  // Does as download(), but with memory that nothing before it may still write; it runs beside ops, from
  // any one thread.
  virtual Result<void> read_aside(void* host, const void* from, int64_t bytes) = 0;
  // Waits for everything before.
  virtual Result<void> finish() = 0;

  // On a GPU: stamp() notes when everything before it is done; take_stamps() waits, and returns the times since its
  // last call, as std::chrono::steady_clock's nanoseconds. The CPU has none.
  virtual void stamp() = 0;
  virtual Result<std::vector<int64_t>> take_stamps() = 0;

  // Runs `ops`, which call ops of this backend and nothing else that it does: no upload, download, stamp or wait,
  // and nothing of communicators. A GPU with graphs in use (off at first) that ran ops of an equal name before may
  // start those again as one CUDA graph without calling these (cuda/device.h). The bits are the same.
  virtual Result<void> repeat(const Repetition& what, const std::function<Result<void>()>& ops) = 0;
  virtual void use_graphs(bool on) = 0;

  // These say which kernels a GPU's matrix products take, as text for other ranks and the next run (cuda/device.h says
  // what each function does). The CPU has no such table: "".
  virtual void tune_products(bool on) = 0;
  virtual std::string product_table() const = 0;
  virtual Result<void> load_product_table(std::string_view text) = 0;
  virtual std::vector<std::string> plain_products() const = 0;

 private:
  virtual const Ops<float>& fp32_ops() const = 0;
  virtual const Ops<Bf16>& bf16_ops() const = 0;
};

template <>
inline const Ops<float>& Backend::ops() const {
  return fp32_ops();
}
template <>
inline const Ops<Bf16>& Backend::ops() const {
  return bf16_ops();
}

// Returns the one backend of this process's CPUs; it has no state.
Backend& cpu_backend();
// Names the instructions of this machine that its kernels use, chosen once, and the library of its products: "AMX", "AVX-512 with
// bf16", "AVX-512", "AVX2" or "no vectors beyond the baseline's", then ", oneDNN 2.6.3".
std::string cpu_instructions();

}  // namespace shardrun::kernels

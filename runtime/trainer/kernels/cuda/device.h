// One NVIDIA GPU as a rank uses it: a stream that every op is put on, a workspace, cublasLt, and the first failure.
//
// Ops (kernels/cuda/ops.h) return nothing and never wait. What fails, at once or later, is kept here with the op's
// name, makes every op after it do nothing, and is returned by status() and synchronize(). A fault that the GPU
// reports later is blamed on the ops since the last wait, all named; with wait_after_each_op only one is named.
//
// This header needs no CUDA header, so callers do not either.
//
// Thread rule: one thread at a time; ops set the thread's current device.
// State: run on an H100 (docs/benchmarks.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/device_link.h"
#include "runtime/base/result.h"
#include "runtime/trainer/kernels/repetition.h"

namespace shardrun::plan {
struct AttentionShape;
}

namespace shardrun::kernels {
using plan::AttentionShape;
}
struct CUstream_st;  // cudaStream_t is a pointer to it

namespace shardrun::kernels::cuda {

// Returns how many GPUs can be used: 0 without a driver or a device. Any other trouble of the driver is an error (kIo).
base::Result<int> device_count();
// Says why that is 0.
std::string why_no_device();

struct FreesMemory {
  void operator()(std::byte* memory) const;
};
using Memory = std::unique_ptr<std::byte[], FreesMemory>;  // GPU memory; freeing it waits for the GPU

class Device {
 public:
  struct Options {
    int index = 0;
    // Grows when an op needs more, but not while a graph is captured.
    size_t workspace_bytes = size_t{64} << 20;
    bool wait_after_each_op = false;  // for tests: a fault has one op's name
  };
  // Errors: kNotFound: there is no such device. kUnsupported: it is older than compute capability 8.0. kIo, with
  // the driver's words.
  static base::Result<std::unique_ptr<Device>> create(const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int index() const;
  CUstream_st* stream() const;
  const std::string& name() const;  // "NVIDIA H200"
  int multiprocessors() const;
  int capability() const;  // 90 for compute capability 9.0

  // Returns the first failure known so far, without waiting.
  base::Result<void> status() const;
  // Waits until all ops are done.
  base::Result<void> synchronize();

  // Returns GPU memory, aligned to 256 bytes. 0 bytes have a valid pointer too.
  base::Result<Memory> allocate(size_t bytes);
  // Copy after all ops before; both wait.
  base::Result<void> copy_in(void* device_memory, const void* host_memory, size_t bytes);
  base::Result<void> copy_out(void* host_memory, const void* device_memory, size_t bytes);
  // Set every byte of some memory, and copy from one place of the GPU's memory to another; both run on the stream.
  void fill(void* device_memory, int byte, size_t bytes);
  void copy(void* to, const void* from, size_t bytes);

  // The link copies to and from pinned host memory in order with the stream, and beside it; any thread may use it.
  // It must not outlive this device.
  base::Result<std::unique_ptr<base::DeviceLink>> make_link();

  // stamp() notes when everything before it on the stream is done; take_stamps() waits, and returns the times since
  // its last call, as std::chrono::steady_clock's nanoseconds.
  void stamp();
  base::Result<std::vector<int64_t>> take_stamps();

  // Returns how many milliseconds the work that `enqueue` puts on the stream takes on the GPU. Waits.
  template <typename Enqueue>
  base::Result<float> milliseconds_of(const Enqueue& enqueue) {
    RETURN_IF_ERROR(mark(0));
    enqueue();
    RETURN_IF_ERROR(mark(1));
    return milliseconds_between_marks();
  }

  // From now on cuDNN (cudnn_attention.h) runs attention of this shape in bf16, without documents or padding, and
  // our kernels run everything else. Compiles its plans, which takes seconds, makes the workspace as large as they
  // want, and returns their bytes. kNotFound, kUnsupported: there is no cuDNN, or it cannot do this shape, or not
  // within `most_bytes`; nothing has changed then.
  base::Result<int64_t> use_cudnn_attention(const AttentionShape& shape, bool causal, int64_t most_bytes);
  void use_own_attention();
  int64_t cudnn_version() const;  // 91900 for 9.19.0; 0: not in use

  // Matrix products (gemm.cu) take cublasLt's first proposal for a shape unless a table knows better. While tuning,
  // a shape's first product times the proposals and adds the fastest to the table. Timing differs from run to run
  // and algorithms differ in their bits, so a run that must repeat loads the table of an earlier one: the same
  // table on the same GPU and cuBLAS gives the same bits. All ranks of a job take the same table.
  void tune_products(bool on);
  std::string product_table() const;
  // Errors: kCorrupt: this is no such table. kRefused: another cuBLAS or GPU made it; nothing is changed then.
  base::Result<void> load_product_table(std::string_view text);
  // Returns the shapes, since a table was loaded, that cublasLt has no kernel for, each with its words: a plain
  // loop of ours multiplies them, slowly.
  const std::vector<std::string>& plain_products() const;

  // Runs `ops`, which put ops on this device and do nothing else. With graphs in use, from the third call on for an
  // equal `what`, they are started as one CUDA graph and `ops` is not called; the second call captures the graph.
  // The kernels are the same, so the bits are. Ops are started one by one while products are tuned, and with
  // wait_after_each_op.
  base::Result<void> repeat(const Repetition& what, const std::function<base::Result<void>()>& ops);
  void use_graphs(bool on);  // off at first
  int64_t graph_launches() const;

  struct State;  // kernels/cuda/launch.cuh
  State& state() { return *state_; }

 private:
  explicit Device(std::unique_ptr<State> state);
  base::Result<void> mark(int which);
  base::Result<float> milliseconds_between_marks();

  std::unique_ptr<State> state_;
};

}  // namespace shardrun::kernels::cuda

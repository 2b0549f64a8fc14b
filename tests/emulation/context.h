// What the calls of include/cuda_runtime.h share: the one state of the emulated runtime, and how a call uses it.
//
// Thread rule: everything that takes a Context is called under its lock, which answer() takes.
#pragma once

#include "tests/emulation/include/cuda_runtime.h"

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "tests/emulation/block.h"
#include "tests/emulation/memory.h"
#include "tests/emulation/queue.h"

using GraphWork = std::vector<shardrun::emulation::Work>;
struct CUstream_st {
  uint64_t number;
  bool is_blocking;                          // waits for the null stream, which waits for it
  std::unique_ptr<GraphWork> captured = {};  // null if it is not being captured
};
struct CUgraph_st {
  GraphWork work;
};
struct CUgraphExec_st {
  GraphWork work;
};
struct CUevent_st {
  bool is_timed;
  shardrun::emulation::Marker marker;  // marks the last record
  std::shared_ptr<std::optional<std::chrono::steady_clock::time_point>> time;
};

namespace shardrun::emulation {

// The state of the calling thread.
struct ThreadState {
  cudaError_t last_error = cudaSuccess;
  bool has_named_device = false;
  CUstream_st* capturing = nullptr;
  bool capture_is_broken = false;
};
extern thread_local ThreadState of_thread;

// All that the runtime knows; there is one per process, as with a driver.
struct Context {
  Context() { explain_faults(); }

  std::mutex lock;
  Queues queues;
  DeviceMemory memory;
  PinnedMemory pinned;
  CUstream_st null_stream{queues.create(), true};
  std::set<CUstream_st*> streams;
  std::map<const void*, size_t> allowed_bytes;  // by kernel
  cudaError_t failure = cudaSuccess;            // failure of work; nothing runs after it
  bool skips_computing = false;
};
Context& context();

// Takes the lock, and notes the error of the call.
template <typename Call>
cudaError_t answer_anywhere(const Call& call) {
  Context& c = context();
  const std::lock_guard guard(c.lock);
  cudaError_t error = c.failure;
  if (error == cudaSuccess) error = call(c);
  if (has_findings()) c.failure = cudaErrorLaunchFailure;
  if (error == cudaSuccess) error = c.failure;
  if (error != cudaSuccess && error != cudaErrorNotReady) of_thread.last_error = error;
  return error;
}

// Answers a call that needs a context: for a thread that has named no GPU, CUDA makes one on the first GPU,
// whosever that is.
template <typename Call>
cudaError_t answer(const Call& call) {
  return answer_anywhere([&](Context& c) {
    if (!of_thread.has_named_device) note_finding("a thread called CUDA that has named no GPU");
    return call(c);
  });
}

// Does the same for a call that a capturing thread may not make.
template <typename Call>
cudaError_t answer_outside_capture(const Call& call) {
  return answer([&](Context& c) {
    if (of_thread.capturing == nullptr) return call(c);
    of_thread.capture_is_broken = true;
    return cudaErrorStreamCaptureUnsupported;
  });
}

CUstream_st& stream_of(Context& c, cudaStream_t stream);
// Orders what comes next on a stream behind what CUDA says that the null stream, or a blocking one, waits for.
void keep_default_order(Context& c, const CUstream_st& stream);
// Puts work on a stream. Nothing may ask for the marker of what is captured.
Marker put(Context& c, cudaStream_t stream, Work work);

// Runs work with the GPU's memory open.
template <typename Finish>
void with_memory(Context& c, const Finish& finish) {
  c.memory.open();
  finish();
  c.memory.close();
}
void finish(Context& c, const Marker& marker);
void finish_all(Context& c);
cudaError_t query(Context& c, const Marker& marker);

}  // namespace shardrun::emulation

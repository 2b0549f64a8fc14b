// The calls of include/cuda_runtime.h except for memory: the device, launches, streams, events, graphs.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/emulation/context.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/emulation/settings.h"

using Clock = std::chrono::steady_clock;

namespace shardrun::emulation {
namespace {

constexpr int kMultiprocessors = 3, kVersion = 13000;

cudaError_t check_shape(const cudaLaunchConfig_t& config, size_t allowed_bytes) {
  const auto volume = [](const dim3& size) { return uint64_t{size.x} * size.y * size.z; };
  if (volume(config.gridDim) == 0 || volume(config.blockDim) == 0 || config.gridDim.x > 0x7fffffffU ||
      config.gridDim.y > 65535 || config.gridDim.z > 65535 || volume(config.blockDim) > 1024 ||
      config.blockDim.z > 64) {
    return cudaErrorInvalidConfiguration;
  }
  return config.dynamicSmemBytes > allowed_bytes ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> body) {
  return answer([&](Context& c) {
    const auto known = c.allowed_bytes.find(kernel);
    const bool is_known = known != c.allowed_bytes.end();
    const size_t allowed = is_known ? known->second : kUsualSharedBytes;
    if (const cudaError_t error = check_shape(config, allowed); error != cudaSuccess) return error;
    if (c.skips_computing) return cudaSuccess;
    put(c, config.stream,
        [&c,
         made = Kernel{config.gridDim, config.blockDim, config.dynamicSmemBytes, is_known, std::move(body)}] {
          if (!run_kernel(made))
            c.failure = cudaErrorLaunchFailure;  // later work of this call is skipped, too
        });
    return cudaSuccess;
  });
}

cudaError_t set_attribute(const void* kernel, cudaFuncAttribute, int value) {
  return answer([&](Context& c) {
    if (value < 0 || static_cast<size_t>(value) > kMostSharedBytes) return cudaErrorInvalidValue;
    c.allowed_bytes[kernel] = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

cudaError_t put_on(cudaStream_t stream, std::function<void()> work) {
  return answer([&](Context& c) {
    if (!c.skips_computing) put(c, stream, std::move(work));
    return cudaSuccess;
  });
}

std::string forget_findings() {
  Context& c = context();
  const std::lock_guard guard(c.lock);
  finish_all(c);
  c.failure = of_thread.last_error = cudaSuccess;
  return take_findings();
}

HeldMemory held_memory() {
  Context& c = context();
  const std::lock_guard guard(c.lock);
  finish_all(c);
  return {static_cast<int64_t>(c.memory.asked_bytes()), static_cast<int64_t>(c.pinned.bytes())};
}

void skip_computing(bool skips) {
  Context& c = context();
  const std::lock_guard guard(c.lock);
  finish_all(c);
  c.skips_computing = skips;
}

}  // namespace shardrun::emulation

using namespace shardrun::emulation;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define SHARDRUN_NAME(name) \
  case name:                \
    return #name;
    SHARDRUN_NAME(cudaSuccess)
    SHARDRUN_NAME(cudaErrorInvalidValue)
    SHARDRUN_NAME(cudaErrorMemoryAllocation)
    SHARDRUN_NAME(cudaErrorInvalidConfiguration)
    SHARDRUN_NAME(cudaErrorInvalidMemcpyDirection)
    SHARDRUN_NAME(cudaErrorInvalidDevice)
    SHARDRUN_NAME(cudaErrorInvalidResourceHandle)
    SHARDRUN_NAME(cudaErrorNoDevice)
    SHARDRUN_NAME(cudaErrorInsufficientDriver)
    SHARDRUN_NAME(cudaErrorNotReady)
    SHARDRUN_NAME(cudaErrorNotSupported)
    SHARDRUN_NAME(cudaErrorHostMemoryAlreadyRegistered)
    SHARDRUN_NAME(cudaErrorHostMemoryNotRegistered)
    SHARDRUN_NAME(cudaErrorStreamCaptureUnsupported)
    SHARDRUN_NAME(cudaErrorStreamCaptureInvalidated)
    SHARDRUN_NAME(cudaErrorStreamCaptureWrongThread)
    SHARDRUN_NAME(cudaErrorIllegalState)
    SHARDRUN_NAME(cudaErrorLaunchFailure)
#undef SHARDRUN_NAME
  }
  return "unknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "the emulated GPU found a fault in a kernel and printed it"
                                         : "as the emulated GPU has it";
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  of_thread.last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  Context& c = context();
  const std::lock_guard guard(c.lock);
  return c.failure != cudaSuccess ? c.failure : of_thread.last_error;
}

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) {
  return answer_anywhere([&](Context&) { return *count = 1, cudaSuccess; });
}
cudaError_t cudaSetDevice(int device) {
  return answer_anywhere([&](Context&) {
    if (device != 0) return cudaErrorInvalidDevice;
    of_thread.has_named_device = true;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* device) {
  return answer_anywhere([&](Context&) { return *device = 0, cudaSuccess; });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return answer_anywhere([&](Context&) {
    if (device != 0) return cudaErrorInvalidDevice;
    *properties = {"emulated GPU (CPU)", 9, 0, kMultiprocessors, 2, settings().memory_bytes,
                   kMostSharedBytes};
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess)
    return error;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      return *value = properties.multiProcessorCount, cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      return *value = properties.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = properties.minor, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = static_cast<int>(properties.sharedMemPerBlockOptin), cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return answer([&](Context&) { return *least = 0, *greatest = -5, cudaSuccess; });
}
cudaError_t cudaDeviceSynchronize() {
  return answer_outside_capture([](Context& c) { return finish_all(c), cudaSuccess; });
}
cudaError_t cudaDriverGetVersion(int* version) {
  return answer_anywhere([&](Context&) { return *version = kVersion, cudaSuccess; });
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return answer_anywhere([&](Context&) { return *version = kVersion, cudaSuccess; });
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes) {
  return answer([&](Context& c) {
    *free_bytes = c.memory.free_bytes();
    *all_bytes = settings().memory_bytes;
    return cudaSuccess;
  });
}

// ---- streams and events

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return answer_outside_capture([&](Context& c) {
    *stream = new CUstream_st{c.queues.create(), (flags & cudaStreamNonBlocking) == 0};
    c.streams.insert(*stream);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return answer_outside_capture([&](Context& c) {
    if (c.streams.erase(stream) == 0) return cudaErrorInvalidResourceHandle;
    finish(c, c.queues.end_of(stream->number));
    c.queues.destroy(stream->number);
    delete stream;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return answer_outside_capture([&](Context& c) {
    const CUstream_st& on = stream_of(c, stream);
    keep_default_order(c, on);
    finish(c, c.queues.end_of(on.number));
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return answer_outside_capture(
      [&](Context& c) { return query(c, c.queues.end_of(stream_of(c, stream).number)); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return answer_outside_capture([&](Context& c) {
    c.queues.put_wait(stream_of(c, stream).number, event->marker);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return answer([&](Context& c) {
    *status = stream_of(c, stream).captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return answer([&](Context&) {
    *event = new CUevent_st{(flags & cudaEventDisableTiming) == 0, {}, nullptr};
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return answer([&](Context&) { return delete event, cudaSuccess; });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return answer_outside_capture([&](Context& c) {
    event->time = std::make_shared<std::optional<Clock::time_point>>();
    event->marker = put(c, stream, [time = event->time] { *time = Clock::now(); });
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return answer_outside_capture([&](Context& c) { return finish(c, event->marker), cudaSuccess; });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return answer_outside_capture([&](Context& c) { return query(c, event->marker); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return answer_outside_capture([&](Context&) {
    if (!begin->is_timed || !end->is_timed || !begin->time || !end->time)
      return cudaErrorInvalidResourceHandle;
    if (!*begin->time || !*end->time) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(**end->time - **begin->time).count();
    return cudaSuccess;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  return answer_outside_capture([&](Context& c) {
    put(c, stream, [&c, function, argument] {
      c.memory.close();
      function(argument);
      c.memory.open();
    });
    return cudaSuccess;
  });
}

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return answer([&](Context&) {
    if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
    if (mode != cudaStreamCaptureModeThreadLocal) return cudaErrorNotSupported;  // nobody needs the others
    if (of_thread.capturing != nullptr || stream->captured) return cudaErrorIllegalState;
    stream->captured = std::make_unique<GraphWork>();
    of_thread.capturing = stream;
    of_thread.capture_is_broken = false;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return answer([&](Context&) {
    *graph = nullptr;
    if (stream == nullptr || !stream->captured) return cudaErrorIllegalState;
    if (of_thread.capturing != stream) return cudaErrorStreamCaptureWrongThread;
    const std::unique_ptr<GraphWork> work = std::move(stream->captured);
    of_thread.capturing = nullptr;
    if (of_thread.capture_is_broken) return cudaErrorStreamCaptureInvalidated;
    *graph = new CUgraph_st{std::move(*work)};
    return cudaSuccess;
  });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  return answer_outside_capture(
      [&](Context&) { return *made = new CUgraphExec_st{graph->work}, cudaSuccess; });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return answer([&](Context&) { return delete graph, cudaSuccess; });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return answer([&](Context&) { return delete graph, cudaSuccess; });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return answer_outside_capture([&](Context& c) {
    for (const Work& work : graph->work) put(c, stream, work);
    return cudaSuccess;
  });
}

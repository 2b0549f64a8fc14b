// The calls of include/cuda_runtime.h.
#include <cuda_runtime.h>

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "tests/emulation/block.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/emulation/loaded_code.h"
#include "tests/emulation/memory.h"
#include "tests/emulation/queue.h"
#include "tests/emulation/settings.h"

using shardrun::emulation::Marker;
using Clock = std::chrono::steady_clock;

struct CUstream_st {
  uint64_t number;
  bool is_blocking;  // waits for the stream null, which waits for it
};
struct CUevent_st {
  bool is_timed;
  Marker marker;  // of the last record
  std::shared_ptr<std::optional<Clock::time_point>> time;
};

namespace shardrun::emulation {
namespace {

constexpr int kMultiprocessors = 3, kVersion = 13000;

thread_local cudaError_t last_error = cudaSuccess;
thread_local bool has_named_device = false;

// All that the runtime knows; one of the process, as a driver is.
struct Context {
  Context() { explain_faults(); }

  std::mutex lock;
  Queues queues;
  DeviceMemory memory;
  PinnedMemory pinned;
  CUstream_st null_stream{queues.create(), true};
  std::set<CUstream_st*> streams;
  std::map<const void*, size_t> allowed_bytes;  // of kernels
  cudaError_t failure = cudaSuccess;            // of work; nothing runs after it
  bool skips_computing = false;
};

Context& context() {
  static Context* const one = [] {
    auto* const made = new Context;  // outlives whoever frees memory at exit
    made->memory.close();
    return made;
  }();
  return *one;
}

// Takes the lock, and notes the error of the call.
template <typename Call>
cudaError_t answer_anywhere(const Call& call) {
  Context& c = context();
  const std::lock_guard guard(c.lock);
  cudaError_t error = c.failure;
  if (error == cudaSuccess) error = call(c);
  if (has_findings()) c.failure = cudaErrorLaunchFailure;
  if (error == cudaSuccess) error = c.failure;
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// Of a call that needs a context: CUDA makes one on the first GPU, whosever that is, for a thread that has named none.
template <typename Call>
cudaError_t answer(const Call& call) {
  return answer_anywhere([&](Context& c) {
    if (!has_named_device) note_finding("a thread called CUDA that has named no GPU");
    return call(c);
  });
}

CUstream_st& stream_of(Context& c, cudaStream_t stream) {
  return stream == nullptr ? c.null_stream : *stream;
}

// Orders what comes next on a stream behind what CUDA says that the stream null, or a blocking one, waits for.
void keep_default_order(Context& c, const CUstream_st& stream) {
  if (!stream.is_blocking) return;
  if (stream.number != c.null_stream.number)
    return c.queues.put_wait(stream.number, c.queues.end_of(c.null_stream.number));
  for (const CUstream_st* other : c.streams) {
    if (other->is_blocking) c.queues.put_wait(stream.number, c.queues.end_of(other->number));
  }
}

Marker put(Context& c, cudaStream_t stream, Work work) {
  const CUstream_st& on = stream_of(c, stream);
  keep_default_order(c, on);
  return c.queues.put(on.number, [&c, work = std::move(work)] {
    if (c.failure == cudaSuccess) work();
  });
}

// Runs work with the GPU's memory open.
template <typename Finish>
void with_memory(Context& c, const Finish& finish) {
  c.memory.open();
  finish();
  c.memory.close();
}
void finish(Context& c, const Marker& marker) {
  if (!c.queues.is_done(marker)) with_memory(c, [&] { c.queues.finish(marker); });
}
void finish_all(Context& c) {
  with_memory(c, [&] { c.queues.finish_all(); });
}
cudaError_t query(Context& c, const Marker& marker) {
  if (c.queues.is_done(marker)) return cudaSuccess;
  with_memory(c, [&] { c.queues.step_towards(marker); });
  return cudaErrorNotReady;
}

cudaMemcpyKind kind_of(Context& c, const void* to, const void* from) {
  const bool to_device = c.memory.has(to, 0), from_device = c.memory.has(from, 0);
  return to_device     ? from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
         : from_device ? cudaMemcpyDeviceToHost
                       : cudaMemcpyHostToHost;
}

cudaError_t check_copy(Context& c, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaMemcpyKind actual = kind_of(c, to, from);
  if (kind != cudaMemcpyDefault && kind != actual) return cudaErrorInvalidValue;
  const bool to_device = actual == cudaMemcpyHostToDevice || actual == cudaMemcpyDeviceToDevice;
  const bool from_device = actual == cudaMemcpyDeviceToHost || actual == cudaMemcpyDeviceToDevice;
  if ((to_device && !c.memory.has(to, bytes)) || (from_device && !c.memory.has(from, bytes)))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

bool is_pageable(Context& c, const void* memory, size_t bytes) {
  return !c.memory.has(memory, 0) && !c.pinned.has(memory, bytes);
}

cudaError_t allocate(Context& c, void** memory, size_t bytes) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory = c.memory.allocate(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

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
  c.failure = last_error = cudaSuccess;
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
    SHARDRUN_NAME(cudaErrorLaunchFailure)
    SHARDRUN_NAME(cudaErrorInvalidKernelImage)
    SHARDRUN_NAME(cudaErrorNoKernelImageForDevice)
    SHARDRUN_NAME(cudaErrorSymbolNotFound)
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
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  Context& c = context();
  const std::lock_guard guard(c.lock);
  return c.failure != cudaSuccess ? c.failure : last_error;
}

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) {
  return answer_anywhere([&](Context&) { return *count = 1, cudaSuccess; });
}
cudaError_t cudaSetDevice(int device) {
  return answer_anywhere([&](Context&) {
    if (device != 0) return cudaErrorInvalidDevice;
    has_named_device = true;
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
  return answer([](Context& c) { return finish_all(c), cudaSuccess; });
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
  return answer([&](Context& c) {
    *stream = new CUstream_st{c.queues.create(), (flags & cudaStreamNonBlocking) == 0};
    c.streams.insert(*stream);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return answer([&](Context& c) {
    if (c.streams.erase(stream) == 0) return cudaErrorInvalidResourceHandle;
    finish(c, c.queues.end_of(stream->number));
    c.queues.destroy(stream->number);
    delete stream;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return answer([&](Context& c) {
    const CUstream_st& on = stream_of(c, stream);
    keep_default_order(c, on);
    finish(c, c.queues.end_of(on.number));
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return answer([&](Context& c) { return query(c, c.queues.end_of(stream_of(c, stream).number)); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return answer([&](Context& c) {
    c.queues.put_wait(stream_of(c, stream).number, event->marker);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return answer([&](Context&) { return *status = cudaStreamCaptureStatusNone, cudaSuccess; });
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
  return answer([&](Context& c) {
    event->time = std::make_shared<std::optional<Clock::time_point>>();
    event->marker = put(c, stream, [time = event->time] { *time = Clock::now(); });
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return answer([&](Context& c) { return finish(c, event->marker), cudaSuccess; });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return answer([&](Context& c) { return query(c, event->marker); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return answer([&](Context&) {
    if (!begin->is_timed || !end->is_timed || !begin->time || !end->time)
      return cudaErrorInvalidResourceHandle;
    if (!*begin->time || !*end->time) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(**end->time - **begin->time).count();
    return cudaSuccess;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  return answer([&](Context& c) {
    put(c, stream, [&c, function, argument] {
      c.memory.close();
      function(argument);
      c.memory.open();
    });
    return cudaSuccess;
  });
}

// ---- loaded code

struct CUlib_st {
  std::unique_ptr<LoadedCode> code;
};

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  return answer([&](Context&) {
    auto loaded = LoadedCode::load(code);
    if (const auto* refusal = std::get_if<LoadedCode::Refusal>(&loaded)) {
      return *refusal == LoadedCode::Refusal::kNoCode ? cudaErrorInvalidKernelImage
                                                      : cudaErrorNoKernelImageForDevice;
    }
    *library = new CUlib_st{std::move(std::get<std::unique_ptr<LoadedCode>>(loaded))};
    return cudaSuccess;
  });
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  return answer([&](Context&) {
    *kernel = static_cast<cudaKernel_t>(library->code->find(name));
    return *kernel != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
  });
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  return answer([&](Context& c) {
    finish_all(c);
    delete library;
    return cudaSuccess;
  });
}

// ---- memory

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return answer([&](Context& c) { return allocate(c, memory, bytes); });
}
cudaError_t cudaFree(void* memory) {
  return answer([&](Context& c) {
    if (memory == nullptr) return cudaSuccess;
    finish_all(c);
    return c.memory.release(memory) ? cudaSuccess : cudaErrorInvalidValue;
  });
}
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  return answer([&](Context& c) {
    keep_default_order(c, stream_of(c, stream));
    return allocate(c, memory, bytes);
  });
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return answer([&](Context& c) {
    if (memory == nullptr) return cudaSuccess;
    if (!c.memory.has(memory, 0)) return cudaErrorInvalidValue;
    put(c, stream, [&c, memory] { c.memory.release(memory); });
    return cudaSuccess;
  });
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return answer([&](Context& c) {
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xff, bytes);
    c.pinned.add(*memory, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaFreeHost(void* memory) {
  return answer([&](Context& c) {
    if (memory == nullptr) return cudaSuccess;
    finish_all(c);
    if (!c.pinned.remove(memory)) return cudaErrorInvalidValue;
    std::free(memory);
    return cudaSuccess;
  });
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  return answer([&](Context& c) {
    if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
    return c.pinned.add(memory, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}
cudaError_t cudaHostUnregister(void* memory) {
  return answer([&](Context& c) {
    finish_all(c);
    return c.pinned.remove(memory) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return answer([&](Context& c) {
    if (bytes == 0) return cudaSuccess;
    if (const cudaError_t error = check_copy(c, to, from, bytes, kind); error != cudaSuccess) return error;
    const Marker marker = put(c, stream, [to, from, bytes] { std::memmove(to, from, bytes); });
    if (is_pageable(c, to, bytes) || is_pageable(c, from, bytes)) finish(c, marker);
    return cudaSuccess;
  });
}
// From pageable memory to the GPU it may return before the GPU has the bytes, which are its own by then.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return answer([&](Context& c) {
    if (bytes == 0) return cudaSuccess;
    if (const cudaError_t error = check_copy(c, to, from, bytes, kind); error != cudaSuccess) return error;
    if (kind_of(c, to, from) == cudaMemcpyHostToDevice && is_pageable(c, from, bytes)) {
      const auto* const begin = static_cast<const std::byte*>(from);
      put(c, nullptr, [to, copy = std::vector<std::byte>(begin, begin + bytes)] {
        std::memcpy(to, copy.data(), copy.size());
      });
    } else {
      finish(c, put(c, nullptr, [to, from, bytes] { std::memmove(to, from, bytes); }));
    }
    return cudaSuccess;
  });
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return answer([&](Context& c) {
    if (bytes == 0) return cudaSuccess;
    if (!c.memory.has(memory, bytes)) return cudaErrorInvalidValue;
    put(c, stream, [memory, value, bytes] { std::memset(memory, value, bytes); });
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

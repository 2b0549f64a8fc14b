// The calls of include/cuda_runtime.h that take, free and copy memory.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/emulation/context.h"

using namespace shardrun::emulation;

namespace {

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

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return answer_outside_capture([&](Context& c) { return allocate(c, memory, bytes); });
}
cudaError_t cudaFree(void* memory) {
  return answer_outside_capture([&](Context& c) {
    if (memory == nullptr) return cudaSuccess;
    finish_all(c);
    return c.memory.release(memory) ? cudaSuccess : cudaErrorInvalidValue;
  });
}
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  return answer_outside_capture([&](Context& c) {
    keep_default_order(c, stream_of(c, stream));
    return allocate(c, memory, bytes);
  });
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return answer_outside_capture([&](Context& c) {
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
  return answer_outside_capture([&](Context& c) {
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xff, bytes);
    c.pinned.add(*memory, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaFreeHost(void* memory) {
  return answer_outside_capture([&](Context& c) {
    if (memory == nullptr) return cudaSuccess;
    finish_all(c);
    if (!c.pinned.remove(memory)) return cudaErrorInvalidValue;
    std::free(memory);
    return cudaSuccess;
  });
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  return answer_outside_capture([&](Context& c) {
    if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
    return c.pinned.add(memory, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}
cudaError_t cudaHostUnregister(void* memory) {
  return answer_outside_capture([&](Context& c) {
    finish_all(c);
    return c.pinned.remove(memory) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return answer([&](Context& c) {
    if (bytes == 0) return cudaSuccess;
    if (const cudaError_t error = check_copy(c, to, from, bytes, kind); error != cudaSuccess) return error;
    if (stream_of(c, stream).captured && kind_of(c, to, from) != cudaMemcpyDeviceToDevice) {
      of_thread.capture_is_broken = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    const Marker marker = put(c, stream, [to, from, bytes] { std::memmove(to, from, bytes); });
    if (is_pageable(c, to, bytes) || is_pageable(c, from, bytes)) finish(c, marker);
    return cudaSuccess;
  });
}
// When it copies from pageable memory to the GPU, it may return before the GPU has the bytes, which are
// its own by then.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return answer_outside_capture([&](Context& c) {
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

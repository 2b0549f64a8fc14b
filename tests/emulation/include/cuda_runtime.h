// The part of CUDA's runtime that runtime/trainer/kernels/cuda and the trainer use, on the emulated GPU (tests/emulation).
//
// Names, arguments and promises are those of NVIDIA's CUDA Runtime API reference, version 13; the values of
// enumerators are not. What is put on a stream runs when somebody waits (tests/emulation/queue.h). GPU memory is
// closed to the host (tests/emulation/memory.h). The emulated GPU is one device of compute capability 9.0.
//
// Thread rule: as for CUDA; calls take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "tests/emulation/device_code.h"

enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorInvalidConfiguration,
  cudaErrorInvalidMemcpyDirection,
  cudaErrorInvalidDevice,
  cudaErrorInvalidResourceHandle,
  cudaErrorNoDevice,
  cudaErrorInsufficientDriver,
  cudaErrorNotReady,
  cudaErrorNotSupported,
  cudaErrorHostMemoryAlreadyRegistered,
  cudaErrorHostMemoryNotRegistered,
  cudaErrorStreamCaptureUnsupported,
  cudaErrorStreamCaptureInvalidated,
  cudaErrorStreamCaptureWrongThread,
  cudaErrorIllegalState,
  cudaErrorLaunchFailure,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount, asyncEngineCount;
  size_t totalGlobalMem, sharedMemPerBlockOptin;
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes);

// ---- streams and events
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };

cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument);

// ---- graphs: each of one stream, captured by one thread. Kernels, libraries' work, memsets and copies within the
// GPU may be captured. What CUDA forbids or leaves unsafe while a thread captures, and some calls that it allows,
// are refused to that thread.
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);

// ---- memory
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostRegisterDefault = 0,
                   cudaHostRegisterPortable = 1;

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);  // runs after all work
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
// Copies from or to host memory that is not pinned wait for the stream and have then copied: as bad as a copy gets.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);

// ---- kernels
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

namespace shardrun::emulation {
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> body);
cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
// Puts what a library (cublasLt, cub) does on a stream. It runs with the GPU's memory open.
cudaError_t put_on(cudaStream_t stream, std::function<void()> work);
}  // namespace shardrun::emulation

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return shardrun::emulation::launch(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, ... values = static_cast<std::decay_t<Parameters>>(arguments)] { kernel(values...); });
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  return shardrun::emulation::set_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

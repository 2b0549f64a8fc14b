// A stand-in for libcuda.so.1: the few functions that the nccl plugin uses, on host memory, with streams that are
// threads and dawdle as scripted. It serves only to test order and faults where there is no GPU.
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>

#include "plugins/nccl/nccl_types.h"
#include "tests/fakes/nccl/script.h"
#include "tests/fakes/worker.h"

using namespace shardrun::nccl;
using shardrun::fakes::CudaScript;
using shardrun::fakes::Worker;

namespace shardrun::nccl {
struct CuContext {};
struct CuStream {
  Worker worker;
};
struct CuEvent {
  std::shared_future<void> point;
};
}  // namespace shardrun::nccl

extern "C" {

CudaScript fake_cuda_script;

#ifdef NO_GPU
CuResult cuInit(unsigned int) {
  return kCuNoDevice;
}
#else
CuResult cuInit(unsigned int) {
  return kCuSuccess;
}
#endif
CuResult cuDriverGetVersion(int* version) {
  *version = 13000;
  return kCuSuccess;
}
CuResult cuDeviceGetCount(int* count) {
  *count = 4;
  return kCuSuccess;
}
CuResult cuDeviceGet(CuDevice* device, int index) {
  *device = index;
  return kCuSuccess;
}
CuResult cuDevicePrimaryCtxRetain(CuContext** context, CuDevice) {
  static CuContext only;
  *context = &only;
  return kCuSuccess;
}
CuResult cuDevicePrimaryCtxRelease_v2(CuDevice) {
  return kCuSuccess;
}
CuResult cuCtxSetCurrent(CuContext*) {
  return kCuSuccess;
}
CuResult cuGetErrorName(CuResult result, const char** name) {
  *name = result == kCuNoDevice ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
  return kCuSuccess;
}
CuResult cuGetErrorString(CuResult result, const char** text) {
  *text = result == kCuNoDevice ? "no CUDA-capable device is detected" : "unknown error";
  return kCuSuccess;
}
CuResult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kCuSuccess;
}
CuResult cuStreamCreateWithPriority(CuStream** stream, unsigned int, int) {
  *stream = new CuStream{Worker(static_cast<uint64_t>(++fake_cuda_script.seed),
                                std::chrono::microseconds(fake_cuda_script.dawdle_microseconds))};
  return kCuSuccess;
}
CuResult cuStreamDestroy_v2(CuStream* stream) {
  delete stream;
  return kCuSuccess;
}
CuResult cuStreamWaitEvent(CuStream* stream, CuEvent* event, unsigned int) {
  if (!fake_cuda_script.ignores_events && event->point.valid())
    stream->worker.put([point = event->point] { point.wait(); });
  return kCuSuccess;
}
CuResult cuEventCreate(CuEvent** event, unsigned int) {
  *event = new CuEvent;
  return kCuSuccess;
}
CuResult cuEventDestroy_v2(CuEvent* event) {
  delete event;
  return kCuSuccess;
}
CuResult cuEventRecord(CuEvent* event, CuStream* stream) {
  const auto reached = std::make_shared<std::promise<void>>();
  event->point = reached->get_future().share();
  stream->worker.put([reached] { reached->set_value(); });
  return kCuSuccess;
}
CuResult cuEventQuery(CuEvent* event) {
  const bool done =
      !event->point.valid() || event->point.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return done ? kCuSuccess : kCuNotReady;
}
CuResult cuStreamSynchronize(CuStream* stream) {
  CuEvent end;
  cuEventRecord(&end, stream);
  end.point.wait();
  return kCuSuccess;
}
CuResult cuMemAlloc_v2(CuPointer* memory, size_t bytes) {
  void* at = std::malloc(bytes);
  std::memset(at, 0xa5, bytes);
  *memory = reinterpret_cast<CuPointer>(at);
  return kCuSuccess;
}
CuResult cuMemFree_v2(CuPointer memory) {
  std::free(reinterpret_cast<void*>(memory));
  return kCuSuccess;
}
CuResult cuMemcpyHtoDAsync_v2(CuPointer to, const void* from, size_t bytes, CuStream* stream) {
  stream->worker.put([=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
  return kCuSuccess;
}
CuResult cuMemcpyDtoHAsync_v2(void* to, CuPointer from, size_t bytes, CuStream* stream) {
  stream->worker.put([=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
  return kCuSuccess;
}
CuResult cuLaunchHostFunc(CuStream* stream, void (*work)(void*), void* argument) {
  stream->worker.put([=] { work(argument); });
  return kCuSuccess;
}

}  // extern "C"

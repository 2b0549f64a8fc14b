// What plugins/nccl declares of NCCL and CUDA, against their real headers.
#include "plugins/nccl/nccl_types.h"

#include <cuda.h>
#include <doctest/doctest.h>
#include <nccl.h>

namespace n = shardrun::nccl;

namespace {
constexpr int number(int value) {
  return value;
}
}  // namespace

#define SAME(ours, theirs) static_assert(number(n::ours) == number(static_cast<int>(theirs)))
SAME(kSuccess, ncclSuccess);
SAME(kUnhandledCudaError, ncclUnhandledCudaError);
SAME(kSystemError, ncclSystemError);
SAME(kInternalError, ncclInternalError);
SAME(kInvalidArgument, ncclInvalidArgument);
SAME(kInvalidUsage, ncclInvalidUsage);
SAME(kRemoteError, ncclRemoteError);
SAME(kInProgress, ncclInProgress);
SAME(kUint8, ncclUint8);
SAME(kFloat32, ncclFloat32);
SAME(kFloat64, ncclFloat64);
SAME(kBfloat16, ncclBfloat16);
SAME(kSum, ncclSum);
SAME(kUndefined, NCCL_CONFIG_UNDEF_INT);
SAME(kCuSuccess, CUDA_SUCCESS);
SAME(kCuNoDevice, CUDA_ERROR_NO_DEVICE);
SAME(kCuNotReady, CUDA_ERROR_NOT_READY);
SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
static_assert(sizeof(n::UniqueId) == sizeof(ncclUniqueId) && sizeof(n::CuPointer) == sizeof(CUdeviceptr) &&
              sizeof(n::CuDevice) == sizeof(CUdevice));
static_assert(offsetof(n::Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(n::Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(n::Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(n::Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize) &&
              offsetof(n::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(n::Config, net_name) == offsetof(ncclConfig_t, netName) &&
              sizeof(n::Config) <= offsetof(ncclConfig_t, splitShare));

TEST_CASE("nccl types: the magic of a configuration is NCCL's") {
  const ncclConfig_t real = NCCL_CONFIG_INITIALIZER;
  CHECK(n::Config{}.magic == real.magic);
}

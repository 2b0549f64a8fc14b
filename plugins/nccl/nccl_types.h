// The few facts of NCCL's and CUDA's C interfaces that the plugin uses, so that it builds where neither is installed.
//
// Sources: nccl.h of NCCL 2.17 to 2.30 (values and layouts that its makers keep: results, data types, the unique id, and
// the head of ncclConfig_t as it was in 2.17, which later libraries read by its `size` and `version`); cuda.h of the
// driver interface 11 to 13. tests/unit/comm/nccl_types_test compares them with the real header where there is one.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace shardrun::nccl {

struct Comm;  // ncclComm
using Result = int;
enum : Result {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7
};
enum : int { kUint8 = 1, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9 };  // ncclDataType_t
constexpr int kSum = 0;                                                // ncclRedOp_t

struct UniqueId {
  char internal[128];
};

constexpr int kUndefined = INT_MIN;
struct Config {  // ncclConfig_v21700
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21700;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
};
static_assert(sizeof(Config) == 40 && offsetof(Config, net_name) == 32);

// CUDA's driver interface. A stream of its runtime interface is the same pointer.
using CuResult = int;
enum : CuResult { kCuSuccess = 0, kCuNoDevice = 100, kCuNotReady = 600 };
using CuDevice = int;
using CuPointer = unsigned long long;
struct CuContext;
struct CuStream;
struct CuEvent;
constexpr unsigned int kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
constexpr unsigned int kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING

}  // namespace shardrun::nccl

// The libraries that are loaded when the plugin is opened, never linked: NCCL, and CUDA's driver interface.
//
// They stay loaded until the process ends, because they own threads. Errors: UNSUPPORTED with the library's name,
// what was found, what is needed, and the mend. Thread rule: load on one thread; the tables are read-only afterwards.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/common/status.h"
#include "plugins/nccl/nccl_types.h"

namespace shardrun::nccl {

using common::Status;

// 2.17.1: the oldest that has ncclConfig_t's netName and that aws-ofi-nccl works with.
constexpr int kOldestNccl = 21701;

struct NcclLibrary {
  int version = 0;  // 22809 is 2.28.9

  Result (*get_version)(int*);
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank_config)(Comm**, int ranks, UniqueId, int rank, Config*);
  Result (*comm_get_async_error)(Comm*, Result*);
  Result (*comm_finalize)(Comm*);
  Result (*comm_destroy)(Comm*);
  Result (*comm_abort)(Comm*);
  const char* (*get_error_string)(Result);
  const char* (*get_last_error)(Comm*);
  Result (*all_gather)(const void*, void*, size_t, int type, Comm*, CuStream*);
  Result (*reduce_scatter)(const void*, void*, size_t, int type, int op, Comm*, CuStream*);
  Result (*all_reduce)(const void*, void*, size_t, int type, int op, Comm*, CuStream*);
  Result (*broadcast)(const void*, void*, size_t, int type, int root, Comm*, CuStream*);

  // Returns, for example, "ncclSystemError (unhandled system error): <the last error of `comm`>".
  std::string describe(Result result, Comm* comm) const;
};

struct CudaDriver {
  CuResult (*init)(unsigned int);
  CuResult (*driver_version)(int*);
  CuResult (*device_count)(int*);
  CuResult (*device)(CuDevice*, int index);
  CuResult (*primary_retain)(CuContext**, CuDevice);
  CuResult (*primary_release)(CuDevice);
  CuResult (*context_set)(CuContext*);
  CuResult (*error_name)(CuResult, const char**);
  CuResult (*error_string)(CuResult, const char**);
  CuResult (*priority_range)(int* least, int* greatest);
  CuResult (*stream_create)(CuStream**, unsigned int flags, int priority);
  CuResult (*stream_destroy)(CuStream*);
  CuResult (*stream_wait_event)(CuStream*, CuEvent*, unsigned int flags);
  CuResult (*stream_synchronize)(CuStream*);
  CuResult (*event_create)(CuEvent**, unsigned int flags);
  CuResult (*event_destroy)(CuEvent*);
  CuResult (*event_record)(CuEvent*, CuStream*);
  CuResult (*event_query)(CuEvent*);
  CuResult (*allocate)(CuPointer*, size_t);
  CuResult (*free)(CuPointer);
  CuResult (*copy_in)(CuPointer, const void*, size_t, CuStream*);
  CuResult (*copy_out)(void*, CuPointer, size_t, CuStream*);

  // Returns, for example, "cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered".
  std::string describe(const char* call, CuResult result) const;
};

Status load_nccl(NcclLibrary* library);
// Also finds out whether any GPU can be used. Output: devices, how many there are.
Status load_driver(CudaDriver* driver, int* devices);

std::string version_text(int nccl_version);  // 22809 → "2.28.9"

}  // namespace shardrun::nccl

#include "plugins/nccl/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <initializer_list>

namespace shardrun::nccl {
namespace {

struct Wanted {
  const char* name;
  void* slot;  // points to the pointer to the function
};

// Returns the first name that the library lacks; null if it has all.
const char* resolve(void* library, std::initializer_list<Wanted> wanted) {
  for (const Wanted& each : wanted) {
    void* found = dlsym(library, each.name);
    if (found == nullptr) return each.name;
    *static_cast<void**>(each.slot) = found;
  }
  return nullptr;
}

const char* result_name(Result result) {
  constexpr const char* kNames[] = {"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                                    "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                                    "ncclRemoteError",   "ncclInProgress"};
  return result >= 0 && result < static_cast<int>(std::size(kNames)) ? kNames[result] : "an unknown result";
}

}  // namespace

std::string version_text(int nccl_version) {
  const bool three_digits = nccl_version < 10000;  // 2708 was 2.7.8
  const int major = nccl_version / (three_digits ? 1000 : 10000);
  const int minor = nccl_version / 100 % (three_digits ? 10 : 100);
  return fmt::format("{}.{}.{}", major, minor, nccl_version % 100);
}

std::string NcclLibrary::describe(Result result, Comm* comm) const {
  std::string text = fmt::format("{} ({})", result_name(result), get_error_string(result));
  const char* last = get_last_error(comm);
  if (last != nullptr && last[0] != '\0') text += fmt::format(": {}", last);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string CudaDriver::describe(const char* call, CuResult result) const {
  const char *name = nullptr, *text = nullptr;
  (void)error_name(result, &name);
  (void)error_string(result, &text);
  return fmt::format("{}: {}: {}", call, name == nullptr ? fmt::format("error {}", result) : name,
                     text == nullptr ? "no text" : text);
}

Status load_nccl(NcclLibrary* library) {
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {
        SHARDRUN_COMM_UNSUPPORTED,
        fmt::format(
            "plugin nccl needs NCCL {} or later, and the loader does not find it ({}): install libnccl2, or "
            "put its folder into LD_LIBRARY_PATH or ld.so.conf, or choose another [communication] plugin",
            version_text(kOldestNccl), dlerror())};
  }
  NcclLibrary& l = *library;
  const char* missing = resolve(handle, {{"ncclGetVersion", &l.get_version}});
  if (missing == nullptr && (l.get_version(&l.version) != kSuccess || l.version < kOldestNccl)) {
    return {SHARDRUN_COMM_UNSUPPORTED,
            fmt::format(
                "plugin nccl needs NCCL {} or later, libnccl.so.2 is {}: update libnccl2, or put a newer one "
                "first in LD_LIBRARY_PATH",
                version_text(kOldestNccl), version_text(l.version))};
  }
  if (missing == nullptr) {
    missing = resolve(handle, {{"ncclGetUniqueId", &l.get_unique_id},
                               {"ncclCommInitRankConfig", &l.comm_init_rank_config},
                               {"ncclCommGetAsyncError", &l.comm_get_async_error},
                               {"ncclCommFinalize", &l.comm_finalize},
                               {"ncclCommDestroy", &l.comm_destroy},
                               {"ncclCommAbort", &l.comm_abort},
                               {"ncclGetErrorString", &l.get_error_string},
                               {"ncclGetLastError", &l.get_last_error},
                               {"ncclAllGather", &l.all_gather},
                               {"ncclReduceScatter", &l.reduce_scatter},
                               {"ncclAllReduce", &l.all_reduce},
                               {"ncclBroadcast", &l.broadcast}});
  }
  if (missing == nullptr) return {};
  return {SHARDRUN_COMM_UNSUPPORTED,
          fmt::format(
              "libnccl.so.2 (version {}) has no {}: it is not NVIDIA's NCCL {} or later; install libnccl2",
              version_text(l.version), missing, version_text(kOldestNccl))};
}

Status load_driver(CudaDriver* driver, int* devices) {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {
        SHARDRUN_COMM_UNSUPPORTED,
        fmt::format(
            "plugin nccl needs an NVIDIA GPU with its driver, and libcuda.so.1 is not here ({}): run on a "
            "node with GPUs, or choose another [communication] plugin",
            dlerror())};
  }
  CudaDriver& d = *driver;
  const char* missing = resolve(handle, {{"cuInit", &d.init},
                                         {"cuDriverGetVersion", &d.driver_version},
                                         {"cuDeviceGetCount", &d.device_count},
                                         {"cuDeviceGet", &d.device},
                                         {"cuDevicePrimaryCtxRetain", &d.primary_retain},
                                         {"cuDevicePrimaryCtxRelease_v2", &d.primary_release},
                                         {"cuCtxSetCurrent", &d.context_set},
                                         {"cuGetErrorName", &d.error_name},
                                         {"cuGetErrorString", &d.error_string},
                                         {"cuCtxGetStreamPriorityRange", &d.priority_range},
                                         {"cuStreamCreateWithPriority", &d.stream_create},
                                         {"cuStreamDestroy_v2", &d.stream_destroy},
                                         {"cuStreamWaitEvent", &d.stream_wait_event},
                                         {"cuStreamSynchronize", &d.stream_synchronize},
                                         {"cuEventCreate", &d.event_create},
                                         {"cuEventDestroy_v2", &d.event_destroy},
                                         {"cuEventRecord", &d.event_record},
                                         {"cuEventQuery", &d.event_query},
                                         {"cuMemAlloc_v2", &d.allocate},
                                         {"cuMemFree_v2", &d.free},
                                         {"cuMemcpyHtoDAsync_v2", &d.copy_in},
                                         {"cuMemcpyDtoHAsync_v2", &d.copy_out}});
  if (missing != nullptr) {
    return {SHARDRUN_COMM_UNSUPPORTED,
            fmt::format("libcuda.so.1 has no {}: the NVIDIA driver is too old; update it", missing)};
  }
  CuResult result = d.init(0);
  if (result == kCuSuccess) result = d.device_count(devices);
  if (result == kCuSuccess && *devices > 0) return {};
  const std::string why = result == kCuSuccess ? "it counts none" : d.describe("cuInit", result);
  return {
      SHARDRUN_COMM_UNSUPPORTED,
      fmt::format(
          "plugin nccl needs an NVIDIA GPU, and the driver finds none ({}): run on a node with GPUs, look "
          "at CUDA_VISIBLE_DEVICES, or choose another [communication] plugin",
          why)};
}

}  // namespace shardrun::nccl

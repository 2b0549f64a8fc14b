// GpuKernels: prepared cubins in a GPU, through the driver's library, opened at run time.
//
// Thread rule: one thread calls, before others run ops and after they have ended.
// State: against a scripted driver alone; never on a GPU yet.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/compile/prepare.h"
#include "runtime/kernels/cuda/specialised.h"

namespace shardrun::compile {

inline constexpr const char* kDriver = "libcuda.so.1";

// "sm_90" of GPU `device`, as CUDA numbers them. kNotFound: no driver, or no such device.
Result<std::string> gpu_architecture(int device, const std::string& driver = kDriver);

class GpuKernels {
 public:
  // Loads the bytes that were checked into the device's primary context, which the ops use, and installs them
  // (kernels/specialised.h). kCorrupt when one is no cubin of the device's architecture with its kernel's functions;
  // kIo with the driver's words. Nothing stays installed then.
  static Result<std::unique_ptr<GpuKernels>> load(std::span<const PreparedKernel> kernels, int device,
                                                  const std::string& driver = kDriver);
  // Takes them out again; no op may be running.
  ~GpuKernels();
  GpuKernels(const GpuKernels&) = delete;
  GpuKernels& operator=(const GpuKernels&) = delete;

 private:
  struct Driver;
  GpuKernels() = default;
  Result<void> load_one(const PreparedKernel& kernel, const std::string& architecture);

  std::unique_ptr<Driver> driver_;
  int device_ = 0;  // CUdevice
  bool retained_ = false;
  std::vector<void*> modules_;                                        // CUmodule
  std::vector<std::unique_ptr<kernels::cuda::LoadedKernel>> loaded_;  // at addresses that stay

  friend Result<std::string> gpu_architecture(int device, const std::string& driver);
};

}  // namespace shardrun::compile

// What the tests' programs do where there is no GPU: they end with 77, which ctest reports as skipped, never as passed.
#pragma once

#include <cstdio>
#include <optional>

#include "runtime/trainer/kernels/cuda/device.h"

namespace shardrun::gpu_test {

// Returns the exit code of a program that has no GPU to run on, and says why; nullopt where there is one.
inline std::optional<int> exit_code_without_gpu() {
  const auto devices = kernels::cuda::device_count();
  if (!devices) {
    std::fprintf(stderr, "FAIL %s\n", devices.error().to_string().c_str());
    return 1;
  }
  if (*devices > 0) return std::nullopt;
  std::puts("skipped: no NVIDIA GPU, or no driver for one");
  return 77;
}

}  // namespace shardrun::gpu_test

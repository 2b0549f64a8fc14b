// Tests training on a GPU. Exit code 77 where there is no GPU to run on: skipped, never passed.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "runtime/trainer/kernels/cuda/device.h"

int main(int count, char** arguments) {
  const auto devices = shardrun::kernels::cuda::device_count();
  if (!devices) {
    std::fprintf(stderr, "FAIL %s\n", devices.error().to_string().c_str());
    return 1;
  }
  if (*devices == 0) {
    std::puts("skipped: no NVIDIA GPU, or no driver for one");
    return 77;
  }
  return doctest::Context(count, arguments).run();
}

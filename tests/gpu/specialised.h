// Kernels compiled for the shapes that a test names: by NVIDIA's NVRTC, or on the emulated GPU by its own.
//
// Thread rule: one thread.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/trainer/compile/nvrtc.h"
#include "runtime/trainer/compile/prepare.h"
#include "tests/support/folder.h"

namespace shardrun::gpu_test {

#ifdef EMULATED_NVRTC
inline constexpr bool kEmulated = true;
inline auto find_nvrtc(const std::string& architecture) {
  return compile::Nvrtc::open(EMULATED_NVRTC, architecture);
}
#else
inline constexpr bool kEmulated = false;
inline auto find_nvrtc(const std::string& architecture) {
  return compile::Nvrtc::find(architecture);
}
#endif

inline std::vector<kernels::KernelCode> compiled(const std::vector<kernels::KernelShape>& shapes,
                                                 const std::string& architecture) {
  const tests::Folder folder;
  const auto nvrtc = find_nvrtc(architecture);
  REQUIRE_MESSAGE(nvrtc, nvrtc.error().to_string());
  const auto cache = compile::KernelCache::open(folder / "cache");
  REQUIRE(cache);
  compile::PrepareOptions options;
  options.workers = 2;
  auto done = compile::prepare(*cache, *nvrtc, shapes, options);
  REQUIRE_MESSAGE(done, done.error().to_string());
  return std::move(done->kernels);
}

}  // namespace shardrun::gpu_test

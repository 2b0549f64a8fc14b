// Asks whether cuDNN supports our graphs of attention on a GPU that is not here. Exit code 77 where cuDNN or the
// driver's library is missing: skipped, never passed. What passes has been looked at by cuDNN and has run nowhere.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/trainer/kernels/cuda/cudnn_attention.h"

using namespace shardrun;
using kernels::AttentionShape;
using kernels::cuda::CudnnAttention;
using Pass = CudnnAttention::Pass;

namespace {

// Describes an H200, as cuDNN 9 describes GPUs.
constexpr const char* kH200 =
    R"({"deviceName":"NVIDIA H200","cudaDeviceId":0,"deviceVer":900,"driverVer":13000,
"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,
"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,
"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,
"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,
"memClockRateKHz":3201000,"l2CacheSize":62914560,"totalGlobalMem":150000000000})";

struct Case {
  const char* what;
  AttentionShape shape;
  bool causal, is_supported;
};
constexpr Case kCases[] = {{"0.5B", {16, 2048, 14, 2, 64}, true, true},
                           {"1.5B", {8, 2048, 12, 2, 128}, true, true},
                           {"3B", {8, 2048, 24, 8, 128}, true, true},
                           {"7B", {4, 2048, 32, 32, 128}, true, true},
                           {"8B", {4, 2048, 32, 8, 128}, true, true},
                           {"136M", {8, 512, 12, 12, 64}, true, true},
                           {"an odd length", {2, 1001, 8, 4, 64}, true, true},
                           {"BERT without padding", {8, 512, 16, 16, 64}, false, true},
                           {"heads of 68", {1, 256, 2, 2, 68}, true, false}};

int skip(const std::string& why) {
  std::printf("skipped: %s\n", why.c_str());
  return 77;
}

}  // namespace

int main() {
  // cuDNN wants to see a driver, even if it asks it nothing here: the machine's, or CUDA's stand-in for linking.
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr &&
      ::dlopen(CUDA_STUBS "/libcuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return skip("no libcuda.so.1");
  }
  auto cudnn = CudnnAttention::create_for(kH200, 90);
  if (!cudnn) return skip(cudnn.error().to_string());
  int wrong = 0;
  for (const Case& one : kCases) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const auto supported = (*cudnn)->check(pass, one.shape, one.causal);
      const bool right = supported.has_value() == one.is_supported;
      wrong += right ? 0 : 1;
      std::printf("%-6s %-8s of %s: %s\n", right ? "ok" : "FAILED",
                  pass == Pass::kForward ? "forward" : "backward", one.what,
                  supported ? "supported" : supported.error().to_string().substr(0, 200).c_str());
    }
  }
  // The headers open CUDA's runtime to ask for a device's capability, and throw where there is none.
  ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", "/nowhere/libcudart.so", 1);
  auto asking = CudnnAttention::create_for(kH200, 0);
  const bool refused = asking && !(*asking)->check(Pass::kForward, kCases[0].shape, true);
  std::printf("%-6s without CUDA's runtime: an error, and the process goes on\n", refused ? "ok" : "FAILED");
  return wrong == 0 && refused ? 0 : 1;
}

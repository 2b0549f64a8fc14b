#include "runtime/compile/gpu_kernels.h"

#include <dlfcn.h>

#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "runtime/compile/cubin.h"

namespace shardrun::compile {

using base::Code;
using base::Error;

// The driver's functions by their exported names; those with a version in it are what cuda.h maps the plain name to.
struct GpuKernels::Driver {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*attribute)(int*, int, int);
  int (*retain)(void**, int);
  int (*release)(int);
  int (*set_current)(void*);
  int (*load)(void**, const void*);
  int (*unload)(void*);
  int (*function)(CUfunc_st**, void*, const char*);
  int (*error_name)(int, const char**);
  decltype(kernels::cuda::LoadedKernel::launch) launch;
  decltype(kernels::cuda::LoadedKernel::set_attribute) set_attribute;

  static Result<std::unique_ptr<Driver>> open(const std::string& path) {
    void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      return Error(Code::kNotFound, fmt::format("no driver of an NVIDIA GPU: {}", ::dlerror()));
    auto driver = std::make_unique<Driver>();
    const char* missing = nullptr;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(handle, name));
      if (function == nullptr) missing = name;
    };
    find("cuInit", driver->init);
    find("cuDeviceGet", driver->device_get);
    find("cuDeviceGetAttribute", driver->attribute);
    find("cuDevicePrimaryCtxRetain", driver->retain);
    find("cuDevicePrimaryCtxRelease_v2", driver->release);
    find("cuCtxSetCurrent", driver->set_current);
    find("cuModuleLoadData", driver->load);
    find("cuModuleUnload", driver->unload);
    find("cuModuleGetFunction", driver->function);
    find("cuGetErrorName", driver->error_name);
    find("cuLaunchKernel", driver->launch);
    find("cuFuncSetAttribute", driver->set_attribute);
    if (missing != nullptr)
      return Error(Code::kUnsupported, fmt::format("{} has no {}; update the NVIDIA driver", path, missing));
    RETURN_IF_ERROR(driver->check(driver->init(0), "cuInit"));
    return driver;
  }

  Result<void> check(int status, std::string_view what) const {
    if (status == 0) return {};
    const char* name = nullptr;
    (void)error_name(status, &name);
    return Error(Code::kIo, fmt::format("{}: {}", what, name != nullptr ? name : "unknown error"));
  }

  Result<std::string> architecture(int device) const {
    constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…
    int major = 0, minor = 0;
    RETURN_IF_ERROR(check(attribute(&major, kMajor, device), "cuDeviceGetAttribute"));
    RETURN_IF_ERROR(check(attribute(&minor, kMinor, device), "cuDeviceGetAttribute"));
    return fmt::format("sm_{}", 10 * major + minor);
  }

  Result<int> device_of(int index) const {
    int device = 0;
    if (auto got = check(device_get(&device, index), "cuDeviceGet"); !got)
      return Error(Code::kNotFound, fmt::format("GPU {}: {}", index, got.error().to_string()));
    return device;
  }
};

Result<std::string> gpu_architecture(int device, const std::string& driver) {
  const auto opened = GpuKernels::Driver::open(driver);
  if (!opened) return opened.error();
  const auto found = (*opened)->device_of(device);
  if (!found) return found.error();
  return (*opened)->architecture(*found);
}

Result<std::unique_ptr<GpuKernels>> GpuKernels::load(std::span<const PreparedKernel> kernels, int device,
                                                     const std::string& driver) {
  auto opened = Driver::open(driver);
  if (!opened) return std::move(opened).error();
  std::unique_ptr<GpuKernels> gpu(new GpuKernels());
  gpu->driver_ = std::move(*opened);
  const auto found = gpu->driver_->device_of(device);
  if (!found) return found.error();
  gpu->device_ = *found;
  const auto architecture = gpu->driver_->architecture(gpu->device_);
  if (!architecture) return architecture.error();
  void* context = nullptr;
  RETURN_IF_ERROR(
      gpu->driver_->check(gpu->driver_->retain(&context, gpu->device_), "cuDevicePrimaryCtxRetain"));
  gpu->retained_ = true;
  RETURN_IF_ERROR(gpu->driver_->check(gpu->driver_->set_current(context), "cuCtxSetCurrent"));
  for (const PreparedKernel& kernel : kernels) {
    auto loaded = gpu->load_one(kernel, *architecture);
    if (!loaded) return std::move(loaded).error().context(kernels::name_of(kernel.shape));
  }
  return gpu;
}

Result<void> GpuKernels::load_one(const PreparedKernel& kernel, const std::string& architecture) {
  const auto names = kernels::cuda::entry_names(kernel.shape);
  RETURN_IF_ERROR(check_cubin(kernel.library, architecture, names));
  void* module = nullptr;
  RETURN_IF_ERROR(driver_->check(driver_->load(&module, kernel.library.data()), "cuModuleLoadData"));
  modules_.push_back(module);
  auto loaded = std::make_unique<kernels::cuda::LoadedKernel>();
  loaded->launch = driver_->launch;
  loaded->set_attribute = driver_->set_attribute;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name(names[i]);
    RETURN_IF_ERROR(driver_->check(driver_->function(&loaded->functions[i], module, name.c_str()), name));
  }
  kernels::install(kernel.shape, loaded.get());
  loaded_.push_back(std::move(loaded));
  return {};
}

GpuKernels::~GpuKernels() {
  if (!loaded_.empty()) kernels::forget(kernels::Target::kCuda);
  for (void* const module : modules_) (void)driver_->unload(module);
  if (retained_) (void)driver_->release(device_);
}

}  // namespace shardrun::compile

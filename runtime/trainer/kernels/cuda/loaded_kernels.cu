#include "runtime/trainer/kernels/cuda/loaded_kernels.cuh"

#include <algorithm>
#include <string>

namespace shardrun::kernels::cuda {

using base::Code;
using base::Error;

namespace {

Error load_error(std::string_view what, cudaError_t error) {
  (void)cudaGetLastError();
  const bool foreign = error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidKernelImage ||
                       error == cudaErrorSymbolNotFound;
  return {foreign ? Code::kCorrupt : Code::kIo,
          std::string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error)};
}

}  // namespace

LoadedKernels::~LoadedKernels() {
  for (const Loaded& kernel : loaded_) (void)cudaLibraryUnload(kernel.library);
}

base::Result<void> LoadedKernels::add(const KernelCode& kernel) {
  const auto names = entry_names(kernel.shape);
  Loaded loaded{kernel.shape, block_threads(kernel.shape), nullptr, {}};
  const cudaError_t error =
      cudaLibraryLoadData(&loaded.library, kernel.code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != cudaSuccess) return load_error(names.front(), error);
  loaded_.push_back(loaded);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name(names[i]);  // ends with a zero
    const cudaError_t found = cudaLibraryGetKernel(&loaded_.back().entries[i], loaded.library, name.c_str());
    if (found != cudaSuccess) return load_error(name, found);
  }
  return {};
}

bool LoadedKernels::has(const KernelShape& shape) const {
  return std::any_of(loaded_.begin(), loaded_.end(),
                     [&](const Loaded& kernel) { return kernel.shape == shape; });
}

SpecialisedEntry LoadedKernels::entry(const KernelShape& shape, size_t which, bool fits) {
  if (loaded_.empty()) return {};
  const auto found = std::find_if(loaded_.begin(), loaded_.end(),
                                  [&](const Loaded& kernel) { return fits && kernel.shape == shape; });
  if (found == loaded_.end()) {
    ++missed_;
    return {};
  }
  ++served_;
  return {found->entries[which], found->threads};
}

}  // namespace shardrun::kernels::cuda

#include "runtime/trainer/compile/load.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::compile {
namespace {

using base::Code;
using base::Error;
using base::UniqueFd;

// A file in memory whose content cannot change any more.
Result<UniqueFd> sealed_file(const std::string& name, const std::string& bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return base::errno_error(Code::kIo, "memory for " + name, errno);
  RETURN_IF_ERROR(base::write_all(fd.get(), bytes, name));
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return base::errno_error(Code::kIo, "sealing " + name, errno);
  return fd;
}

}  // namespace

Result<void> load(std::span<const kernels::KernelCode> kernels) {
  for (const kernels::KernelCode& kernel : kernels) {
    const std::string name = kernels::name_of(kernel.shape);
    auto file = sealed_file(name, kernel.code);
    if (!file) return std::move(file).error();
    // The dynamic linker knows libraries by path, so the number stays taken as long as the library does: for good.
    const std::string path = fmt::format("/proc/self/fd/{}", file->release());
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* symbol = library != nullptr ? ::dlsym(library, kernels::kKernelSymbol) : nullptr;
    void* workspace = library != nullptr ? ::dlsym(library, kernels::kWorkspaceSymbol) : nullptr;
    if (symbol == nullptr || workspace == nullptr)
      return Error(Code::kCorrupt, fmt::format("{} is no kernel: {}", name, ::dlerror()));
    *static_cast<kernels::Workspace*>(workspace) = kernels::workspace();
    kernels::install(kernel.shape, symbol);
  }
  return {};
}

}  // namespace shardrun::compile

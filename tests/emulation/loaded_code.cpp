#include "tests/emulation/loaded_code.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/emulation/emulated_code.h"

namespace shardrun::emulation {

std::variant<std::unique_ptr<LoadedCode>, LoadedCode::Refusal> LoadedCode::load(const void* code) {
  const auto object = object_in(static_cast<const char*>(code));
  if (!object) return Refusal::kNoCode;
  if (object->architecture != kArchitecture) return Refusal::kOtherArchitecture;
  const int fd = ::memfd_create("emulated kernel", MFD_CLOEXEC);
  if (fd < 0 ||
      ::write(fd, object->bytes.data(), object->bytes.size()) != static_cast<ssize_t>(object->bytes.size())) {
    return Refusal::kNoCode;
  }
  // The dynamic linker knows libraries by path, and keeps those with unique symbols: the number stays taken.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "emulated GPU: %s\n", ::dlerror());
    return Refusal::kNoCode;
  }
  return std::unique_ptr<LoadedCode>(new LoadedCode(library));
}

void* LoadedCode::find(const std::string& name) const {
  return ::dlsym(library_, name.c_str());
}

}  // namespace shardrun::emulation

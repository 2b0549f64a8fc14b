#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/trust.h"
#include "runtime/module.h"

namespace shardrun {

using base::Code;
using base::Error;

base::Result<const Module*> load_module() {
  std::string program(PATH_MAX, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", program.data(), program.size());
  if (length < 0) return base::errno_error(Code::kIo, "/proc/self/exe", errno);
  program.resize(static_cast<size_t>(length));
  const std::string path = program.substr(0, program.rfind('/')) + "/../lib/shardrun/libshardrun_runtime.so";
  if (auto trusted = base::refuse_if_others_write(path); !trusted && trusted.error().code() == Code::kRefused)
    return std::move(trusted).error();
  // Its libraries are everybody's, as if the program were linked with them: PMIx loads parts of its own that expect it.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    return Error(Code::kUnsupported, fmt::format("error while loading {}", ::dlerror()));
  const auto* const module = static_cast<const Module*>(::dlsym(library, "shardrun_runtime"));
  if (module == nullptr || module->build != ModuleBuild{SHARDRUN_VERSION})
    return Error(Code::kUnsupported,
                 fmt::format("{} is of another build than this program: install both from one", path));
  return module;
}

}  // namespace shardrun

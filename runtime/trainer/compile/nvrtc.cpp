#include "runtime/trainer/compile/nvrtc.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "runtime/base/trust.h"
#include "runtime/trainer/compile/cubin.h"
#include "runtime/trainer/kernels/cuda/specialised.h"

namespace shardrun::compile {
namespace {

using base::Code;
using base::Error;
namespace fs = std::filesystem;

constexpr int kSuccess = 0, kInvalidOption = 5, kDoesNotCompile = 6;  // nvrtcResult
constexpr std::string_view kLibraries[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
using Program = void*;  // nvrtcProgram

// Folders where CUDA's libraries may lie, dearest first.
std::vector<std::string> folders() {
  std::vector<std::string> found;
  const auto add = [&](std::string folder) {
    if (!folder.empty() && folder.front() == '/') found.push_back(std::move(folder));
  };
  const char* const linker = std::getenv("LD_LIBRARY_PATH");
  std::string_view rest = linker != nullptr ? linker : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    add(std::string(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (const char* const name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* const home = std::getenv(name)) add(std::string(home) + "/lib64");
  }
  add("/usr/local/cuda/lib64");
  std::vector<std::string> versions;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/usr/local", ignored)) {
    if (entry.path().filename().string().rfind("cuda-", 0) == 0)
      versions.push_back(entry.path().string() + "/lib64");
  }
  std::sort(versions.rbegin(), versions.rend());
  for (std::string& version : versions) add(std::move(version));
  return found;
}

// Calls `tick` every second from another thread until it goes.
class Ticker {
 public:
  explicit Ticker(const std::function<void()>& tick)
      : thread_([this, &tick] {
          std::unique_lock lock(mutex_);
          while (!done_.wait_for(lock, std::chrono::seconds(1), [this] { return stopped_; })) tick();
        }) {}
  ~Ticker() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    done_.notify_one();
    thread_.join();
  }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool stopped_ = false;
  std::thread thread_;  // last: it reads the others
};

}  // namespace

struct Nvrtc::Library {
  int (*version)(int*, int*);
  int (*create)(Program*, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*destroy)(Program*);
  int (*compile)(Program, int options, const char* const* texts);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  const char* (*error_text)(int);
  int (*architecture_count)(int*);
  int (*architectures)(int*);

  // Of every function; the name of one that is missing.
  const char* resolve(void* handle) {
    const char* missing = nullptr;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(handle, name));
      if (function == nullptr) missing = name;
    };
    find("nvrtcVersion", version);
    find("nvrtcCreateProgram", create);
    find("nvrtcDestroyProgram", destroy);
    find("nvrtcCompileProgram", compile);
    find("nvrtcGetProgramLogSize", log_size);
    find("nvrtcGetProgramLog", log);
    find("nvrtcGetCUBINSize", cubin_size);
    find("nvrtcGetCUBIN", cubin);
    find("nvrtcGetErrorString", error_text);
    find("nvrtcGetNumSupportedArchs", architecture_count);
    find("nvrtcGetSupportedArchs", architectures);
    return missing;
  }

  std::vector<std::string> known_architectures() const {
    int count = 0;
    if (architecture_count(&count) != kSuccess || count <= 0) return {};
    std::vector<int> numbers(static_cast<size_t>(count));
    if (architectures(numbers.data()) != kSuccess) return {};
    std::vector<std::string> names;
    for (const int number : numbers) names.push_back(fmt::format("sm_{}", number));
    return names;
  }

  // What two of its functions, a size and the bytes, give; without the final zero of a text.
  static std::string bytes_of(Program program, int (*size_of)(Program, size_t*),
                              int (*copy)(Program, char*)) {
    size_t size = 0;
    if (size_of(program, &size) != kSuccess) return {};
    std::string bytes(size, '\0');
    if (size == 0 || copy(program, bytes.data()) != kSuccess) return {};
    return bytes;
  }
};

Result<Nvrtc> Nvrtc::find(const std::string& architecture) {
  for (const std::string_view name : kLibraries) {
    for (const std::string& folder : folders()) {
      const std::string path = fmt::format("{}/{}", folder, name);
      if (::access(path.c_str(), R_OK) == 0) return open(path, architecture);
    }
  }
  for (const std::string_view name : kLibraries) {
    auto opened = open(std::string(name), architecture);
    if (opened || opened.error().code() != Code::kNotFound) return opened;
  }
  return Error(
      Code::kNotFound,
      fmt::format(
          "no {} or {} to compile for {}; install CUDA's NVRTC (package cuda-nvrtc of CUDA 12 or 13) on "
          "every node and name its folder in LD_LIBRARY_PATH, or run `shardrun precompile` with this job "
          "where it is installed, such as the head node, or remove [precompile]",
          kLibraries[0], kLibraries[1], architecture));
}

Result<Nvrtc> Nvrtc::open(const std::string& path, const std::string& architecture) {
  if (path.front() == '/') RETURN_IF_ERROR(base::refuse_if_others_write(path));
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Error(Code::kNotFound, fmt::format("NVRTC: {}", ::dlerror()));
  auto library = std::make_shared<Library>();
  if (const char* const missing = library->resolve(handle))
    return Error(Code::kUnsupported,
                 fmt::format("{} has no {}; install NVRTC of CUDA 12 or 13", path, missing));
  int major = 0, minor = 0;
  if (const int status = library->version(&major, &minor); status != kSuccess)
    return Error(Code::kIo, fmt::format("{}: {}", path, library->error_text(status)));
  const std::string version = fmt::format("NVRTC {}.{}", major, minor);
  const std::vector<std::string> known = library->known_architectures();
  if (std::find(known.begin(), known.end(), architecture) == known.end()) {
    return Error(Code::kUnsupported, fmt::format("{} ({}) does not compile for {}; it knows {}", version,
                                                 path, architecture, fmt::join(known, ", ")));
  }
  Dl_info place{};
  struct stat status {};
  if (::dladdr(reinterpret_cast<void*>(library->version), &place) != 0 && place.dli_fname != nullptr)
    (void)::stat(place.dli_fname, &status);
  Nvrtc nvrtc;
  nvrtc.identity_ = fmt::format("{} ({} bytes)", version, status.st_size);
  nvrtc.library_ = std::move(library);
  nvrtc.architecture_ = architecture;
  return nvrtc;
}

Nvrtc Nvrtc::absent(std::string identity, const std::string& architecture, base::Error why) {
  Nvrtc nvrtc;
  nvrtc.identity_ = std::move(identity);
  nvrtc.architecture_ = architecture;
  nvrtc.absence_ = std::move(why);
  return nvrtc;
}

std::vector<std::string> Nvrtc::flags() const {
  const auto flags = kernels::cuda::kernel_flags();
  std::vector<std::string> all(flags.begin(), flags.end());
  all.push_back("--gpu-architecture=" + architecture_);
  return all;
}

Result<Entry> Nvrtc::compile(const Recipe& recipe, const std::string& scratch,
                             const std::function<void()>& tick) const {
  if (absence_) {
    return base::Error(*absence_).context(
        fmt::format("{} is not in {} as {} makes it", kernels::name_of(recipe.shape), scratch, identity_));
  }
  const auto begin = std::chrono::steady_clock::now();
  Entry entry;
  entry.name = kernels::name_of(recipe.shape);
  std::vector<std::string> copies;  // C strings
  std::vector<const char*> names, texts, flags;
  const auto sources = sources_of(recipe.shape.target);
  copies.reserve(2 * sources.size());
  for (const kernels::SourceFile& file : sources) {
    names.push_back(copies.emplace_back(file.path).c_str());
    texts.push_back(copies.emplace_back(file.text).c_str());
  }
  for (const std::string& flag : recipe.flags) flags.push_back(flag.c_str());
  Program program = nullptr;
  int status = library_->create(&program, recipe.translation_unit.c_str(), "kernel.cu",
                                static_cast<int>(names.size()), texts.data(), names.data());
  if (status == kSuccess) {
    const Ticker ticker(tick);
    status = library_->compile(program, static_cast<int>(flags.size()), flags.data());
  }
  if (status == kDoesNotCompile || status == kInvalidOption) {
    entry.kind = Entry::Kind::kFailure;
    entry.payload = Library::bytes_of(program, library_->log_size, library_->log);
    while (!entry.payload.empty() && entry.payload.back() == '\0') entry.payload.pop_back();
  } else if (status == kSuccess) {
    entry.payload = Library::bytes_of(program, library_->cubin_size, library_->cubin);
  }
  if (program != nullptr) (void)library_->destroy(&program);
  if (status != kSuccess && entry.kind != Entry::Kind::kFailure) {
    return Error(Code::kIo, fmt::format("{} while it compiled {}: {}", identity_, entry.name,
                                        library_->error_text(status)));
  }
  entry.milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
  return entry;
}

Result<void> Nvrtc::check(const Recipe& recipe, const std::string& code) const {
  return check_cubin(code, architecture_, kernels::cuda::entry_names(recipe.shape));
}

}  // namespace shardrun::compile

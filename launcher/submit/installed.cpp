#include "launcher/submit/installed.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/command.h"
#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

constexpr std::chrono::seconds kCommandTime{5};
constexpr const char* kNoCluster = "its commands find no cluster: jobs run on this machine only";
constexpr int kOldestNccl = 21701;  // plugins/nccl/libraries.h

// Opens a library that stays loaded: some cannot be unloaded once their constructors have run.
void* open_library(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <typename Function>
Function symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(library, name));
}

Component libfabric() {
  Component found{"libfabric", "", "the comm plugin ofi brings its own; NCCL's plugin needs it"};
  void* library = open_library(
      {"libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1"});
  const auto version = symbol<uint32_t (*)()>(library, "fi_version");
  if (version == nullptr) return found;
  const uint32_t number = version();
  const uint32_t major = number >> 16, minor = number & 0xffff;
  found.version = fmt::format("{}.{}", major, minor);
  const bool old = major < 1 || (major == 1 && minor < 18);
  found.note = old ? "older than 1.18: on EFA it still wants variables set by hand; update it" : "";
  return found;
}

Component ofi_nccl() {
  Component found{"aws-ofi-nccl", "", "NCCL reaches EFA only through it"};
  for (const char* path :
       {"/opt/amazon/ofi-nccl/lib64/libnccl-net.so", "/opt/amazon/ofi-nccl/lib/libnccl-net.so",
        "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", "/opt/aws-ofi-nccl/lib/libnccl-net.so",
        "/opt/aws-ofi-nccl/install/lib/libnccl-net.so"}) {
    const auto bytes = base::read_file(path, /*limit_bytes=*/uint64_t{64} << 20);
    if (!bytes) continue;
    found.version = plugin_version_in(*bytes);
    if (found.version.empty()) found.version = "unknown";
    found.note = path;
    return found;
  }
  return found;
}

// Returns the version of libnccl.so.2 as the loader finds it, e.g. 22809; 0 if there is none.
int nccl_number() {
  const auto version = symbol<int (*)(int*)>(open_library({"libnccl.so.2"}), "ncclGetVersion");
  int number = 0;
  return version != nullptr && version(&number) == 0 ? number : 0;
}

std::string nccl_version_text(int number) {
  const int major = number >= 10000 ? number / 10000 : number / 1000;
  const int minor = number >= 10000 ? number / 100 % 100 : number / 100 % 10;
  return fmt::format("{}.{}.{}", major, minor, number % 100);
}

Component nccl() {
  Component found{"NCCL", "", "PyTorch brings its own; the comm plugin nccl needs libnccl2"};
  const int number = nccl_number();
  if (number == 0) return found;
  found.version = nccl_version_text(number);
  found.note = number < kOldestNccl
                   ? fmt::format("the comm plugin nccl needs {} or later", nccl_version_text(kOldestNccl))
                   : "";
  return found;
}

Component nvidia_driver() {
  Component found{"NVIDIA driver", "", "no NVIDIA GPU can be used here"};
  const auto version = symbol<int (*)(int*)>(open_library({"libcuda.so.1"}), "cuDriverGetVersion");
  int number = 0;
  if (version == nullptr || version(&number) != 0) return found;
  found.version = fmt::format("{}.{}", number / 1000, number % 1000 / 10);
  found.note = "the newest CUDA that it knows";
  return found;
}

Component pmix() {
  Component found{"PMIx", "", "install libpmix2"};
  const auto version = symbol<const char* (*)()>(open_library({"libpmix.so.2"}), "PMIx_Get_version");
  if (version == nullptr) return found;
  // The text is "OpenPMIx 4.2.2 (PMIx Standard: …)".
  std::istringstream words(version());
  std::string word;
  while (words >> word && (word.empty() || word.front() < '0' || word.front() > '9')) {
  }
  const size_t end = word.find_first_not_of("0123456789.");
  found.version = word.substr(0, end);
  found.note = "";
  return found;
}

Component slurm() {
  Component found{"Slurm", "", "jobs run on this machine only"};
  const auto answer = base::run_command({"sinfo", "--version"}, "", kCommandTime);
  if (!answer) {
    if (answer.error().code() != base::Code::kNotFound) found.note = kNoCluster;
    return found;
  }
  found.version = answer->out.substr(answer->out.find(' ') + 1);
  while (!found.version.empty() && found.version.back() == '\n') found.version.pop_back();
  found.note = "";
  return found;
}

Component slurm_pmix() {
  Component found{"srun --mpi", "",
                  "this Slurm has no PMIx plugin: ranks of several nodes cannot meet; build it --with-pmix"};
  const auto answer = base::run_command({"srun", "--mpi=list"}, "", kCommandTime);
  if (!answer) {
    found.note = "srun cannot be run here, or has no cluster";
    return found;
  }
  found.version = pmix_plugins_in(answer->out + answer->err);
  if (!found.version.empty()) found.note = "";
  return found;
}

}  // namespace

std::string plugin_version_in(const std::string& bytes) {
  constexpr std::string_view kMark = "Initializing aws-ofi-nccl ";
  const size_t at = bytes.find(kMark);
  if (at == std::string::npos) return "";
  const size_t begin = at + kMark.size();
  const size_t end = bytes.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz.-", begin);
  return bytes.substr(begin, std::min(end, begin + 32) - begin);
}

std::string pmix_plugins_in(const std::string& list) {
  std::istringstream words(list);
  std::vector<std::string> names;
  for (std::string word; words >> word;) {
    while (!word.empty() && (word.back() == ',' || word.back() == ';')) word.pop_back();
    const bool known = std::find(names.begin(), names.end(), word) != names.end();
    if (word.starts_with("pmix") && !known) names.push_back(word);
  }
  return fmt::format("{}", fmt::join(names, " "));
}

std::vector<Component> find_components() {
  return {libfabric(), ofi_nccl(), nccl(), nvidia_driver(), pmix(), slurm(), slurm_pmix()};
}

std::string missing_for_nccl() {
  const int number = nccl_number();
  if (number == 0)
    return "no libnccl.so.2 is found: install libnccl2, or put its folder into LD_LIBRARY_PATH";
  if (number < kOldestNccl) {
    return fmt::format("libnccl.so.2 is {}, {} or later is needed: update libnccl2",
                       nccl_version_text(number), nccl_version_text(kOldestNccl));
  }
  if (open_library({"libcuda.so.1"}) == nullptr)
    return "no NVIDIA driver (libcuda.so.1) is found: it needs a machine with GPUs";
  return "";
}

}  // namespace shardrun::launcher

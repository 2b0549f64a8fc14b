#include "launcher/submit/node_systems.h"

#include <gnu/libc-version.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;

// Ranks of a node pass bytes through files there; containers are given 64 MiB of it unless they ask for more.
constexpr int64_t kSmallSharedMemory = int64_t{1} << 30;
constexpr const char* kNvidia = "0x10de";
constexpr const char* kAmazon = "0x1d0f";
constexpr std::array kEfa = {"0xefa0", "0xefa1", "0xefa2", "0xefa3"};
// Inferentia 1, Trainium 1, Inferentia 2, Trainium 2.
constexpr std::array kNeuron = {"0x7064", "0x7065", "0x7066", "0x7067", "0x7164", "0x7264", "0x7364"};

std::string first_word(const std::string& path) {
  const auto text = base::read_file(path, /*limit_bytes=*/4096);
  std::istringstream words(text ? *text : "");
  std::string word;
  words >> word;
  return word;
}

void read_distribution(const std::string& path, NodeFacts& facts) {
  const auto text = base::read_file(path, /*limit_bytes=*/65536);
  std::istringstream lines(text ? *text : "");
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    std::string value = line.substr(equals + 1);
    std::erase(value, '"');
    const std::string key = line.substr(0, equals);
    if (key == "PRETTY_NAME") facts.distribution = value;
    if (key != "ID" && key != "ID_LIKE") continue;
    std::istringstream names(value);
    for (std::string name; names >> name;) {
      if (name == "debian" || name == "ubuntu") facts.family = PackageFamily::kDebian;
      if (name == "fedora" || name == "rhel" || name == "centos" || name == "amzn")
        facts.family = PackageFamily::kFedora;
    }
  }
  if (facts.distribution.empty()) facts.distribution = "Linux";
}

void count_devices(const std::string& folder, NodeFacts& facts) {
  std::error_code failure;
  for (const auto& device : fs::directory_iterator(folder, failure)) {
    const std::string at = device.path().string();
    const std::string vendor = first_word(at + "/vendor"), id = first_word(at + "/device");
    const auto is_one_of = [&](const auto& ids) {
      return std::any_of(ids.begin(), ids.end(), [&](const char* one) { return id == one; });
    };
    // Of class 0x03 are displays and 3D controllers, not the bridges and sound that cards bring along.
    if (vendor == kNvidia && first_word(at + "/class").starts_with("0x03")) ++facts.nvidia_gpus;
    if (vendor == kAmazon && is_one_of(kEfa)) ++facts.efa_interfaces;
    if (vendor == kAmazon && is_one_of(kNeuron)) ++facts.neuron_devices;
  }
}

int64_t total_memory(const std::string& meminfo) {
  const auto text = base::read_file(meminfo, /*limit_bytes=*/65536);
  constexpr std::string_view kKey = "MemTotal:";
  const size_t at = text ? text->find(kKey) : std::string::npos;
  if (at == std::string::npos) return 0;
  const int64_t kib = std::strtoll(text->c_str() + at + kKey.size(), nullptr, 10);
  return std::clamp<int64_t>(kib, 0, std::numeric_limits<int64_t>::max() / 1024) * 1024;
}

// What installs a package here; `debian` and `fedora` are its names, empty where none has it.
std::string install(const NodeFacts& facts, const std::string& debian, const std::string& fedora) {
  if (facts.family == PackageFamily::kDebian && !debian.empty()) return "apt-get install " + debian;
  if (facts.family == PackageFamily::kFedora && !fedora.empty()) return "dnf install " + fedora;
  return "install " + (fedora.empty() ? debian : fedora);
}

const Component& component(const NodeFacts& facts, std::string_view name) {
  static const Component none;
  const auto found = std::find_if(facts.components.begin(), facts.components.end(),
                                  [&](const Component& one) { return one.name == name; });
  return found == facts.components.end() ? none : *found;
}

SystemLine slurm_line(const NodeFacts& facts) {
  const auto& [name, version, note] = component(facts, "Slurm");
  if (version.empty() && note.find("find no cluster") != std::string::npos) return {false, name, note};
  if (version.empty()) {
    return {false, "Slurm",
            fmt::format(
                "none: jobs run on this machine alone ({}; where it lies in /opt/slurm/bin, put that into "
                "PATH)",
                install(facts, "slurm-client", "slurm"))};
  }
  const Component& plugins = component(facts, "srun --mpi");
  if (!plugins.version.empty())
    return {false, "Slurm", fmt::format("{}, srun --mpi={}", version, plugins.version)};
  return {true, "Slurm", fmt::format("{}: {}", version, plugins.note)};
}

SystemLine efa_line(const NodeFacts& facts) {
  if (facts.efa_interfaces == 0) return {false, "EFA", "no interface: ranks of several nodes use TCP"};
  const std::string found = fmt::format("{} interfaces", facts.efa_interfaces);
  if (!facts.efa_driver)
    return {true, "EFA", found + " and no driver: run efa_installer.sh -y of aws-efa-installer"};
  const std::string& version = component(facts, "libfabric").version;
  return {false, "EFA",
          fmt::format("{}, driver, libfabric {}", found, version.empty() ? "of shardrun" : version)};
}

SystemLine gpu_line(const NodeFacts& facts) {
  if (facts.nvidia_gpus == 0) return {false, "NVIDIA GPUs", "none"};
  const std::string found = fmt::format("{} on the bus", facts.nvidia_gpus);
  if (!facts.nvidia_driver)
    return {true, "NVIDIA GPUs",
            fmt::format("{} and no driver: {}", found, install(facts, "cuda-drivers", "cuda-drivers"))};
  const std::string& nccl = component(facts, "NCCL").version;
  const bool beside_efa = facts.efa_interfaces > 0 && component(facts, "aws-ofi-nccl").version.empty();
  std::string words = found + ", driver" + (nccl.empty() ? "" : ", NCCL " + nccl);
  if (nccl.empty()) words += "; no NCCL for the comm plugin nccl: " + install(facts, "libnccl2", "libnccl");
  if (beside_efa) words += "; no aws-ofi-nccl, so NCCL does not use EFA: run aws-efa-installer";
  if (!facts.gpu_library)
    words +=
        "; this shardrun's own trainer is not built for GPUs (docs/gpu.md); other programs need nothing of "
        "it";
  return {beside_efa, "NVIDIA GPUs", words};
}

SystemLine neuron_line(const NodeFacts& facts) {
  if (facts.neuron_devices == 0) return {false, "Trainium", "none"};
  const std::string found = fmt::format("{} devices", facts.neuron_devices);
  if (facts.neuron_driver) return {false, "Trainium", found + ", driver"};
  return {true, "Trainium",
          fmt::format("{} and no driver: {}", found, install(facts, "aws-neuronx-dkms", "aws-neuronx-dkms"))};
}

SystemLine image_line(const NodeFacts& facts) {
  if (facts.container_programs.empty()) {
    return {false, "images",
            fmt::format("no program runs them, and jobs with [container] are refused: {}",
                        install(facts, "charliecloud", "apptainer"))};
  }
  return {false, "images", fmt::format("{}", fmt::join(facts.container_programs, ", "))};
}

SystemLine shared_memory_line(const NodeFacts& facts) {
  const double mib = static_cast<double>(facts.shared_memory_bytes) / (1 << 20);
  const std::string found = fmt::format("/dev/shm has {:.0f} MiB", mib);
  const int64_t wanted = std::min(kSmallSharedMemory, facts.memory_bytes / 4);
  if (facts.shared_memory_bytes >= wanted) return {false, "shared memory", found};
  return {true, "shared memory",
          found +
              ", and ranks of a node pass bytes through it: mount -o remount,size=50% /dev/shm, or give the "
              "container more (--shm-size)"};
}

}  // namespace

NodeFacts read_node_facts(const std::string& plugin_directory, const std::string& path,
                          const std::string& root) {
  NodeFacts facts;
  read_distribution(root + "/etc/os-release", facts);
  facts.kernel = first_word(root + "/proc/sys/kernel/osrelease");
  facts.glibc = ::gnu_get_libc_version();
  count_devices(root + "/sys/bus/pci/devices", facts);
  const auto exists = [&](const char* name) { return ::access((root + name).c_str(), F_OK) == 0; };
  facts.nvidia_driver = exists("/proc/driver/nvidia/version");
  facts.neuron_driver = exists("/sys/module/neuron");
  facts.efa_driver = exists("/sys/module/efa") && exists("/dev/infiniband/uverbs0");
  facts.gpu_library = ::access((plugin_directory + "/libshardrun_gpu.so").c_str(), R_OK) == 0;
  struct statvfs shared {};
  if (::statvfs((root + "/dev/shm").c_str(), &shared) == 0)
    facts.shared_memory_bytes = static_cast<int64_t>(shared.f_blocks * shared.f_frsize);
  facts.memory_bytes = total_memory(root + "/proc/meminfo");
  for (const char* program : {"apptainer", "singularity", "ch-run", "enroot"}) {
    std::istringstream folders(path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (folder.empty() || ::access((folder + "/" + program).c_str(), X_OK) != 0) continue;
      facts.container_programs.emplace_back(program);
      break;
    }
  }
  return facts;
}

std::vector<SystemLine> judge_systems(const NodeFacts& facts) {
  return {
      {false, "Linux", fmt::format("{}, kernel {}, glibc {}", facts.distribution, facts.kernel, facts.glibc)},
      slurm_line(facts),
      efa_line(facts),
      gpu_line(facts),
      neuron_line(facts),
      image_line(facts),
      shared_memory_line(facts)};
}

}  // namespace shardrun::launcher

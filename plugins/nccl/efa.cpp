#include "plugins/nccl/efa.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

namespace shardrun::nccl {
namespace {

constexpr const char* kAmazon = "0x1d0f";  // PCI vendor

struct Version {
  int major = 0, minor = 0;
};
Version parsed(const std::string& text) {
  Version version;
  if (std::sscanf(text.c_str(), "%d.%d", &version.major, &version.minor) != 2) return {};
  return version;
}

// Returns the path of the library that the loader finds under `name`; empty if there is none.
std::string loaded_path(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return {};
  link_map* map = nullptr;
  std::string path;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) path = map->l_name;
  return path;  // stays loaded: NCCL loads it next
}

}  // namespace

bool has_efa(const std::string& root) {
  const std::string folder = root + "/sys/class/infiniband";
  const std::unique_ptr<DIR, int (*)(DIR*)> devices(opendir(folder.c_str()), closedir);
  if (!devices) return false;
  while (const dirent* entry = readdir(devices.get())) {
    std::ifstream file(fmt::format("{}/{}/device/vendor", folder, entry->d_name));
    std::string vendor;
    if (file >> vendor && vendor == kAmazon) return true;
  }
  return false;
}

std::string ofi_version_in(std::string_view bytes) {
  constexpr std::string_view kMark = "Initializing aws-ofi-nccl ";
  const size_t at = bytes.find(kMark);
  if (at == std::string_view::npos) return {};
  bytes.remove_prefix(at + kMark.size());
  return std::string(bytes.substr(
      0, std::min(bytes.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz.-"), size_t{32})));
}

OfiPlugin find_ofi_plugin(std::string_view wanted) {
  std::vector<std::string> names = {"libnccl-net.so"};
  if (!wanted.empty()) names = {fmt::format("libnccl-net-{}.so", wanted), std::string(wanted)};
  OfiPlugin found;
  for (const std::string& name : names) {
    if (found.path.empty()) found.path = loaded_path(name);
  }
  if (found.path.empty()) return found;
  std::ostringstream bytes;
  bytes << std::ifstream(found.path, std::ios::binary).rdbuf();
  found.version = ofi_version_in(bytes.str());
  return found;
}

std::string complaint_about(const OfiPlugin& plugin, std::string_view wanted) {
  constexpr const char* kMend =
      "install aws-ofi-nccl 1.7 or later (the EFA installer brings it) where the loader finds it, or set "
      "[communication] "
      "provider = \"socket\" to go without EFA";
  if (plugin.path.empty()) {
    return fmt::format("NCCL reaches EFA only through aws-ofi-nccl, and the loader finds no {}: {}",
                       wanted.empty() ? "libnccl-net.so" : fmt::format("libnccl-net-{}.so", wanted), kMend);
  }
  if (plugin.version.empty()) {
    return fmt::format("NCCL reaches EFA only through aws-ofi-nccl, and {} is something else: {}",
                       plugin.path, kMend);
  }
  const Version version = parsed(plugin.version);
  if (version.major > 1 || (version.major == 1 && version.minor >= 7)) return {};
  return fmt::format("aws-ofi-nccl {} ({}) is too old, 1.7 is needed: {}", plugin.version, plugin.path,
                     kMend);
}

std::string network_name(const std::string& plugin_version) {
  const Version version = parsed(plugin_version);
  return version.major == 1 && version.minor <= 11 ? "AWS Libfabric" : "Libfabric";
}

}  // namespace shardrun::nccl

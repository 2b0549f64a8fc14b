#include "plugins/ofi/device.h"

#include <iterator>
#include <map>
#include <utility>

namespace shardrun::ofi {

size_t choose_device(std::span<const Device> devices, uint32_t local_rank, uint32_t local_world_size) {
  std::map<std::pair<uint64_t, std::string>, size_t> distinct;  // the first listing of each
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!devices[i].on_bus) return 0;
    distinct.emplace(std::pair(devices[i].place, devices[i].name), i);
  }
  if (local_rank >= local_world_size) return 0;
  auto chosen = distinct.begin();
  std::advance(chosen,
               static_cast<std::ptrdiff_t>(uint64_t{local_rank} * distinct.size() / local_world_size));
  return chosen->second;
}

}  // namespace shardrun::ofi

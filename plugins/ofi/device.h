// Which network device of a node a rank uses.
//
// Thread rule: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace shardrun::ofi {

// One way to reach the network, as a provider lists it.
struct Device {
  std::string name;     // of its domain; a device may be listed several times
  bool on_bus = false;  // its place on the PCI bus is known
  uint64_t place = 0;   // domain, bus, device, function; near places are near in the machine
};

// Index into `devices`. The devices of the node in the order of their places are divided over its ranks in the order of
// theirs, and a rank takes the first of its share; several ranks share a device where there are fewer. Ranks are bound to
// cores in the same order (runtime/rank/binding), and accelerators are numbered by their places, so what a rank uses lies
// on one side of the machine. The provider's first choice where places or ranks are unknown. `devices` is not empty.
size_t choose_device(std::span<const Device> devices, uint32_t local_rank, uint32_t local_world_size);

}  // namespace shardrun::ofi

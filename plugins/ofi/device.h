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
  std::string name;     // the name of its domain; a device may be listed several times
  bool on_bus = false;  // its place on the PCI bus is known
  uint64_t place = 0;   // domain, bus, device, function; devices with close values are close in the machine
};

// Returns an index into `devices`. The node's devices, in the order of their places on the PCI bus, are divided over
// the node's ranks in the order of local ranks, and a rank takes the first device of its share; with fewer devices
// than ranks, several ranks share one. Ranks are bound to cores in the same order (runtime/rank/binding), and
// accelerators are numbered by their places, so what a rank uses lies on one side of the machine. Returns the
// provider's first choice where places or ranks are unknown. `devices` is not empty.
size_t choose_device(std::span<const Device> devices, uint32_t local_rank, uint32_t local_world_size);

}  // namespace shardrun::ofi

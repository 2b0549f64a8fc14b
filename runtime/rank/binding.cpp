#include "runtime/rank/binding.h"

#include <hwloc.h>
#include <sched.h>

#include <cerrno>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardrun::rank {
namespace {

// Returns how many CPUs this process may use; 0 if the kernel does not say.
int count_allowed_cpus() {
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 4) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(capacity),
                                                               [](cpu_set_t* p) { CPU_FREE(p); });
    if (::sched_getaffinity(0, CPU_ALLOC_SIZE(capacity), set.get()) == 0) {
      return CPU_COUNT_S(CPU_ALLOC_SIZE(capacity), set.get());
    }
    if (errno != EINVAL) return 0;
  }
  return 0;
}

// Returns the cores of this machine with the hardware threads that this process may use, in hwloc's order.
std::vector<Core> allowed_cores() {
  std::vector<Core> cores;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return cores;
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> owner(topology, hwloc_topology_destroy);
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) != 0) return cores;
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> allowed(hwloc_bitmap_alloc(),
                                                                          hwloc_bitmap_free);
  if (hwloc_get_cpubind(topology, allowed.get(), HWLOC_CPUBIND_PROCESS) != 0) return cores;
  hwloc_obj_t last_core = nullptr;
  for (hwloc_obj_t pu = nullptr; (pu = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, pu)) != nullptr;) {
    if (!hwloc_bitmap_isset(allowed.get(), pu->os_index)) continue;
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
    if (cores.empty() || core == nullptr || core != last_core) cores.emplace_back();
    cores.back().push_back(static_cast<int>(pu->os_index));
    last_core = core;
  }
  return cores;
}

}  // namespace

std::vector<int> slice_cpus(const std::vector<Core>& cores, int local_rank, int local_world_size,
                            int cpus_per_rank) {
  const auto ranks = static_cast<size_t>(local_world_size);
  const auto wanted = static_cast<size_t>(cpus_per_rank);
  const size_t begin = static_cast<size_t>(local_rank) * wanted;
  std::vector<int> cpus;
  if (cores.size() >= ranks * wanted) {
    for (size_t i = begin; i < begin + wanted; ++i) cpus.insert(cpus.end(), cores[i].begin(), cores[i].end());
    return cpus;
  }
  for (const Core& core : cores) cpus.insert(cpus.end(), core.begin(), core.end());
  if (cpus.size() < ranks * wanted) return {};
  return {cpus.begin() + static_cast<std::ptrdiff_t>(begin),
          cpus.begin() + static_cast<std::ptrdiff_t>(begin + wanted)};
}

Binding choose_binding(int local_rank, int local_world_size, int cpus_per_rank) {
  const int allowed = count_allowed_cpus();
  // The scheduler has bound this rank already, or there is nothing to divide.
  if (allowed == 0 || (allowed == cpus_per_rank && local_world_size > 1)) return {};
  if (allowed < local_world_size * cpus_per_rank) {
    return {{},
            fmt::format("ranks are not bound to CPUs: {} ranks with {} each need {}, this node offers {}",
                        local_world_size, cpus_per_rank, local_world_size * cpus_per_rank, allowed)};
  }
  Binding binding;
  binding.cpus = slice_cpus(allowed_cores(), local_rank, local_world_size, cpus_per_rank);
  if (binding.cpus.empty()) {
    binding.note = "ranks are not bound to CPUs: hwloc could not read this machine's topology";
  } else {
    binding.note = fmt::format("bound to CPUs {}", fmt::join(binding.cpus, ","));
  }
  return binding;
}

base::Result<void> bind_process(const std::vector<int>& cpus) {
  int highest = 0;
  for (int cpu : cpus) highest = cpu > highest ? cpu : highest;
  const size_t bytes = CPU_ALLOC_SIZE(highest + 1);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(highest + 1),
                                                             [](cpu_set_t* p) { CPU_FREE(p); });
  CPU_ZERO_S(bytes, set.get());
  for (int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set.get());
  if (::sched_setaffinity(0, bytes, set.get()) != 0) {
    return base::errno_error(base::Code::kIo, "binding to CPUs", errno);
  }
  return {};
}

}  // namespace shardrun::rank

#include "runtime/rank/binding.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/allowance.h"
#include "runtime/base/io.h"

namespace shardrun::rank {
namespace {

constexpr int kMostNumbers = 1 << 14;  // of CPUs or memory nodes: more than any kernel has

// Returns the numbers of a list of the kernel's, "0-3,96-99", at most kMostNumbers and below that; none of a file that is not there.
std::vector<int> read_list(const std::string& path) {
  std::vector<int> numbers;
  const auto text = base::read_file(path, /*limit_bytes=*/1 << 16);
  if (!text) return numbers;
  const char* at = text->data();
  const char* const end = at + text->size();
  for (int first = 0; at < end; ++at) {
    const auto begin = std::from_chars(at, end, first);
    int last = first;
    if (begin.ec != std::errc()) break;
    at = begin.ptr;
    if (at < end && *at == '-') at = std::from_chars(at + 1, end, last).ptr;
    last = std::min(last, kMostNumbers - 1);
    for (int number = first; number <= last && numbers.size() < kMostNumbers; ++number)
      numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

std::vector<Core> cores_of(const std::vector<int>& allowed, const std::string& devices) {
  std::map<int, int> node_of_cpu;
  for (const int node : read_list(devices + "/node/online"))
    for (const int cpu : read_list(fmt::format("{}/node/node{}/cpulist", devices, node)))
      node_of_cpu[cpu] = node;
  std::set<int> left(allowed.begin(), allowed.end());
  std::map<std::pair<int, int>, Core> cores;  // by node and lowest CPU
  while (!left.empty()) {
    const int lowest = *left.begin();
    Core& core = cores[{node_of_cpu[lowest], lowest}];
    const auto threads =
        read_list(fmt::format("{}/cpu/cpu{}/topology/thread_siblings_list", devices, lowest));
    for (const int cpu : threads)
      if (left.erase(cpu) == 1) core.push_back(cpu);
    if (left.erase(lowest) == 1) core.push_back(lowest);  // this kernel does not say
  }
  std::vector<Core> ordered;
  for (auto& [place, core] : cores) ordered.push_back(std::move(core));
  return ordered;
}

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

std::vector<int> share_cpus(const std::vector<int>& cpus, const std::vector<int>& offered, int local_rank,
                            int local_world_size, int cpus_per_rank) {
  const auto wanted = static_cast<size_t>(cpus_per_rank);
  const size_t all = static_cast<size_t>(local_world_size) * wanted;
  if (cpus.empty() || cpus != offered || cpus.size() % wanted != 0 || all % cpus.size() != 0) return {};
  const auto begin =
      cpus.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(local_rank) * wanted % cpus.size());
  return {begin, begin + static_cast<std::ptrdiff_t>(wanted)};
}

Binding choose_binding(int local_rank, int local_world_size, int cpus_per_rank) {
  const std::vector<int> cpus = base::allowed_cpus();
  const int allowed = static_cast<int>(cpus.size());
  // The scheduler has bound this rank already, or there is nothing to divide.
  if (allowed == 0 || (allowed == cpus_per_rank && local_world_size > 1)) return {};
  Binding binding;
  if (allowed < local_world_size * cpus_per_rank) {
    const pid_t parent = ::getppid();  // 0: in a process namespace that it is not in
    const std::vector<int> offered = parent > 0 ? base::allowed_cpus(parent) : std::vector<int>();
    binding.cpus = share_cpus(cpus, offered, local_rank, local_world_size, cpus_per_rank);
    binding.note = fmt::format(
        "{}: {} ranks with {} each need {}, this node offers {}",
        binding.cpus.empty() ? "ranks are not bound to CPUs" : "ranks share CPUs, equally many on each",
        local_world_size, cpus_per_rank, local_world_size * cpus_per_rank, allowed);
    return binding;
  }
  binding.cpus =
      slice_cpus(cores_of(cpus, "/sys/devices/system"), local_rank, local_world_size, cpus_per_rank);
  binding.note = fmt::format("bound to CPUs {}", fmt::join(binding.cpus, ","));
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

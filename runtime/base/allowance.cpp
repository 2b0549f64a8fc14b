#include "runtime/base/allowance.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <memory>

#include "runtime/base/io.h"
#include "runtime/base/text.h"

namespace shardrun::base {
namespace {

constexpr const char* kCgroupRoot = "/sys/fs/cgroup";

bool names(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty())
    if (take_until(controllers, ',') == wanted) return true;
  return false;
}

// Returns the positive number that `text` is; nullopt of "max", -1 and what is none.
std::optional<int64_t> limit_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() && value > 0 ? std::optional(value)
                                                                                 : std::nullopt;
}

std::string first_line(const std::string& path) {
  const auto text = read_file(path, /*limit_bytes=*/4096);
  return text ? text->substr(0, text->find('\n')) : "";
}

std::optional<double> cpus_of(const std::string& folder, bool is_unified) {
  std::string both =
      is_unified ? first_line(folder + "/cpu.max")  // "200000 100000"
                 : first_line(folder + "/cpu.cfs_quota_us") + ' ' + first_line(folder + "/cpu.cfs_period_us");
  std::string_view left(both);
  const auto quota = limit_in(take_until(left, ' ')), period = limit_in(left);
  if (!quota || !period) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<int64_t> memory_of(const std::string& folder, bool is_unified) {
  return limit_in(first_line(folder + (is_unified ? "/memory.max" : "/memory.limit_in_bytes")));
}

// Returns the least of what `limit_of` says of a group and of all above it. Where a container sees the machine's paths and its own
// groups, the last of them, the mount itself, is the container's.
template <typename Limit>
Limit least_above(const CgroupPlace& place, Limit (*limit_of)(const std::string&, bool)) {
  Limit least;
  for (std::string path = place.path;; path.erase(path.rfind('/'))) {
    const Limit here = limit_of(place.mount + path, place.is_unified);
    if (here && (!least || *here < *least)) least = here;
    if (path.rfind('/') == std::string::npos) return least;
  }
}

CgroupLimits own_cgroup_limits() {
  const auto cgroups = read_file("/proc/self/cgroup", /*limit_bytes=*/1 << 16);
  return cgroups ? cgroup_limits(*cgroups, kCgroupRoot) : CgroupLimits{};
}

}  // namespace

std::vector<int> allowed_cpus(pid_t process) {
  std::vector<int> cpus;
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 4) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(capacity),
                                                               [](cpu_set_t* p) { CPU_FREE(p); });
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (::sched_getaffinity(process, bytes, set.get()) == 0) {
      for (int cpu = 0; cpu < capacity; ++cpu)
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set.get())) cpus.push_back(cpu);
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return cpus;
}

int usable_cpus() {
  auto cpus = static_cast<int>(allowed_cpus().size());
  if (cpus == 0) cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (const auto quota = own_cgroup_limits().cpus; quota && *quota < cpus)
    cpus = static_cast<int>(std::ceil(*quota));
  return std::max(1, cpus);
}

std::optional<int64_t> usable_memory_bytes() {
  std::optional<int64_t> bytes = own_cgroup_limits().memory_bytes;
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0) bytes = std::min(bytes.value_or(pages * page_bytes), pages * page_bytes);
  return bytes;
}

std::optional<CgroupPlace> find_cgroup(std::string_view cgroups, std::string_view controller,
                                       const std::string& root) {
  std::optional<CgroupPlace> unified;
  while (!cgroups.empty()) {  // "5:memory:/slurm/job_7" or "0::/system.slice/slurmstepd.scope"
    std::string_view line = take_line(cgroups);
    take_until(line, ':');
    if (line.find(':') == std::string_view::npos) continue;
    const std::string_view controllers = take_until(line, ':');
    const std::string path(line == "/" ? "" : line);
    if (names(controllers, controller)) return CgroupPlace{root + '/' + std::string(controller), path, false};
    if (controllers.empty()) unified = CgroupPlace{root, path, true};
  }
  return unified;
}

CgroupLimits cgroup_limits(std::string_view cgroups, const std::string& root) {
  CgroupLimits limits;
  if (const auto place = find_cgroup(cgroups, "memory", root))
    limits.memory_bytes = least_above(*place, memory_of);
  if (const auto place = find_cgroup(cgroups, "cpu", root)) limits.cpus = least_above(*place, cpus_of);
  return limits;
}

}  // namespace shardrun::base

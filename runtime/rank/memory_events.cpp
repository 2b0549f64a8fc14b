#include "runtime/rank/memory_events.h"

#include <charconv>

#include "runtime/base/allowance.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"

namespace shardrun::rank {
namespace {

std::optional<int64_t> read_kills(const std::string& path) {
  const auto text = base::read_file(path, /*limit_bytes=*/4096);
  return text ? oom_kills(*text) : std::nullopt;
}

}  // namespace

std::string memory_events_path(std::string_view cgroups, const std::string& root) {
  const auto group = base::find_cgroup(cgroups, "memory", root);
  if (!group) return "";
  return group->mount + group->path + (group->is_unified ? "/memory.events" : "/memory.oom_control");
}

std::optional<int64_t> oom_kills(std::string_view text) {
  constexpr std::string_view kName = "oom_kill ";
  while (!text.empty()) {
    const std::string_view line = base::take_line(text);
    if (!line.starts_with(kName)) continue;
    int64_t count = 0;
    const auto [end, failure] = std::from_chars(line.data() + kName.size(), line.data() + line.size(), count);
    if (failure == std::errc() && end == line.data() + line.size()) return count;
  }
  return std::nullopt;
}

MemoryEvents MemoryEvents::watch(const std::string& root) {
  MemoryEvents events;
  const auto cgroups = base::read_file("/proc/self/cgroup", /*limit_bytes=*/1 << 16);
  if (!cgroups) return events;
  events.path_ = memory_events_path(*cgroups, root);
  events.before_ = read_kills(events.path_);
  return events;
}

std::optional<bool> MemoryEvents::has_killed() const {
  const auto now = read_kills(path_);
  if (!before_ || !now) return std::nullopt;
  return *now > *before_;
}

}  // namespace shardrun::rank

#include "runtime/record/launch_phases.h"

#include <ctime>
#include <sstream>

#include <fmt/format.h>

#include "runtime/base/unix_time.h"

namespace shardrun::record {

void LaunchPhases::mark(const char* name) {
  phases.push_back({name, base::unix_now()});
}

LaunchPhases phases_of_this_process() {
  struct timespec used {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  LaunchPhases phases;
  phases.begin =
      base::unix_now() - static_cast<double>(used.tv_sec) - static_cast<double>(used.tv_nsec) * 1e-9;
  return phases;
}

std::string to_line(const LaunchPhases& phases) {
  std::string line = fmt::format("{} {:.0f}", phases.global_rank, phases.begin * 1e6);
  for (const auto& phase : phases.phases) line += fmt::format(" {} {:.0f}", phase.name, phase.end * 1e6);
  return line + "\n";
}

std::optional<LaunchPhases> parse_launch_phases(std::string_view line) {
  std::istringstream words{std::string(line)};
  LaunchPhases read;
  if (!(words >> read.global_rank >> read.begin)) return std::nullopt;
  read.begin *= 1e-6;
  for (LaunchPhases::Phase phase; words >> phase.name;) {
    if (!(words >> phase.end)) return std::nullopt;
    phase.end *= 1e-6;
    read.phases.push_back(phase);
  }
  return read;
}

}  // namespace shardrun::record

#include "launcher/agent/launch_trace.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/record/trace_events.h"

namespace shardrun::launcher {
namespace {

using record::LaunchPhases;
using record::TraceEvent;

void name_track(std::vector<TraceEvent>& events, const char* what, int process, int thread,
                std::string name) {
  events.push_back({.ph = "M", .name = what, .pid = process, .tid = thread, .names = std::move(name)});
}

void add_phases(std::vector<TraceEvent>& events, const LaunchPhases& phases, int process, int thread) {
  double begin = phases.begin;
  for (const LaunchPhases::Phase& phase : phases.phases) {
    events.push_back({.ph = "X",
                      .name = phase.name,
                      .pid = process,
                      .tid = thread,
                      .begin_microseconds = begin * 1e6,
                      .microseconds = (phase.end - begin) * 1e6});
    begin = phase.end;
  }
}

}  // namespace

base::Result<void> LaunchTrace::write(const record::RunDir& run, int attempt,
                                      const std::vector<std::string>& nodes) {
  std::vector<TraceEvent> events;
  name_track(events, "process_name", 0, 0, "shardrun run");
  name_track(events, "thread_name", 0, 0, "conductor");
  add_phases(events, own_, 0, 0);
  for (size_t node = 0; node < nodes.size(); ++node) {
    const int process = static_cast<int>(node) + 1;
    name_track(events, "process_name", process, 0, "node " + nodes[node]);
    const auto text = base::read_file(run.node_phases(attempt, nodes[node]));
    for (std::string_view left = text ? std::string_view(*text) : ""; !left.empty();) {
      const auto phases = record::parse_launch_phases(base::take_line(left));
      if (!phases) continue;
      const int thread = phases->global_rank + 1;  // 0 is the node's own
      name_track(events, "thread_name", process, thread, fmt::format("rank {}", phases->global_rank));
      add_phases(events, *phases, process, thread);
    }
  }
  if (!own_.phases.empty()) own_ = {.begin = own_.phases.back().end};
  RETURN_IF_ERROR(base::make_private_directory(run.profile()));
  return base::write_file_atomically(run.launch_trace(attempt), record::to_trace(events), record::kFileMode);
}

}  // namespace shardrun::launcher

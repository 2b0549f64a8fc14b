// TraceEvent: an event of the format that Perfetto and Chrome read (ui.perfetto.dev).
//
// Thread rule: values and a free function.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace shardrun::record {

struct TraceEvent {
  std::string ph, name;
  int pid = 0;
  std::optional<int> tid = {};
  std::optional<std::string> names = {};  // the process or the thread that the event names
  std::optional<double> begin_microseconds = {}, microseconds = {};
};

// Returns the text of a file.
std::string to_trace(const std::vector<TraceEvent>& events);

}  // namespace shardrun::record

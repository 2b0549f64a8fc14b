#include "runtime/record/trace_events.h"

#include "runtime/base/json_fields.h"

namespace shardrun::record {
namespace {

struct TraceFile {
  const std::vector<TraceEvent>& events;
};

void fields(auto& visit, const TraceFile& file) {
  visit("traceEvents", file.events);
}

}  // namespace

void fields(auto& visit, const TraceEvent& event) {
  visit("ph", event.ph);
  visit("name", event.name);
  visit("pid", event.pid);
  visit.where_known("tid", event.tid);
  if (event.names) visit.object("args", [&](auto& named) { named("name", *event.names); });
  visit.where_known("ts", event.begin_microseconds, base::decimals(3));
  visit.where_known("dur", event.microseconds, base::decimals(3));
}

std::string to_trace(const std::vector<TraceEvent>& events) {
  return base::json_of(TraceFile{events}, base::kJsonReport);
}

}  // namespace shardrun::record

#include "runtime/trainer/train/trace.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/trace_events.h"
#include "runtime/trainer/comm/forwarding_communicator.h"

namespace shardrun::train {
namespace {

// Numbers of a lane's tracks lie this far apart.
constexpr int kTrackStride = 16;

bool tells_later(const kernels::Backend& backend) {
  return backend.kind() == kernels::DeviceKind::kGpu;
}

class TracedCommunicator : public comm::ForwardingCommunicator {
 public:
  TracedCommunicator(comm::Communicator& inner, Trace& trace, Trace::Lane lane, kernels::Backend& backend)
      : ForwardingCommunicator(inner), trace_(trace), lane_(lane), backend_(backend) {}

  Result<void> wait(comm::Pending pending) override {
    const auto found = started_.find(pending.ticket);
    if (found == started_.end()) return inner_.wait(pending);
    const Started started = std::move(found->second);
    started_.erase(found);
    std::string name = fmt::format("wait: {} {}", Trace::name_of(lane_), started.name);
    if (tells_later(backend_)) {
      const int64_t waiting = trace_.begin_later(Trace::Lane::kCompute, std::move(name), backend_);
      auto done = inner_.wait(pending);
      trace_.end_later(waiting, backend_);
      trace_.end_later(started.begin, backend_);
      return done;
    }
    const int64_t begin = Trace::now_nanoseconds();
    auto done = inner_.wait(pending);
    const int64_t end = Trace::now_nanoseconds();
    trace_.add(lane_, started.name, started.begin, end);
    trace_.add(Trace::Lane::kCompute, std::move(name), begin, end);
    return done;
  }

 private:
  struct Started {
    std::string name;
    int64_t begin;  // or what begin_later() gave
  };
  Result<comm::Pending> begin(std::string_view what, size_t bytes, const Start& start) override {
    if (!trace_.is_on()) return start();
    std::string name = bytes > 0 ? fmt::format("{} {} B", what, bytes) : std::string(what);
    const int64_t begin =
        tells_later(backend_) ? trace_.begin_later(lane_, name, backend_) : Trace::now_nanoseconds();
    auto pending = start();
    if (pending) started_[pending->ticket] = {std::move(name), begin};
    return pending;
  }

  Trace& trace_;
  Trace::Lane lane_;
  kernels::Backend& backend_;
  std::map<uint64_t, Started> started_;
};

}  // namespace

const char* Trace::name_of(Lane lane) {
  constexpr const char* kNames[] = {"compute", "gather",  "reduce",  "replica", "tensor",
                                    "world",   "experts", "context", "stages"};
  return kNames[static_cast<int>(lane)];
}

int64_t Trace::now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Trace::Scope::Scope(Trace& trace, std::string name, kernels::Backend& backend)
    : trace_(trace), name_(std::move(name)), backend_(backend) {
  begin_ = tells_later(backend_) ? trace_.begin_later(Lane::kCompute, name_, backend_) : now_nanoseconds();
}

Trace::Scope::~Scope() {
  if (tells_later(backend_)) {
    trace_.end_later(begin_, backend_);
  } else {
    trace_.add(Lane::kCompute, std::move(name_), begin_, now_nanoseconds());
  }
}

int64_t Trace::begin_later(Lane lane, std::string name, kernels::Backend& backend) {
  backend.stamp();
  later_[begun_later_] = {lane, std::move(name), stamps_++, std::nullopt, std::nullopt};
  return begun_later_++;
}

void Trace::end_later(int64_t event, kernels::Backend& backend) {
  backend.stamp();
  later_.at(event).end_stamp = stamps_++;
}

Result<void> Trace::collect(kernels::Backend& backend) {
  ASSIGN_OR_RETURN(const auto times, backend.take_stamps());
  SHARDRUN_CHECK(static_cast<int64_t>(times.size()) == stamps_ - stamps_told_);
  const auto time_of = [&](int64_t stamp) { return times[stamp - stamps_told_]; };
  for (auto at = later_.begin(); at != later_.end();) {
    LaterEvent& event = at->second;
    if (!event.begin) event.begin = time_of(event.begin_stamp);
    if (!event.end_stamp) {
      ++at;
      continue;
    }
    events_.push_back({event.lane, std::move(event.name), *event.begin, time_of(*event.end_stamp)});
    at = later_.erase(at);
  }
  stamps_told_ = stamps_;
  return {};
}

void Trace::add(Lane lane, std::string name, int64_t begin_nanoseconds, int64_t end_nanoseconds) {
  if (on_) events_.push_back({lane, std::move(name), begin_nanoseconds, end_nanoseconds});
}

// Slices of one track must lie inside each other or apart, and collectives that go on at once do neither: what overlaps gets
// further tracks of its lane.
std::vector<int> Trace::tracks_of(const std::vector<Event>& events) {
  std::vector<size_t> order(events.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return events[a].begin < events[b].begin; });
  std::map<Lane, std::vector<int64_t>> ends;  // of each track of a lane: when its last slice ended
  std::vector<int> tracks(events.size());
  for (const size_t i : order) {
    const Event& event = events[i];
    tracks[i] = static_cast<int>(event.lane);
    if (event.lane == Lane::kCompute) continue;  // waits lie inside of what waits
    std::vector<int64_t>& free_from = ends[event.lane];
    const auto found =
        std::find_if(free_from.begin(), free_from.end(), [&](int64_t end) { return end <= event.begin; });
    tracks[i] += kTrackStride * static_cast<int>(found - free_from.begin());
    if (found == free_from.end()) {
      free_from.push_back(event.end);
    } else {
      *found = event.end;
    }
  }
  return tracks;
}

Result<void> Trace::write(const std::string& path, int global_rank, const std::string& node_name) const {
  std::vector<record::TraceEvent> events;
  events.push_back({.ph = "M",
                    .name = "process_name",
                    .pid = global_rank,
                    .names = fmt::format("rank {} on {}", global_rank, node_name)});
  const std::vector<int> tracks = tracks_of(events_);
  std::set<int> named;
  for (int lane = 0; lane <= static_cast<int>(Lane::kWorld); ++lane) named.insert(lane);
  named.insert(tracks.begin(), tracks.end());
  for (const int track : named) {
    const std::string lane = name_of(static_cast<Lane>(track % kTrackStride));
    events.push_back(
        {.ph = "M",
         .name = "thread_name",
         .pid = global_rank,
         .tid = track,
         .names = track < kTrackStride ? lane : fmt::format("{} {}", lane, track / kTrackStride + 1)});
  }
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    events.push_back({.ph = "X",
                      .name = event.name,
                      .pid = global_rank,
                      .tid = tracks[i],
                      .begin_microseconds = static_cast<double>(event.begin) * 1e-3,
                      .microseconds = static_cast<double>(event.end - event.begin) * 1e-3});
  }
  return base::write_file_atomically(path, record::to_trace(events), record::kFileMode);
}

std::unique_ptr<comm::Communicator> traced(comm::Communicator& inner, Trace& trace, Trace::Lane lane,
                                           kernels::Backend& backend) {
  return std::make_unique<TracedCommunicator>(inner, trace, lane, backend);
}

}  // namespace shardrun::train

#include "runtime/train/trace.h"

#include <chrono>
#include <map>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::train {
namespace {

const char* lane_name(Trace::Lane lane) {
  constexpr const char* kNames[] = {"compute", "gather", "reduce", "replica", "tensor", "world"};
  return kNames[static_cast<int>(lane)];
}

class TracedCommunicator : public comm::Communicator {
 public:
  TracedCommunicator(comm::Communicator& inner, Trace& trace, Trace::Lane lane)
      : inner_(inner), trace_(trace), lane_(lane) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<comm::Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return noted(fmt::format("all-gather {} B", all.size()), inner_.all_gather(mine, all));
  }
  Result<comm::Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    return noted(fmt::format("reduce-scatter {} B", full.size_bytes()), inner_.reduce_scatter(full, mine));
  }
  Result<comm::Pending> all_reduce(std::span<float> buffer) override {
    return noted(fmt::format("all-reduce {} B", buffer.size_bytes()), inner_.all_reduce(buffer));
  }
  Result<comm::Pending> all_reduce(std::span<double> buffer) override {
    return noted(fmt::format("all-reduce {} B", buffer.size_bytes()), inner_.all_reduce(buffer));
  }
  Result<comm::Pending> broadcast(std::span<std::byte> buffer, int root) override {
    return noted(fmt::format("broadcast {} B", buffer.size()), inner_.broadcast(buffer, root));
  }
  Result<comm::Pending> barrier() override { return noted("barrier", inner_.barrier()); }

  Result<void> wait(comm::Pending pending) override {
    const int64_t begin = Trace::now_nanoseconds();
    auto done = inner_.wait(pending);
    const auto found = started_.find(pending.ticket);
    if (found == started_.end()) return done;
    const int64_t end = Trace::now_nanoseconds();
    trace_.add(lane_, found->second.name, found->second.begin, end);
    trace_.add(Trace::Lane::kCompute, fmt::format("wait: {} {}", lane_name(lane_), found->second.name), begin,
               end);
    started_.erase(found);
    return done;
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 private:
  struct Started {
    std::string name;
    int64_t begin;
  };
  Result<comm::Pending> noted(std::string name, Result<comm::Pending> pending) {
    if (pending && trace_.is_on()) started_[pending->ticket] = {std::move(name), Trace::now_nanoseconds()};
    return pending;
  }

  comm::Communicator& inner_;
  Trace& trace_;
  Trace::Lane lane_;
  std::map<uint64_t, Started> started_;
};

}  // namespace

int64_t Trace::now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Trace::Scope::Scope(Trace& trace, std::string name, kernels::Backend& backend)
    : trace_(trace), name_(std::move(name)), backend_(backend), begin_(now_nanoseconds()) {
  if (is_later()) backend_.stamp();
}

Trace::Scope::~Scope() {
  if (is_later()) {
    backend_.stamp();
    trace_.later_.push_back(std::move(name_));
  } else {
    trace_.add(Lane::kCompute, std::move(name_), begin_, now_nanoseconds());
  }
}

Result<void> Trace::collect(kernels::Backend& backend) {
  const auto times = backend.take_stamps();
  if (!times) return times.error();
  const std::vector<std::string> names = std::exchange(later_, {});
  SHARDRUN_CHECK(times->size() == 2 * names.size());
  for (size_t i = 0; i < names.size(); ++i)
    events_.push_back({Lane::kCompute, names[i], (*times)[2 * i], (*times)[2 * i + 1]});
  return {};
}

void Trace::add(Lane lane, std::string name, int64_t begin_nanoseconds, int64_t end_nanoseconds) {
  if (on_) events_.push_back({lane, std::move(name), begin_nanoseconds, end_nanoseconds});
}

Result<void> Trace::write(const std::string& path, int global_rank, const std::string& node_name) const {
  std::string text = fmt::format(
      "{{\"traceEvents\": [\n{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"args\": {{\"name\": "
      "\"rank {} on "
      "{}\"}}}}",
      global_rank, global_rank, node_name);
  for (int lane = 0; lane <= static_cast<int>(Lane::kWorld); ++lane) {
    text += fmt::format(
        ",\n{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": "
        "\"{}\"}}}}",
        global_rank, lane, lane_name(static_cast<Lane>(lane)));
  }
  for (const Event& event : events_) {
    text += fmt::format(
        ",\n{{\"ph\": \"X\", \"name\": \"{}\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}}}",
        event.name, global_rank, static_cast<int>(event.lane), static_cast<double>(event.begin) * 1e-3,
        static_cast<double>(event.end - event.begin) * 1e-3);
  }
  return base::write_file_atomically(path, text + "\n]}\n");
}

std::unique_ptr<comm::Communicator> traced(comm::Communicator& inner, Trace& trace, Trace::Lane lane) {
  return std::make_unique<TracedCommunicator>(inner, trace, lane);
}

}  // namespace shardrun::train

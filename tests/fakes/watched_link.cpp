#include "tests/fakes/watched_link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "tests/fakes/counted_memory.h"

namespace shardrun::fakes {
namespace {

using base::DeviceLink;
using base::Result;
using Access = WatchedStreams::Access;
using Stream = WatchedStreams::Stream;

constexpr size_t kLines = 4, kHost = 3;  // the three streams, and what the host does itself
constexpr std::array<const char*, kLines> kNames = {"compute", "out", "in", "host"};
using Clock = std::array<int64_t, kLines>;  // the place of each line up to which it comes later

struct Touched {
  size_t line;
  int64_t place;
  bool writes;
  const std::byte *begin, *end;
};

struct WatchedMark final : DeviceLink::Mark {
  Clock clock{};
};

}  // namespace

struct WatchedStreams::State {
  std::array<Clock, kLines> clocks{};
  std::vector<Touched> touched;
  std::vector<std::string> races;
  std::vector<int64_t> copies_in, copies_out;
  std::atomic<int64_t> pinned{0};
  int copies = 0, failing = -1;

  Clock& clock(Stream stream) { return clocks[static_cast<size_t>(stream)]; }
  static void join(Clock& clock, const Clock& other) {
    for (size_t i = 0; i < kLines; ++i) clock[i] = std::max(clock[i], other[i]);
  }

  void touch(size_t line, Access access, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    join(clocks[line], clocks[kHost]);  // the host put it there after what the host had done
    const Touched one{line, ++clocks[line][line], access == Access::kWrite, bytes.data(),
                      bytes.data() + bytes.size()};
    const std::less<> before;
    for (const Touched& other : touched) {
      const bool meet = before(one.begin, other.end) && before(other.begin, one.end);
      if (!meet || !(one.writes || other.writes) || other.place <= clocks[line][other.line]) continue;
      races.push_back(fmt::format("{} {} what {} {} at place {}", kNames[line],
                                  one.writes ? "writes" : "reads", kNames[other.line],
                                  other.writes ? "writes" : "reads", other.place));
    }
    touched.push_back(one);
  }
};

namespace {

class WatchedLink final : public DeviceLink {
 public:
  explicit WatchedLink(std::shared_ptr<WatchedStreams::State> state) : state_(std::move(state)) {}

  Result<std::unique_ptr<PinnedMemory>> allocate_pinned(size_t bytes) override {
    return std::unique_ptr<PinnedMemory>(std::make_unique<CountedMemory>(state_->pinned, bytes));
  }
  Result<std::unique_ptr<Mark>> make_mark() override {
    return std::unique_ptr<Mark>(std::make_unique<WatchedMark>());
  }
  Result<void> record(Mark& mark, Stream stream) override {
    static_cast<WatchedMark&>(mark).clock = state_->clock(stream);
    return {};
  }
  Result<void> wait(Stream stream, const Mark& mark) override {
    state_->join(state_->clock(stream), static_cast<const WatchedMark&>(mark).clock);
    return {};
  }
  Result<bool> is_done(const Mark& mark) override {
    state_->join(state_->clocks[kHost], static_cast<const WatchedMark&>(mark).clock);
    return true;
  }
  Result<void> copy(Stream stream, void* to, const void* from, size_t bytes) override {
    if (state_->failing >= 0 && state_->copies >= state_->failing)
      return base::Error(base::Code::kIo, "copy: a scripted fault");
    ++state_->copies;
    const auto floats = static_cast<int64_t>(bytes / sizeof(float));
    if (stream != Stream::kCompute)
      (stream == Stream::kIn ? state_->copies_in : state_->copies_out).push_back(floats);
    const auto line = static_cast<size_t>(stream);
    state_->touch(line, Access::kRead, {static_cast<const std::byte*>(from), bytes});
    state_->touch(line, Access::kWrite, {static_cast<const std::byte*>(to), bytes});
    std::memcpy(to, from, bytes);
    return {};
  }
  Result<void> drain(Stream stream) override {
    state_->join(state_->clocks[kHost], state_->clock(stream));
    return {};
  }

 private:
  std::shared_ptr<WatchedStreams::State> state_;
};

}  // namespace

WatchedStreams::WatchedStreams() : state_(std::make_shared<State>()) {}

std::unique_ptr<DeviceLink> WatchedStreams::link() {
  return std::make_unique<WatchedLink>(state_);
}

void WatchedStreams::touch(Stream stream, Access access, std::span<const std::byte> bytes) {
  state_->touch(static_cast<size_t>(stream), access, bytes);
}

void WatchedStreams::touch_from_host(Access access, std::span<const std::byte> bytes) {
  state_->touch(kHost, access, bytes);
}

bool WatchedStreams::comes_after(Stream later, Stream earlier) const {
  const auto index = static_cast<size_t>(earlier);
  return state_->clock(later)[index] == state_->clock(earlier)[index];
}

const std::vector<std::string>& WatchedStreams::races() const {
  return state_->races;
}
const std::vector<int64_t>& WatchedStreams::copies_in() const {
  return state_->copies_in;
}
const std::vector<int64_t>& WatchedStreams::copies_out() const {
  return state_->copies_out;
}
int64_t WatchedStreams::pinned_bytes() const {
  return state_->pinned;
}
void WatchedStreams::fail_copy(int number) {
  state_->failing = number;
}

}  // namespace shardrun::fakes

#include "tests/fakes/scripted_device.h"

#include <atomic>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "tests/fakes/counted_memory.h"
#include "tests/fakes/worker.h"

namespace shardrun::fakes {
namespace {

using base::Code;
using base::DeviceLink;
using base::Error;
using base::Result;

using Point = std::shared_future<void>;

struct ScriptedMark final : DeviceLink::Mark {
  Point point;
};

}  // namespace

struct ScriptedDevice::Shared {
  explicit Shared(const DeviceScript& wanted)
      : script(wanted), compute(std::make_unique<Worker>(wanted.seed, wanted.dawdles[0])) {}
  const DeviceScript script;
  std::atomic<int64_t> pinned{0};
  std::atomic<int> copies{0}, links{0};
  std::unique_ptr<Worker> compute;
};

namespace {

class ScriptedLink final : public DeviceLink {
 public:
  explicit ScriptedLink(std::shared_ptr<ScriptedDevice::Shared> device)
      : device_(std::move(device)),
        number_(static_cast<uint64_t>(++device_->links)),
        out_(device_->script.seed * 31 + number_, device_->script.dawdles[1]),
        in_(device_->script.seed * 37 + number_, device_->script.dawdles[2]) {}

  Result<std::unique_ptr<PinnedMemory>> allocate_pinned(size_t bytes) override {
    return std::unique_ptr<PinnedMemory>(std::make_unique<CountedMemory>(device_->pinned, bytes));
  }
  Result<std::unique_ptr<Mark>> make_mark() override {
    return std::unique_ptr<Mark>(std::make_unique<ScriptedMark>());
  }
  Result<void> record(Mark& mark, Stream stream) override {
    auto reached = std::make_shared<std::promise<void>>();
    static_cast<ScriptedMark&>(mark).point = reached->get_future().share();
    worker(stream).put([reached] { reached->set_value(); });
    return {};
  }
  Result<void> wait(Stream stream, const Mark& mark) override {
    const Point point = static_cast<const ScriptedMark&>(mark).point;
    if (!device_->script.ignores_marks) worker(stream).put([point] { point.wait(); });
    return {};
  }
  Result<bool> is_done(const Mark& mark) override {
    if (device_->script.ignores_marks) return true;
    return static_cast<const ScriptedMark&>(mark).point.wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  }
  Result<void> copy(Stream stream, void* to, const void* from, size_t bytes) override {
    if (stream != Stream::kCompute && device_->script.failing_copy >= 0 &&
        device_->copies++ >= device_->script.failing_copy) {
      return Error(Code::kIo, "copy: a scripted fault");
    }
    worker(stream).put([=] { std::memmove(to, from, bytes); });
    return {};
  }
  Result<void> drain(Stream stream) override {
    const auto reached = std::make_shared<std::promise<void>>();  // outlives set_value, which outlives wait
    worker(stream).put([reached] { reached->set_value(); });
    reached->get_future().wait();
    return {};
  }

 private:
  Worker& worker(Stream stream) {
    return stream == Stream::kCompute ? *device_->compute : stream == Stream::kOut ? out_ : in_;
  }

  std::shared_ptr<ScriptedDevice::Shared> device_;
  const uint64_t number_;
  Worker out_, in_;
};

}  // namespace

ScriptedDevice::ScriptedDevice(const DeviceScript& script) : shared_(std::make_shared<Shared>(script)) {}
ScriptedDevice::~ScriptedDevice() = default;

std::unique_ptr<base::DeviceLink> ScriptedDevice::link() {
  return std::make_unique<ScriptedLink>(shared_);
}

void ScriptedDevice::compute(std::function<void()> work) {
  shared_->compute->put(std::move(work));
}

void ScriptedDevice::synchronize() {
  const auto reached = std::make_shared<std::promise<void>>();
  compute([reached] { reached->set_value(); });
  reached->get_future().wait();
}

int64_t ScriptedDevice::pinned_bytes() const {
  return shared_->pinned;
}

}  // namespace shardrun::fakes

// ScriptedDevice: a device in host memory whose streams are threads that dawdle as scripted, with the promises of
// runtime/base/device_link.h and nothing beyond them. It is for tests of what must hold at any timing.
//
// Each piece of work on a stream waits a random time first, up to the stream's limit: a copy that nothing orders after
// the work it needs is then done before or after it by chance. Faults can be scripted.
//
// Thread rule: thread-safe. Destroy links before the device.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/base/device_link.h"

namespace shardrun::fakes {

struct DeviceScript {
  uint64_t seed = 1;
  // The longest delay of a piece of work on kCompute, kOut and kIn.
  std::array<std::chrono::microseconds, 3> dawdles{};
  bool ignores_marks = false;  // skips waits between streams: to see that a test notices
  // This copy on kOut and kIn, counted from 0, fails, as does every call after it.
  int failing_copy = -1;
};

class ScriptedDevice {
 public:
  explicit ScriptedDevice(const DeviceScript& script);
  ~ScriptedDevice();  // waits for what is on the streams
  ScriptedDevice(const ScriptedDevice&) = delete;
  ScriptedDevice& operator=(const ScriptedDevice&) = delete;

  // Returns a link that has its own kOut and kIn.
  std::unique_ptr<base::DeviceLink> link();
  // Puts `work` on the compute stream.
  void compute(std::function<void()> work);
  // Waits for the compute stream.
  void synchronize();
  // Returns the bytes of pinned memory that links hold now.
  int64_t pinned_bytes() const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace shardrun::fakes

// CountedMemory: stands in for pinned host memory, and is counted as long as it lives.
//
// Thread rule: any thread makes and destroys them. The count outlives them: a link's owner keeps it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/base/device_link.h"

namespace shardrun::fakes {

class CountedMemory final : public base::DeviceLink::PinnedMemory {
 public:
  CountedMemory(std::atomic<int64_t>& held_bytes, size_t bytes)
      : PinnedMemory(new std::byte[bytes], bytes), held_bytes_(held_bytes) {
    held_bytes_ += static_cast<int64_t>(bytes);
  }
  ~CountedMemory() override {
    held_bytes_ -= static_cast<int64_t>(size_);
    delete[] data_;
  }

 private:
  std::atomic<int64_t>& held_bytes_;
};

}  // namespace shardrun::fakes

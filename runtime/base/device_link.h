// DeviceLink: moves bytes between a device and the host beside the device's computations. It has three streams,
// marks in their order, and host memory that the device reads and writes by itself.
//
// Work that is put on one stream is done in the order in which it was put there; streams are independent of each
// other except for marks. kCompute is the one on which the device's ops run; the other two belong to this link
// alone.
// runtime/trainer/kernels/cuda/device_link implements it for GPUs; runtime/trainer/comm/staged_communicator uses it.
//
// Errors: kIo with the driver's words, for this call or for work that was put on a stream earlier.
// Thread rule: thread-safe, but a mark or a piece of memory belongs to one thread at a time. Marks and memory are
// destroyed before the link.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/base/result.h"

namespace shardrun::base {

class DeviceLink {
 public:
  enum class Stream {
    kCompute,  // the device's own
    kOut,      // from the device to the host
    kIn,       // from the host to the device
  };

  // A point in the order of a stream's work, such as a CUDA event.
  class Mark {
   public:
    virtual ~Mark() = default;
  };

  // Page-locked host memory: a copy to or from it does not have to pass through the driver's own.
  class PinnedMemory {
   public:
    virtual ~PinnedMemory() = default;
    std::span<std::byte> bytes() const { return {data_, size_}; }

   protected:
    PinnedMemory(std::byte* data, size_t size) : data_(data), size_(size) {}
    std::byte* const data_;
    const size_t size_;
  };

  virtual ~DeviceLink() = default;

  virtual Result<std::unique_ptr<PinnedMemory>> allocate_pinned(size_t bytes) = 0;
  virtual Result<std::unique_ptr<Mark>> make_mark() = 0;

  // Puts `mark` at the end of what is on `stream`. Returns at once.
  virtual Result<void> record(Mark& mark, Stream stream) = 0;
  // Makes what is put on `stream` from now on come after `mark`, as it was last recorded. Returns at once.
  virtual Result<void> wait(Stream stream, const Mark& mark) = 0;
  // Returns whether everything before `mark` is done. Does not wait.
  virtual Result<bool> is_done(const Mark& mark) = 0;

  // Puts a copy on `stream` and returns at once: kOut copies from device memory to pinned memory, kIn the reverse,
  // and kCompute inside device memory.
  virtual Result<void> copy(Stream stream, void* to, const void* from, size_t bytes) = 0;

  // Waits until all that is on `stream` is done.
  virtual Result<void> drain(Stream stream) = 0;
};

}  // namespace shardrun::base

// DeviceLink: what moves bytes between a device and the host beside its computations: three streams, marks in their
// order, and memory of the host that the device reads and writes by itself.
//
// Work that is put on one stream is done in the order in which it was put there; streams are independent of each
// other but for marks. kCompute is the one that the device's ops run on; the other two belong to this link alone.
// runtime/trainer/kernels/cuda/device_link implements it for GPUs; runtime/trainer/comm/staged_communicator uses it.
//
// Errors: kIo with the driver's words, of this call or of work put there earlier.
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

  // A point in the order of a stream's work.
  class Mark {
   public:
    virtual ~Mark() = default;
  };

  // Memory of the host that a copy does not have to pass through the driver's own.
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

  // `mark` is now the end of what is on `stream`. Returns at once.
  virtual Result<void> record(Mark& mark, Stream stream) = 0;
  // What is put on `stream` from now on comes after `mark`, as it was last recorded. Returns at once.
  virtual Result<void> wait(Stream stream, const Mark& mark) = 0;
  // Whether everything before `mark` is done. Does not wait.
  virtual Result<bool> is_done(const Mark& mark) = 0;

  // Puts a copy on `stream` and returns at once: kOut from the device's memory to pinned memory, kIn the reverse,
  // kCompute inside the device's memory.
  virtual Result<void> copy(Stream stream, void* to, const void* from, size_t bytes) = 0;

  // Waits until all that is on `stream` is done.
  virtual Result<void> drain(Stream stream) = 0;
};

}  // namespace shardrun::base

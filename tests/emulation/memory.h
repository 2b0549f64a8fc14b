// The emulated GPU's memory, which is closed to the host, and the record of which host memory is pinned.
//
// Every allocation ends at a page that nobody can read, is filled with NaN, and is closed while no work of the GPU
// runs. Whoever touches what is closed, freed or behind an end ends the process with a line that says who it was.
// Writes between an allocation's end and the next multiple of 256 are found when it is freed.
//
// Thread rule: under the runtime's lock.
#pragma once

#include <cstddef>
#include <map>

namespace shardrun::emulation {

// Pages whose neighbours cannot be read; they are never given back.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes);
  std::byte* end() const { return end_; }

 private:
  std::byte* end_;
};

class DeviceMemory {
 public:
  // Returns null for more than there is.
  std::byte* allocate(size_t bytes);
  // Returns false if it is not the beginning of an allocation.
  bool release(void* begin);
  // Returns whether [at, at + bytes) lies in one allocation.
  bool has(const void* at, size_t bytes) const;
  size_t free_bytes() const;
  size_t asked_bytes() const;  // sum over all allocations, without rounding

  void open();
  void close();

 private:
  struct Allocation {
    size_t bytes, rounded, mapped;
    std::byte* map;
  };
  void protect(const Allocation& allocation, bool is_open) const;

  std::map<const std::byte*, Allocation> allocations_;
  size_t used_ = 0;
  bool is_open_ = true;
};

class PinnedMemory {
 public:
  bool add(const void* begin, size_t bytes);  // false: part of it is pinned already
  bool remove(const void* begin);
  bool has(const void* at, size_t bytes) const;
  size_t bytes() const;

 private:
  std::map<const std::byte*, size_t> ranges_;
};

// Says who touched what before the process ends by SIGSEGV, or by SIGILL for a word that is not aligned to its size.
void explain_faults();

}  // namespace shardrun::emulation

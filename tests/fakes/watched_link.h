// WatchedStreams: a device in host memory that does everything at once, and finds what its streams leave to chance:
// two accesses to the same bytes, one of them a write, that no mark, stream or wait of the host orders.
//
// Every access has the number of its place on its stream, and every stream knows up to which place of each other
// stream its work comes later. So one run finds a missing order, whatever a real device would have made of it.
//
// Thread rule: one thread.
// Source: vector clocks (Fidge 1988, Mattern 1988), as race detectors use them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/device_link.h"

namespace shardrun::fakes {

class WatchedStreams {
 public:
  using Stream = base::DeviceLink::Stream;
  enum class Access { kRead, kWrite };

  WatchedStreams();

  // Returns a link; any number of them may be made, over the same streams. Links share what is found.
  std::unique_ptr<base::DeviceLink> link();
  // Note work on a stream, or the host's own, that touches these bytes.
  void touch(Stream stream, Access access, std::span<const std::byte> bytes);
  void touch_from_host(Access access, std::span<const std::byte> bytes);
  // Returns whether the last copy on `later` comes after the last work on `earlier`, as far as marks say.
  bool comes_after(Stream later, Stream earlier) const;

  // Returns one line for each two accesses that may happen in either order.
  const std::vector<std::string>& races() const;
  // Return how many floats each copy on kIn and on kOut had, in their order.
  const std::vector<int64_t>& copies_in() const;
  const std::vector<int64_t>& copies_out() const;
  int64_t pinned_bytes() const;
  // Makes this copy on kIn and kOut, counted from 0, fail, and every call after it.
  void fail_copy(int number);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace shardrun::fakes

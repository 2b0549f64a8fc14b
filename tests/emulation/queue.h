// Streams of work that runs when somebody waits for it, in an order that CUDA allows and that is rarely the order
// in which it was put there.
//
// Work of one stream keeps its order, and waits for what it was told to wait for; nothing else ties streams
// together. The order is that of tests/emulation/settings.h: other streams' work comes as late as possible, as
// early as possible, or by chance. So a missing event shows as old values, or as values of later.
//
// Thread rule: under the runtime's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <variant>

namespace shardrun::emulation {

// Stands for all that was put on a stream up to some moment.
struct Marker {
  uint64_t stream = 0, position = 0;
};
using Work = std::function<void()>;

class Queues {
 public:
  uint64_t create();
  void destroy(uint64_t stream);  // after all of its work
  Marker put(uint64_t stream, Work work);
  void put_wait(uint64_t stream, const Marker& marker);

  Marker end_of(uint64_t stream) const;
  bool is_done(const Marker& marker) const;
  void finish(const Marker& marker);
  void finish_all();
  // Runs one piece of work that a query of the marker may see done.
  void step_towards(const Marker& marker);

 private:
  struct Stream {
    std::deque<std::variant<Work, Marker>> items;
    uint64_t done = 0;
  };
  bool can_step(const Stream& stream) const;
  void step(Stream& stream);         // its next item, which is ready
  void step_late(uint64_t stream);   // its next item, after what that one waits for
  void run_others(uint64_t stream);  // as far as they go without it
  bool step_by_chance();

  std::map<uint64_t, Stream> streams_;
  uint64_t next_ = 1;
};

}  // namespace shardrun::emulation

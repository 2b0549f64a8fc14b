// Trace: what a rank did when, in lanes, as a file that Perfetto (ui.perfetto.dev) and chrome://tracing show.
//
//   compute   forward and backward of each block, the optimizer, and where the rank waited for a collective
//   gather, reduce, replica, tensor, world, experts, context   each collective from its start until somebody had to know it was complete
//
// A lane has as many tracks as it has collectives at once, "gather", "gather 2" and so on, for slices of a track that overlap are
// not shown.
//
// So a gather that lies beside the compute of the block before is overlapped, and a wait in the compute lane is what
// was not. Times are of the node's monotonic clock. Of a rank with a GPU they are those at which the GPU's compute stream
// came to these places, which the host has left long before; only the world lane, of the host's memory, has the host's.
//
// Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (complete events, "X").
// Thread rule: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::train {

using base::Result;

class Trace {
 public:
  enum class Lane { kCompute, kGather, kReduce, kReplica, kTensor, kWorld, kExperts, kContext, kStages };
  static const char* name_of(Lane lane);
  static int64_t now_nanoseconds();

  // Nothing is kept while it is off, as it is at first.
  void turn(bool on) { on_ = on; }
  bool is_on() const { return on_; }
  void add(Lane lane, std::string name, int64_t begin_nanoseconds, int64_t end_nanoseconds);
  // One process of the picture a rank. kIo.
  Result<void> write(const std::string& path, int global_rank, const std::string& node_name) const;

  // From its construction to its destruction, or what `backend` was given to do meanwhile, if it does so later: its
  // times come with collect(). Scopes do not overlap.
  class Scope {
   public:
    Scope(Trace& trace, std::string name, kernels::Backend& backend = kernels::cpu_backend());
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    Trace& trace_;
    std::string name_;
    kernels::Backend& backend_;
    int64_t begin_;  // or what begin_later() gave
  };
  // An event of a GPU, between two places of what `backend` is given, all of one trace the same. One that has not ended
  // when the others are collected comes with a later collect().
  int64_t begin_later(Lane lane, std::string name, kernels::Backend& backend);
  void end_later(int64_t event, kernels::Backend& backend);
  // Waits for the backend. Its failure.
  Result<void> collect(kernels::Backend& backend);

 private:
  struct Event {
    Lane lane;
    std::string name;
    int64_t begin, end;
  };
  // Returns the track of each event: the lane's number, or one of its further tracks.
  static std::vector<int> tracks_of(const std::vector<Event>& events);
  // An event whose times the backend knows, by the numbers of its stamps.
  struct LaterEvent {
    Lane lane;
    std::string name;
    int64_t begin_stamp;
    std::optional<int64_t> end_stamp, begin;  // begin: already told
  };
  bool on_ = false;
  std::vector<Event> events_;
  std::map<int64_t, LaterEvent> later_;
  int64_t begun_later_ = 0, stamps_ = 0, stamps_told_ = 0;
};

// `inner` with its operations in a lane of the trace; `backend`: whose memory they are on. All outlive it.
std::unique_ptr<comm::Communicator> traced(comm::Communicator& inner, Trace& trace, Trace::Lane lane,
                                           kernels::Backend& backend = kernels::cpu_backend());

}  // namespace shardrun::train

// Engine: one rank's NCCL communicators, one for each channel and each on a stream of its own, and what happens when
// something breaks.
//
// Communicators are created without blocking, one after the other in the order of the channels, and every call is
// followed by polling for NCCL's asynchronous errors, so nothing here waits without a limit. A thread watches the
// operations that the caller has handed over to its stream. When one exceeds its time limit, or when NCCL reports an
// error, that first failure is final and all communicators are aborted, which ends their kernels; only then do calls
// return the failure.
// Operations on host buffers pass through device memory that the channel keeps.
//
// NCCL does not tell which rank is missing, and ranks of this plugin do not tell each other: a message names every
// rank that may be the one.
// Thread rule: start, wait and abort may be called from any thread (one per channel); open, connect, stop and the
// opening and closing of channels from one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "plugins/common/collective.h"
#include "plugins/nccl/address.h"
#include "plugins/nccl/libraries.h"

namespace shardrun::nccl {

using common::Collective;
using common::Kind;
using common::OpenOptions;
using common::Peer;
using Clock = std::chrono::steady_clock;

struct Block {  // a piece of device memory
  CuPointer at = 0;
  size_t bytes = 0;
};

struct Operation {
  uint64_t ticket = 0;
  const char* name = "";
  CuEvent* done = nullptr;
  bool recorded = false;  // `done` is on the stream behind the operation: NCCL has put all of it there
  bool waited = false;    // the caller's stream waits for it
  Clock::time_point deadline;
  std::vector<Block> blocks;  // for an operation on host buffers: its device copies, `from` being one of them
  Block from;
  void* host_out = nullptr;
};

class Engine;

struct Channel {
  Engine* engine = nullptr;
  uint32_t id = 0, index = 0;  // index is this rank's place in `ranks`
  std::vector<uint32_t> ranks;
  Comm* comm = nullptr;
  CuStream* stream = nullptr;
  CuStream* caller = nullptr;  // the caller's stream, if the channel is on_device
  bool on_device = false, connecting = true, closing = false;
  CuEvent* before = nullptr;  // recorded at the end of the work that was on the caller's stream
  Block token;                // a barrier is an all-reduce of it
  uint64_t posted = 0;
  std::list<Operation> operations;  // those that are not over yet, in order
  std::vector<CuEvent*> spare_events;
  std::vector<Block> spare_blocks;

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
};

class Engine {
 public:
  static Status open(const OpenOptions& options, std::unique_ptr<Engine>* engine);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::vector<std::byte>& address() const { return packed_address_; }
  const std::string& provider() const { return provider_; }
  Status connect(uint32_t global_rank, std::vector<Peer> peers);

  struct DeviceStream {
    CuStream* stream;
  };
  // No ranks stand for the whole world. Without a stream, buffers are in host memory.
  Status open_channel(uint32_t id, std::vector<uint32_t> ranks, Channel** channel,
                      const DeviceStream* caller = nullptr);
  void close_channel(Channel* channel);

  Status start(Channel& channel, const Collective& request, uint64_t* ticket);
  Status wait(Channel& channel, uint64_t ticket, std::chrono::milliseconds timeout);
  void abort(const std::string& reason);

  // Ends the thread. Returns false if NCCL does not come back from an abort: then the engine must not be destroyed.
  bool stop();

 private:
  using Lock = std::unique_lock<std::mutex>;

  Engine() = default;
  Status choose_device(const OpenOptions& options, int devices);
  Status choose_network(const OpenOptions& options);
  Status make_ids(uint32_t channel_count);
  std::string rank_text(uint32_t global_rank) const;
  std::string others_text(const Channel& channel) const;
  std::vector<uint32_t> others(const Channel& channel) const;

  // The mutex is held in all of these.
  Status cuda(const char* call, CuResult result) const;
  Status fail(Status failure);
  Status failed(Lock& lock);
  Status poll(Channel& channel);
  Status until(Lock& lock, Channel& channel, const bool& blocker, Clock::time_point deadline,
               const std::string& what);
  Status make_communicator(Channel& channel);
  Status make_resources(Channel& channel);
  Status enqueue(Channel& channel, const Collective& request, Operation& operation);
  Status stage(Channel& channel, const Collective& request, Operation& operation, const void** in,
               void** out);
  Status take_block(Channel& channel, size_t bytes, Block* block);
  Status take_event(Channel& channel, CuEvent** event);
  Status wait_on_host(Lock& lock, Channel& channel, std::list<Operation>::iterator operation,
                      Clock::time_point deadline, std::chrono::milliseconds timeout);
  Status timed_out(const Channel& channel, const Operation& operation, std::chrono::milliseconds timeout);
  void recycle(Channel& channel, std::list<Operation>::iterator operation);
  void finalize(Lock& lock, Channel& channel);
  void free_resources(Channel& channel);
  void watch();
  void watch_channel(Channel& channel);

  NcclLibrary nccl_{};
  CudaDriver driver_{};
  CuDevice device_ = 0;
  CuContext* context_ = nullptr;
  CuStream* copies_ = nullptr;      // for copies between host buffers and the device
  std::string provider_, network_;  // network_ is the only one that NCCL may take, or empty
  std::chrono::milliseconds timeout_{0};
  RankAddress address_;
  std::vector<std::byte> packed_address_;
  uint32_t global_rank_ = 0;
  std::vector<Peer> peers_;
  std::vector<RankAddress> addresses_;

  std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  std::map<uint32_t, std::unique_ptr<Channel>> channels_;
  std::set<size_t> used_ids_;  // indices of this rank's own ids that are used up
  Status failure_;
  bool aborted_ = false;  // after a failure: NCCL is out of the way
  bool stopping_ = false;
  std::thread aborter_, watcher_;
};

}  // namespace shardrun::nccl

// PluginSession and its communicators: the C++ face of plugins/abi/comm_v1.h.
//
// A session is one loaded plugin with one context. Its communicators share it and may outlive the session object;
// the last one closes the context and unloads the plugin.
//
// Thread rule: open and connect on one thread; each communicator belongs to one thread, different ones may be used
// at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/comm/communicator.h"

struct shardrun_comm_channel;

namespace shardrun::comm {

struct SessionOptions {
  std::string plugin_path;  // absolute
  std::string provider = "auto";
  int local_world_size = 0;  // 0 = unknown
  int local_rank = 0;
  int node_count = 0;
  int device_index = -1;  // the GPU that this rank uses; -1: none is named
  int channel_count = 0;  // all channel ids will be below it; 0 = unknown
  std::chrono::milliseconds timeout{300000};
};

// A rank as the others know it.
struct PeerCard {
  std::string address;  // opaque bytes of its plugin
  std::string node_name;
  uint64_t node_id = 0;
};

class PluginSession {
 public:
  // Loads the plugin and opens its endpoints; talks to nobody. Errors: those of base::Plugin::open, and the
  // plugin's own.
  static Result<PluginSession> open(const SessionOptions& options);
  PluginSession(PluginSession&&) noexcept;
  PluginSession& operator=(PluginSession&&) noexcept;
  ~PluginSession();

  std::string local_address() const;
  std::string build_id() const;
  // Call it once. Starts connections to all ranks; `cards` are in rank order with our own among them.
  Result<void> connect(int global_rank, const std::vector<PeerCard>& cards);
  std::string provider() const;  // what carries the data; after connect
  bool sums_in_rank_order() const;
  bool takes_device_buffers() const;  // then communicator() may be given a stream

  // Opens a communicator over `global_ranks` (ascending, ours among them; empty = the world). `channel` is the same
  // on all its members and used once; members open the channels that they share in the same order.
  Result<std::unique_ptr<Communicator>> communicator(int channel,
                                                     std::span<const uint32_t> global_ranks = {});
  // Does the same for buffers in device memory, in order with the device's `stream` (a cudaStream_t;
  // communicator.h). kUnsupported if the plugin does not take them.
  Result<std::unique_ptr<Communicator>> device_communicator(int channel, void* stream,
                                                            std::span<const uint32_t> global_ranks = {});

 private:
  friend class PluginCommunicator;
  struct Shared;
  explicit PluginSession(std::shared_ptr<Shared> shared);
  std::unique_ptr<Communicator> wrap(shardrun_comm_channel* channel,
                                     std::span<const uint32_t> global_ranks) const;
  std::shared_ptr<Shared> shared_;
};

}  // namespace shardrun::comm

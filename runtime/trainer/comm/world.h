// World: how a rank gets from its environment to connected communicators.
//
// connect_world() does this: PMIx_Init, open the plugin, publish our address (Put, Commit, Fence with data), read
// everyone's, PMIx_Finalize, connect, one barrier. PMIx is finalized before it returns: under Slurm an unfinalized
// client that dies takes the whole step with it, and from here on handling failures is our task.
// The first barrier and every later wait end after `timeout`. A world of one rank meets nobody and needs no PMIx
// server. The plugin's endpoints live as long as the last communicator; destroying a communicator with operations
// in flight ends the others' waits with kPeerLost.
// It works the same under our local launcher, srun --mpi=pmix and mpirun: a rank cannot tell which one started it.
//
// Thread rule: call it once, from one thread, before others exist.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/device_link.h"
#include "runtime/base/result.h"
#include "runtime/trainer/comm/plugin_communicator.h"

namespace shardrun::comm {

// The GPU of a rank, for groups whose buffers lie in its memory.
struct DeviceUse {
  int index = 0;           // as CUDA counts them
  void* stream = nullptr;  // its compute stream, a cudaStream_t
  // One for each group in WorldOptions::groups: the bytes of the largest part of one rank that lies on the device, or
  // -1 if the group's buffers are in host memory.
  std::vector<int64_t> largest_parts;
  // Is called for plugins that know only host memory; their collectives are staged (staged_communicator.h).
  std::function<Result<std::unique_ptr<base::DeviceLink>>()> make_link;
};

struct WorldOptions {
  std::string plugin_path;        // absolute path of the shared object, e.g. …/libshardrun_comm_ofi.so
  std::string provider = "auto";  // auto: shm inside a node, tcp (or efa) between nodes; or one by name
  std::chrono::milliseconds timeout{300000};
  // A rank whose plugin does not open tells the others, and they go on without it; otherwise nobody waits for
  // anybody.
  bool leave_out_unable = false;
  // Each makes one communicator: the global ranks of a group, ascending and with this rank's; empty: the whole
  // world.
  std::vector<std::vector<uint32_t>> groups = {{}};
  std::optional<DeviceUse> device;
  int channel_count = 0;  // channels that a meeting will open, 0 if unknown; connect_world() knows it
};

struct World {
  std::vector<std::unique_ptr<Communicator>> communicators;  // one for each of `groups`
  std::string plugin_build_id;                               // for the run record
  std::string provider;                                      // what was used, e.g. "shm+tcp"
  bool sums_in_rank_order = true;
};

// The first half of connect_world(): everyone has met and begun to connect; there is no communicator yet.
struct Meeting {
  PluginSession session;
  // Global ranks that take part, ascending: the ranks of the session's groups are indices.
  std::vector<int> members;
  int rank = 0;  // ours, in members

  // Turns an error of the session or of one of its communicators into one about global ranks instead of indices.
  base::Error in_world(base::Error error) const;
};
// Does not look at the groups of `options`. Errors are those below; those of the plugin are returned after the
// others know.
Result<Meeting> meet(const WorldOptions& options);

// Errors: kNotFound (plugin file), kUnsupported (plugin refused: file, expected, found), kTimeout and kPeerLost
// naming ranks, kIo with PMIx's or libfabric's words. Nothing stays open after an error.
Result<World> connect_world(const WorldOptions& options);

}  // namespace shardrun::comm

// Endpoint: one libfabric reliable-datagram endpoint with its completion queue. No other pair of files talks to
// libfabric.
//
// The providers "tcp" (tcp;ofi_rxm in libfabric 1.17, native tcp later) and "shm" come from the libfabric that is
// linked into this plugin, where a static one exists; any other ("efa", "verbs") comes from the system's
// libfabric.so.1, which is opened on demand (libfabric_static.c says why). shm has no file descriptor to sleep on, so
// its peers ring a bell: must_ring() tells the engine to do so.
//
// Thread rule: open and connect_peer on the opening thread, everything later on the engine's thread.
#pragma once

#include <rdma/fabric.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "plugins/ofi/status.h"

struct fid_fabric;
struct fid_domain;
struct fid_av;
struct fid_cq;
struct fid_ep;
struct fid_mr;

namespace shardrun::ofi {

// One message in flight. Its address is the libfabric context, so it must not move until its completion has come or
// the endpoint is closed.
struct Request {
  fi_context2 context;
  void* owner = nullptr;        // what the engine hands the completion to
  uint32_t flow = 0;            // the owner's number of the stream that this message belongs to
  uint32_t segment = 0;         // its place in that stream
  uint32_t global_rank = 0;     // the other side
  uint64_t expected_bytes = 0;  // for a receive
  bool is_send = false;
  fid_mr* registration = nullptr;  // owned by the endpoint
};

struct Completion {
  Request* request = nullptr;
  uint64_t bytes = 0;      // received
  int error = 0;           // FI_E* > 0, or 0
  std::string error_text;  // libfabric's words
};

enum class Post { kAccepted, kTryAgain, kFailed };

class Endpoint {
 public:
  struct Place {
    std::string provider;  // as above
    std::string source;    // numeric address of the interface, or a unique name for shm
    // They choose among the devices of other providers (device.h).
    uint32_t local_rank = 0, local_world_size = 0;
  };
  static Status open(const Place& place, std::unique_ptr<Endpoint>* endpoint);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const std::string& provider() const { return provider_; }
  std::span<const std::byte> address() const { return address_; }
  int wait_fd() const { return wait_fd_; }  // -1 if there is none

  Status connect_peer(uint32_t global_rank, std::span<const std::byte> address, uint32_t world_size);

  // Leaves an endpoint open to the end of the process, for use after a failure: closing connections on which messages
  // are still under way crashes libfabric 1.17 (rxm_close_conn flushes a queue whose entries belong to connections
  // that it freed).
  static void abandon(std::unique_ptr<Endpoint> endpoint);

  // Tagged messages; `bytes` may not be 0. kFailed: `error` has the FI_E* code.
  Post send(const void* data, uint64_t bytes, uint64_t tag, Request* request, int* error);
  // Accepts messages with exactly this tag, in the order in which they were sent. Over tcp, with `from_peer`, they must
  // come over a connection of the address that request->global_rank was inserted with. Masks are not offered: libfabric
  // 1.17's shm forgets to clear the mask of a receive that it uses again, and then gives messages to the wrong
  // receive.
  Post receive(void* data, uint64_t bytes, uint64_t tag, bool from_peer, Request* request, int* error);

  // Makes progress and appends what completed. IO if the queue itself failed.
  Status poll(std::vector<Completion>* completions);
  // Returns whether it is safe to sleep on wait_fd(): nothing is pending inside the library. Then nothing will be until has_news()
  // is called, because the descriptor has some, or something is posted; so long poll() and this one look at nothing.
  bool may_sleep();
  void has_news() { is_quiet_ = false; }
  static const char* describe(int error);
  // Returns whether the error says that the sender's message was longer than the receive.
  static bool is_truncation(int error);

 private:
  struct Library;
  Endpoint() = default;
  Status open_objects(const Library& library, fi_info* info);
  Status read_address();
  Completion read_error();
  int register_memory(const void* data, uint64_t bytes, uint64_t access, Request* request);
  void unregister_memory(Request* request);
  Post posted(int64_t code, Request* request, int* error);

  std::string provider_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  int wait_fd_ = -1;
  bool registers_ = false;  // the provider wants the memory of messages registered, as efa does
  bool directed_ = false;   // receives can name their sender
  bool is_quiet_ = false;
  uint64_t next_key_ = 1;
  std::set<fid_mr*> registrations_;  // for messages in flight
  std::vector<std::byte> address_;
  std::vector<uint64_t> peer_address_;  // by global rank
};

}  // namespace shardrun::ofi

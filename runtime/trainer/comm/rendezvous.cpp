#include "runtime/trainer/comm/rendezvous.h"

#include <fmt/format.h>
#include <pmix.h>

#include <condition_variable>
#include <mutex>

#include "runtime/trainer/comm/phase_deadline.h"

namespace shardrun::comm {
namespace {

using base::Code;
using base::Error;

constexpr char kKey[] = "shardrun.comm.v1";

Error pmix_error(const char* what, pmix_status_t status) {
  return Error(Code::kIo, fmt::format("{}: {}", what, PMIx_Error_string(status)));
}

// PMIx's thread fills it in, perhaps after the waiting thread has given up, so both share it.
struct FenceState {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  pmix_status_t status = PMIX_SUCCESS;
};

void fence_done(pmix_status_t status, void* context) {
  const std::unique_ptr<std::shared_ptr<FenceState>> state(
      static_cast<std::shared_ptr<FenceState>*>(context));
  std::lock_guard lock((*state)->mutex);
  (*state)->done = true;
  (*state)->status = status;
  (*state)->changed.notify_all();
}

}  // namespace

struct Rendezvous::Client {
  pmix_proc_t self{};
  bool open = false;
  std::chrono::milliseconds timeout{};
};

Rendezvous::Rendezvous(std::unique_ptr<Client> client) : client_(std::move(client)) {}
Rendezvous::Rendezvous(Rendezvous&&) noexcept = default;
Rendezvous& Rendezvous::operator=(Rendezvous&&) noexcept = default;
Rendezvous::~Rendezvous() {
  (void)finish();
}

Result<Rendezvous> Rendezvous::begin(std::chrono::milliseconds timeout) {
  auto client = std::make_unique<Client>();
  client->timeout = timeout;
  const PhaseDeadline deadline("PMIx_Init, which asks the launcher for this rank's place,", timeout);
  const pmix_status_t status = PMIx_Init(&client->self, nullptr, 0);
  if (status != PMIX_SUCCESS) {
    return pmix_error("PMIx_Init (was this rank started by shardrun, srun --mpi=pmix or mpirun?)", status);
  }
  client->open = true;
  return Rendezvous(std::move(client));
}

int Rendezvous::global_rank() const {
  return static_cast<int>(client_->self.rank);
}

Result<std::vector<std::string>> Rendezvous::exchange(const std::string& mine, int world_size,
                                                      std::chrono::milliseconds timeout) {
  pmix_value_t value;
  PMIX_VALUE_CONSTRUCT(&value);
  value.type = PMIX_BYTE_OBJECT;
  value.data.bo.bytes = const_cast<char*>(mine.data());
  value.data.bo.size = mine.size();
  pmix_status_t status = PMIx_Put(PMIX_GLOBAL, kKey, &value);
  if (status == PMIX_SUCCESS) status = PMIx_Commit();
  if (status != PMIX_SUCCESS) return pmix_error("publishing our address (PMIx_Put, PMIx_Commit)", status);

  const auto state = std::make_shared<FenceState>();
  pmix_info_t collect;
  PMIX_INFO_CONSTRUCT(&collect);
  const bool yes = true;
  PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
  auto* context = new std::shared_ptr<FenceState>(state);
  status = PMIx_Fence_nb(nullptr, 0, &collect, 1, fence_done, context);
  if (status != PMIX_SUCCESS) {
    delete context;
    if (status != PMIX_OPERATION_SUCCEEDED) return pmix_error("PMIx_Fence", status);
  } else {
    std::unique_lock lock(state->mutex);
    if (!state->changed.wait_for(lock, timeout, [&] { return state->done; })) {
      return Error(
          Code::kTimeout,
          fmt::format("not all of {} ranks came to the rendezvous within {:.1f} s: one did not start, or the "
                      "PMIx servers of two nodes cannot reach each other, as behind a firewall",
                      world_size, timeout.count() / 1000.0));
    }
    if (state->status != PMIX_SUCCESS) return pmix_error("PMIx_Fence", state->status);
  }

  const PhaseDeadline deadline("PMIx_Get, which asks the launcher for the other ranks' addresses,", timeout);
  std::vector<std::string> all(world_size);
  pmix_proc_t peer = client_->self;
  for (int rank = 0; rank < world_size; ++rank) {
    if (rank == global_rank()) {
      all[rank] = mine;
      continue;
    }
    peer.rank = static_cast<pmix_rank_t>(rank);
    pmix_value_t* found = nullptr;
    status = PMIx_Get(&peer, kKey, nullptr, 0, &found);
    if (status != PMIX_SUCCESS)
      return pmix_error(fmt::format("PMIx_Get of rank {}'s address", rank).c_str(), status).about({rank});
    const bool is_bytes = found->type == PMIX_BYTE_OBJECT;
    if (is_bytes) all[rank].assign(found->data.bo.bytes, found->data.bo.size);
    PMIX_VALUE_RELEASE(found);
    if (!is_bytes)
      return Error(Code::kCorrupt, fmt::format("rank {}'s address is not of bytes", rank)).about({rank});
  }
  return all;
}

Result<void> Rendezvous::finish() {
  if (!client_ || !client_->open) return {};
  client_->open = false;
  const PhaseDeadline deadline("PMIx_Finalize, which takes leave of the launcher,", client_->timeout);
  const pmix_status_t status = PMIx_Finalize(nullptr, 0);
  if (status != PMIX_SUCCESS) return pmix_error("PMIx_Finalize", status);
  return {};
}

}  // namespace shardrun::comm

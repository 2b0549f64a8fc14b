// Rendezvous: one exchange of a small byte string among all ranks through PMIx. No other pair of files includes
// PMIx's header (the local scheduler's server aside).
//
// Works with every PMIx server: our local scheduler's, slurmstepd's, mpirun's. Uses Put, Commit, one Fence that
// collects data, and Get, and nothing that some server lacks. finish() must come before the job's real work: under
// Slurm a client that dies without PMIx_Finalize takes the whole step with it.
//
// Thread rule: one thread; PMIx runs a thread of its own until finish().
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::comm {

using base::Result;

class Rendezvous {
 public:
  // Errors: kIo with PMIx's words, e.g. when no server started this process. A call of PMIx that has no deadline of its own and
  // does not return within `timeout` ends the process (phase_deadline.h), here and below.
  static Result<Rendezvous> begin(std::chrono::milliseconds timeout);
  Rendezvous(Rendezvous&&) noexcept;
  Rendezvous& operator=(Rendezvous&&) noexcept;
  ~Rendezvous();  // finishes

  int global_rank() const;

  // Returns everyone's `mine` in rank order. kTimeout if not all of `world_size` ranks came in time.
  Result<std::vector<std::string>> exchange(const std::string& mine, int world_size,
                                            std::chrono::milliseconds timeout);

  Result<void> finish();

 private:
  struct Client;
  explicit Rendezvous(std::unique_ptr<Client> client);
  std::unique_ptr<Client> client_;
};

}  // namespace shardrun::comm

// PmixServer: the PMIx server of the local scheduler, and the only code that includes PMIx's server headers.
//
// It carries what PMIx clients on one machine need: the job's facts, fences with data, and abort. Publish, spawn,
// connect and groups are refused, as Slurm's server refuses them (docs/decisions/0003-pmix-is-the-one-bootstrap.md).
//
// libpmix 4.2.2 can be started once in a process (its listener is not made again after a finalize), so there is at
// most one PmixServer in a process's life and it serves any number of jobs, one namespace each.
// Where a rank ends while it connects, libpmix 4.2.2 releases what it knows of the rank once too often, and whatever
// looks at that again waits for ever on a lock that is none. Nobody tells us of such a rank; it is one of those that never
// connected. A job with any of these is not taken out of the library again, nor is the library then finalized.
//
// Thread rule: one thread calls; libpmix's own two threads call back and touch only the mailbox.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

struct PmixJob {
  // Unique on this machine while the job runs. Whoever knows it can join the job and end it, for libpmix takes a client's
  // word for who its user is: it must be unguessable, and stand only where this user alone can read.
  std::string name_space;
  std::string host_name;
  std::string session_directory;  // where MPI libraries may put their files; exists
  int world_size = 1;
};

struct PmixAbort {
  int global_rank = -1;
  int status = 0;
  std::string message;
};

class PmixServer {
 public:
  // `directory` holds the server's own files; it exists and is private to this user. kRefused on the second call in
  // a process; kIo with PMIx's words otherwise.
  static base::Result<std::unique_ptr<PmixServer>> start(const std::string& directory);
  ~PmixServer();
  PmixServer(const PmixServer&) = delete;
  PmixServer& operator=(const PmixServer&) = delete;

  // Makes the job known and lets its ranks connect.
  base::Result<void> add_job(const PmixJob& job);
  // Forgets the job, as far as the library can be trusted with that (see above).
  void remove_job(const PmixJob& job);

  // Returns "NAME=value" for each variable that this rank needs to find the server.
  base::Result<std::vector<std::string>> client_environment(const PmixJob& job, int global_rank);

  // Returns a descriptor that becomes readable when a rank called PMIx_Abort or MPI_Abort.
  int abort_fd() const;
  std::optional<PmixAbort> take_abort();

 private:
  PmixServer() = default;

  bool left_any_ = false;  // jobs that the library still has
};

}  // namespace shardrun::launcher

// A scheduler that starts all ranks with one Open MPI `mpirun`: for an MPIJob of Kubernetes, and for any machines
// that ssh reaches. mpirun's own PMIx server carries the ranks' bootstrap, as srun's does.
//
// Nodes are those of Open MPI's default host file (OMPI_MCA_orte_default_hostfile, which the MPI operator sets), or
// this machine. Ranks are mapped node by node, plan.ranks_per_node on each.
//   failing   mpirun ends the job when one rank ends badly: SIGTERM to the others, SIGKILL a second later
//   stopping  the trainer gets SIGUSR1, which mpirun passes on, and stop_grace to write a checkpoint. A command gets
//             SIGTERM and one second: mpirun passes no SIGTERM on without ending the job itself, and it always waits
//             for the whole of its patience, so that a long one would hold up every failure, too.
// Source: mpirun(1) of Open MPI 4.1. Thread rule: as for scheduler.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/schedule/scheduler.h"

namespace shardrun::launcher {

std::unique_ptr<Scheduler> make_mpirun_scheduler();

// Returns the hosts of a host file, each once, in order: the first word of each line that is not a comment.
std::vector<std::string> parse_host_file(std::string_view text);

}  // namespace shardrun::launcher

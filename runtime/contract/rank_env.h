// RankEnv: who a rank is. This is the one place that reads and writes the environment variables of ranks.
//
// Variables read: under our local scheduler the SHARDRUN_* names below, under srun the SLURM_* names, under mpirun
// the OMPI_COMM_WORLD_* names. A rank cannot tell which, and need not: it gets this struct.
// Variables written: child_environment() gives a program torchrun's names, NODE_RANK and SHARDRUN_*.
//
// The launcher sets these variables for every rank, under all schedulers:
//   SHARDRUN_RUN_DIR       absolute run directory, with job.toml and plan.json
//   SHARDRUN_ATTEMPT       0 for the first start, then 1, 2, …
//   SHARDRUN_MASTER_ADDR   host name or address of node 0
//   SHARDRUN_MASTER_PORT   outside the ephemeral range, free when checked
//   SHARDRUN_LAUNCH_TIME   Unix time in seconds, with fraction, when `shardrun run` began
// and the local scheduler adds these for each rank:
//   SHARDRUN_GLOBAL_RANK SHARDRUN_LOCAL_RANK SHARDRUN_NODE_INDEX SHARDRUN_NODE_COUNT
//   SHARDRUN_WORLD_SIZE SHARDRUN_LOCAL_WORLD_SIZE SHARDRUN_NODE_NAME
//
// Thread rule: the environment is read once at start, before there is any thread; afterwards these are values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

using base::Result;

// The variable that names the job.toml for which the SPANK plugin takes the tasks of a step, as Slurm hands it down
// inside an allocation; empty: none. The conductor tells the ranks of `shardrun run` more exactly.
inline constexpr const char* kSlurmJobSpecVariable = "SLURM_SPANK__SLURM_SPANK_OPTION_shardrun_shardrun";

// The variable by which a scheduler says that it would take a rank that stopped as asked for one that failed, and kill those that
// still save: its supervisor ends with 0 then, once the rank's exit file says how it was.
inline constexpr const char* kStoppedIsDoneVariable = "SHARDRUN_STOPPED_IS_DONE";

// The variable by which a scheduler says whose variables tell a rank who it is: "shardrun", "srun" or "mpirun". Where that is not
// said they are the first of these that are set; a rank of mpirun may have inherited those of an srun around it.
inline constexpr const char* kRanksByVariable = "SHARDRUN_RANKS_BY";

struct RankEnv {
  int global_rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_index = 0;
  int node_count = 1;
  std::string node_name;
  std::string master_addr;
  uint16_t master_port = 0;
  std::string run_directory;
  int attempt = 0;
  double launch_time = 0.0;  // Unix seconds; 0 if unknown
};

// Looks a variable up; nullopt if it is unset. Production code passes the process environment.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;
EnvironmentLookup process_environment();
// Returns the name of this machine; "localhost" where it has none.
std::string host_name();

// Errors: kInvalid, which names the variable that is missing or not a number in range, and who should have set it.
Result<RankEnv> read_rank_env(const EnvironmentLookup& lookup);
// Reads only the place of a task of srun: neither run directory nor attempt, and nobody to meet yet.
Result<RankEnv> read_slurm_place(const EnvironmentLookup& lookup);

// Returns every variable that a command program gets on top of its inherited environment: torchrun's (RANK,
// LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, ROLE_NAME, ROLE_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, TORCHELASTIC_RUN_ID,
// TORCHELASTIC_USE_AGENT_STORE=False, TORCH_NCCL_ASYNC_ERROR_HANDLING=1), NODE_RANK, OMP_NUM_THREADS (if unset),
// SHARDRUN_GRADIENT_ACCUMULATION, SHARDRUN_MICRO_BATCH, SHARDRUN_GLOBAL_BATCH, GRAD_ACCUM_USTEPS; and
// SHARDRUN_RANK_BATCH and SHARDRUN_LAST_MICRO_BATCH, which are this rank's sequences of a step and of its last
// micro-step. The caller applies [environment] of the spec last (resolve_environment).
std::map<std::string, std::string> child_environment(const RankEnv& env, const record::LaunchPlan& plan,
                                                     const EnvironmentLookup& inherited);

// Returns the same with [environment] of the spec over it, whose references are resolved on this node: from_env
// looks into what child_environment() sets and then into `inherited`. kNotFound names the key and its missing
// source, never a value.
Result<std::map<std::string, std::string>> command_environment(const RankEnv& env,
                                                               const record::LaunchPlan& plan,
                                                               const spec::JobSpec& spec,
                                                               const EnvironmentLookup& inherited);

// Returns [environment] with its references resolved on this node. kNotFound names the key and its missing
// source, never a value.
Result<std::map<std::string, std::string>> resolve_environment(
    const std::map<std::string, spec::EnvironmentValue>& environment, const EnvironmentLookup& lookup);

}  // namespace shardrun::contract

// RankEnv: who a rank is. The one place that reads and writes rank environment variables.
//
// In: under our local scheduler the SHARDRUN_* names below; under srun the SLURM_* names; under mpirun the
// OMPI_COMM_WORLD_* names. A rank cannot tell which, and needs not: it gets this struct.
// Out: child_environment() gives a program torchrun's names, NODE_RANK and SHARDRUN_*.
//
// Variables that the launcher sets for every rank (all schedulers):
//   SHARDRUN_RUN_DIR       absolute run directory, with job.toml and plan.json
//   SHARDRUN_ATTEMPT       0 for the first start, then 1, 2, …
//   SHARDRUN_MASTER_ADDR   host name or address of node 0
//   SHARDRUN_MASTER_PORT   outside the ephemeral range, free when checked
//   SHARDRUN_LAUNCH_TIME   Unix time in seconds, with fraction, when `shardrun run` began
// and that the local scheduler adds for each rank:
//   SHARDRUN_GLOBAL_RANK SHARDRUN_LOCAL_RANK SHARDRUN_NODE_INDEX SHARDRUN_NODE_COUNT
//   SHARDRUN_WORLD_SIZE SHARDRUN_LOCAL_WORLD_SIZE SHARDRUN_NODE_NAME
//
// Thread rule: read once at start, before any thread; values afterwards.
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

// Which job.toml the SPANK plugin takes the tasks of a step for, as Slurm hands it down inside an allocation; empty: none.
// The ranks of `shardrun run` are told more exactly by the conductor.
inline constexpr const char* kSlurmJobSpecVariable = "SLURM_SPANK__SLURM_SPANK_OPTION_shardrun_shardrun";

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

// Looks a variable up; nullopt if unset. Production code passes the process environment.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;
EnvironmentLookup process_environment();

// Errors: kInvalid naming the variable that is missing or not a number in range, and who should have set it.
Result<RankEnv> read_rank_env(const EnvironmentLookup& lookup);
// Only the place of a task of srun: neither run directory nor attempt, and nobody to meet yet.
Result<RankEnv> read_slurm_place(const EnvironmentLookup& lookup);

// Every variable that a command program gets on top of its inherited environment: torchrun's (RANK,
// LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, ROLE_NAME,
// ROLE_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS,
// TORCHELASTIC_RUN_ID, TORCHELASTIC_USE_AGENT_STORE=False, TORCH_NCCL_ASYNC_ERROR_HANDLING=1), NODE_RANK,
// OMP_NUM_THREADS (if unset), SHARDRUN_GRADIENT_ACCUMULATION, SHARDRUN_MICRO_BATCH, SHARDRUN_GLOBAL_BATCH,
// GRAD_ACCUM_USTEPS; SHARDRUN_RANK_BATCH and SHARDRUN_LAST_MICRO_BATCH: this rank's sequences of a step and of its last
// micro-step. [environment] of the spec is applied last by the caller (resolve_environment).
std::map<std::string, std::string> child_environment(const RankEnv& env, const record::LaunchPlan& plan,
                                                     const EnvironmentLookup& inherited);

// The same with [environment] of the spec over it, whose references are resolved on this node: `inherited`, and what
// child_environment() sets before it, is where from_env looks. kNotFound names the key and its missing source, never a
// value.
Result<std::map<std::string, std::string>> command_environment(const RankEnv& env,
                                                               const record::LaunchPlan& plan,
                                                               const spec::JobSpec& spec,
                                                               const EnvironmentLookup& inherited);

// [environment] with references resolved on this node. kNotFound names the key and its missing source,
// never a value.
Result<std::map<std::string, std::string>> resolve_environment(
    const std::map<std::string, spec::EnvironmentValue>& environment, const EnvironmentLookup& lookup);

}  // namespace shardrun::contract

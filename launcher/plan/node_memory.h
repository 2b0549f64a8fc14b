// Says what the ranks of a launch plan will hold (runtime/plan/rank_memory.h), and whether it fits into a node.
//
// Thread rule: pure functions, except for rank_place(), measured_place() and
// machine_memory_bytes(), which ask this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/contract/rank_env.h"
#include "runtime/plan/rank_memory.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns what `shardrun-rank footprint` said: four numbers, each with a character behind it; nullopt for other words.
std::optional<plan::ProgramBytes> program_in(std::string_view said);

// Returns where the ranks of `plan` run; where nothing else is known, on CPUs like this machine's.
plan::RankPlace rank_place(const record::LaunchPlan& plan);

// Returns rank_place() with what the plan's rank program and its comm plugin hold on this machine, which the program is asked: some
// 40 ms. Where it cannot say, that is left open.
plan::RankPlace measured_place(const spec::JobSpec& spec, const record::LaunchPlan& plan);

// Returns the memory of this machine, as the kernel reports it; nullopt where it does not.
std::optional<int64_t> machine_memory_bytes();

// Returns what a Slurm job may use of a node: SLURM_MEM_PER_NODE, or SLURM_MEM_PER_CPU × SLURM_CPUS_ON_NODE (MiB; 0
// stands for all of it), and at most `machine_bytes`. nullopt: nothing is known.
std::optional<int64_t> node_memory_bytes(const contract::EnvironmentLookup& lookup,
                                         std::optional<int64_t> machine_bytes);

// kRefused when `ranks` such ranks need more than `node_bytes` of host memory.
base::Result<void> fits_in_memory(const plan::MemoryPlan& rank, int ranks, std::optional<int64_t> node_bytes);

}  // namespace shardrun::launcher

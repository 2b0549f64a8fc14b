// LaunchPlan: everything about one job that is decided before it starts; plan.json in the run directory.
//
// The launcher solves it (launcher/plan, launcher/submit) and writes it; the ranks read it. Beside it lies
// job.toml, byte for byte what the user gave, and the overrides are repeated here, so that
// load_job_spec(run_dir + "/job.toml", plan.overrides) is the same spec everywhere.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/batch_plan.h"
#include "runtime/record/run_dir.h"

namespace shardrun::record {

using base::Result;

struct LaunchPlan {
  static constexpr int kFormatVersion = 1;
  static constexpr int64_t kLargestWorld = 1 << 17;  // ranks of one job
  std::string name;
  std::string id;             // the Slurm job id, or local-<time>-<pid>
  std::string identity;       // 32 random hexadecimal digits of the run; empty in plans of earlier versions
  std::string scheduler;      // "local", "slurm" or "mpirun"
  std::string run_directory;  // absolute
  std::string working_directory;  // absolute; where relative paths of the spec start
  std::string rank_program;       // absolute path of shardrun-rank
  std::string plugin_directory;   // absolute folder that comm plugins are loaded from
  std::vector<std::string> overrides;
  int nodes = 1;
  int ranks_per_node = 1;
  int cpus_per_rank = 1;
  plan::BatchPlan batch;
  // What is kept of a rank's output in the attempt; absent: all.
  std::optional<int64_t> rank_output_bytes;
  // Whether the supervisors of the attempt say what they did when (launch_phases.h); absent: they do not.
  std::optional<bool> trace_launch;
  // Those of command programs, without secrets; [environment] is applied later.
  std::map<std::string, std::string> variables;
  std::string precompile_run;  // run directory of the compile job that went before; empty: none

  int world_size() const { return nodes * ranks_per_node; }
  // Return the libraries in plugin_directory: a comm plugin, by the name that a spec gives it, and the GPU's.
  std::string comm_plugin(const std::string& plugin) const {
    return plugin_directory + "/libshardrun_comm_" + plugin + ".so";
  }
  std::string gpu_library() const { return plugin_directory + "/libshardrun_gpu.so"; }
};

std::string to_json(const LaunchPlan& plan);
// kCorrupt with what is wrong; unknown members are ignored, a newer format_version is kUnsupported.
Result<LaunchPlan> parse_launch_plan(std::string_view json);
// Reads a run's plan.json. kNotFound, kIo; else as parse_launch_plan, with the file's path.
Result<LaunchPlan> read_plan(const RunDir& run);

}  // namespace shardrun::record

// The compile job of a job: the parts that `precompile`, `run` and `submit` share.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <string>

#include "launcher/runs/common.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/schedule/stop_signals.h"

namespace shardrun::launcher {

struct CompileJob {
  LoadedSpec loaded;  // job.toml with the overrides that make it the compile job
  record::LaunchPlan plan;
};
// `job` is the plan of the job that `loaded` describes.
base::Result<CompileJob> make_compile_job(const LoadedSpec& loaded, const record::LaunchPlan& job);

// Borrows the spec of `job`, which must outlive it.
SubmitRequest submit_request(const CompileJob& job, const std::string& shardrun_program);

// Writes the compile job's run directory under the id that `job` has.
base::Result<record::RunDir> write_compile_run(CompileJob& compile, const std::string& id);

// Runs the compile job here, as a process of its own, before the job of `plan`, and notes its run there. Returns its
// exit code; anything but 0 has been told on stderr.
base::Result<int> compile_first(const LoadedSpec& loaded, record::LaunchPlan& plan,
                                const Installation& installed, const StopSignals& signals, bool quiet,
                                bool json);

}  // namespace shardrun::launcher

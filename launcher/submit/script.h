// The sbatch script of a job: what Slurm must know, and one line that starts the conductor.
//
// No shell ever reads anything of the job spec: #SBATCH lines carry only values of the spec's checked character
// sets, and the body names two paths in single quotes. Everything else travels in job.toml and plan.json, and what [slurm]
// says in sbatch's argument vector (launcher/submit/slurm_options.h).
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns what sbatch and salloc share: --job-name, --nodes, --ntasks-per-node, --cpus-per-task, --time,
// --partition…
std::vector<std::string> allocation_options(const spec::JobSpec& spec);

struct ScriptPaths {
  std::string shardrun_program;   // absolute
  std::string runs_directory;     // absolute; the run directory is <runs_directory>/<job id>
  std::string working_directory;  // absolute
  // A job that must have ended well before this one starts; empty if there is none.
  std::string after;
  // > 0: an array of as many jobs, of which `at_a_time` go on at once (0: as many as fit); directories are <array id>_<index>.
  int array_elements = 0;
  int at_a_time = 1;
  // A run directory that is there already, and that the job goes on in; empty: <runs_directory>/<job id>.
  std::string run_directory;
};

// kInvalid when a path has characters that Slurm would expand, that end a line or that are no UTF-8; the mend names them.
base::Result<std::string> sbatch_script(const spec::JobSpec& spec, const ScriptPaths& paths);

// Returns `text` as one word of a POSIX shell.
std::string shell_quoted(const std::string& text);

}  // namespace shardrun::launcher

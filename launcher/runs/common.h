// What several verbs need: where shardrun is installed, what a plan starts from, finding a run, printing an error.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "launcher/cluster/load_job.h"
#include "launcher/plan/launch_plan.h"
#include "runtime/base/result.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// What every verb is given.
struct CommonOptions {
  bool json = false;
  bool verbose = false;
  std::string runs_directory = "runs";
};

// A job.toml, with what --set changes in it.
struct SpecOptions {
  std::string path;
  std::vector<std::string> overrides;
};

// Prints "shardrun: error: …" (with --verbose: the whole chain) and returns the exit code that the error's
// code stands for.
int fail(const base::Error& error, const CommonOptions& common);
// Prints "shardrun: warning: …" for each.
void warn(const std::vector<std::string>& warnings);

// Write to stdout, and what has been written to its file; what could not be is said once, on stderr. Return false when it is lost.
bool write_out(std::string_view text);
bool flush_out();
// Returns the exit code of a program that ends with `exit_code`: what a full disk did not take is no answer.
int finish_output(int exit_code);
// Prints to stdout, in the characters that a terminal there can show.
void print_text(const std::string& text);
template <typename First, typename... Rest>
void print_text(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  print_text(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}
// Says to stderr, in the characters that a terminal there can show; what cannot be written is lost.
void say_error(const std::string& text);

struct Installation {
  std::string shardrun_program;  // absolute
  std::string rank_program;      // shardrun-rank beside it
  std::string plugin_directory;  // ../lib/shardrun
};
// kRefused: others can change what ranks would run.
base::Result<Installation> find_installation();

// Becomes the program argv[0], an absolute path or a name on PATH; returns only when that fails: kIo, or kNotFound with the words of
// `otherwise`, which say what to do without it.
base::Error become(const std::vector<std::string>& argv, const std::string& otherwise = "");

// What runs `spec` from here: "slurm" (in an allocation, or when it asks for it), "mpirun" or "local".
const char* scheduler_of(const spec::JobSpec& spec);
// Whether this process runs inside a Slurm allocation, and whether a spec asks for Slurm here.
bool inside_allocation();
bool wants_slurm(const spec::JobSpec& spec);
// An id for a run that starts now: local-<time>-<pid>, or the allocation's job, with a number behind it from the second
// run in `runs` on.
std::string new_run_id(const std::string& runs, bool slurm);

// Loads the spec of a job that is about to start. kRefused where somebody else could put other commands into it.
base::Result<LoadedSpec> load_spec_to_start(const std::string& path,
                                            const std::vector<std::string>& overrides);

// Everything that a plan of `spec` needs but its id and run directory. The job works in `working_directory`; empty: here.
base::Result<PlanContext> plan_context(const spec::JobSpec& spec, const Installation& installed,
                                       const std::vector<std::string>& overrides,
                                       const std::string& scheduler,
                                       const std::string& working_directory = "");

std::string current_directory();
std::string absolute_path(const std::string& path);
// <logging.directory>/<name>, absolute.
std::string runs_of(const spec::JobSpec& spec);

// Every run of the job of this name below the runs directory, newest first: by when it was submitted, or started where it was
// not, so that one that waits in a queue counts.
std::vector<record::RunDir> runs_named(const std::string& name, const CommonOptions& common);
// A run named by its directory, by its job's name (the newest), or by its id. kNotFound lists where was
// looked.
base::Result<record::RunDir> find_run(const std::string& name, const CommonOptions& common);
// The folder to which `name` leads: a checkpoint, a folder of checkpoints, or that of a run. Errors as find_run.
base::Result<std::string> find_checkpoints(const std::string& name, const CommonOptions& common);
// Every run directory below the runs directory, newest first.
std::vector<record::RunDir> all_runs(const CommonOptions& common);
// Returns how many folders below the runs directory are closed to us. kIo: it is itself.
base::Result<int> count_closed_runs(const CommonOptions& common);
// The job of a run, as its plan has it.
base::Result<spec::JobSpec> read_job(const record::RunDir& run);

}  // namespace shardrun::launcher

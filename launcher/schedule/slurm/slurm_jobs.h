// Jobs as Slurm's commands see them: submits them, looks them up, cancels them, starts them again.
//
// Slurm is driven through sbatch, squeue, sacct, scontrol and scancel with argv vectors, never through a shell, so
// one binary serves every site's version. Errors quote Slurm's own words.
//
// Thread rule: free functions; each runs commands and waits for them. Those that submit block the stop signals meanwhile, in the
// main thread, while there is no other.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/submit/snapshot.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

struct SubmitRequest {
  const spec::JobSpec* spec = nullptr;
  std::string spec_text;       // the bytes of job.toml, exactly as given
  record::LaunchPlan plan;     // id and run_directory are filled in here
  std::string runs_directory;  // absolute <logging.directory>/<name>: run directories are made in it
  std::string shardrun_program;
  std::string after;  // a job that must have ended well before; empty: none
  // A copy of the code, unpacked into the run directory, where the job then works; absent: it works in the plan's folder.
  std::optional<Snapshot> code = {};
  // A run directory that is there already, and that the job goes on in; empty: a new one.
  std::string goes_on_in = {};
};

// Checks what [slurm] of the spec says against the long options of this machine's `program` ("sbatch" or "salloc"), which is
// asked for its help; asks nothing where the section is absent. kInvalid, "origin: what; mend"; kIo when the help cannot be had.
base::Result<void> check_slurm_options_here(const spec::JobSpec& spec, const std::string& program);

// Returns the sbatch command and the script that it reads, as `submit --dry-run` prints them.
base::Result<std::string> describe_submission(const SubmitRequest& request);

// Submits the job held, makes the run directory <runs_directory>/<job id> with job.toml, plan.json and submit.sh,
// then releases the job, so that its directory exists when it starts. A failure after sbatch, or a request to stop (StopSignals),
// cancels the job again, and takes the directory away where the job cannot have started. kCancelled: we were asked to stop.
// Returns the plan with its id and run directory.
base::Result<record::LaunchPlan> submit_job(SubmitRequest request);

// Submits `first`, and `second` so that it starts when the first has ended with 0 and is cancelled when it has not. Its
// plan names the first's run directory. Nothing is left queued when either cannot be submitted. Returns both plans.
struct Chain {
  record::LaunchPlan first, second;
};
base::Result<Chain> submit_chain(SubmitRequest first, SubmitRequest second);

// The same job on several numbers of nodes or with several values, as one Slurm array. `spec` and `plan` are those of the largest
// number.
struct ArrayRequest {
  SubmitRequest job;
  std::vector<record::LaunchPlan> plans;  // one per element; none has more nodes than job.plan
  int at_a_time = 1;                      // elements that go on at once; 0: as many as fit
};
base::Result<std::string> describe_array(const ArrayRequest& request);

// Does what submit_job does for each element: run directories are <runs_directory>/<array id>_<index>. All elements of
// an array are submitted with one size; smaller ones are made smaller while they are held. Returns the plans with ids.
base::Result<std::vector<record::LaunchPlan>> submit_array(ArrayRequest request);

struct SlurmJob {
  std::string state;   // PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, NODE_FAIL, CANCELLED…
  std::string reason;  // why it waits, "" otherwise
};

// Returns the job that `sbatch --parsable` answers, "123" or "123;cluster". kIo quotes what names none.
base::Result<std::string> submitted_job(const std::string& answer);
// Returns the value of "key=" in the output of `scontrol --oneliner show job`, up to a blank; "" when there is none.
std::string scontrol_field(const std::string& text, const std::string& key);
// Says whether a job in this state, e.g. "CANCELLED" or "cancelled by 1000", does not run any more.
bool is_end_of_job(const std::string& state);
// Returns nullopt when Slurm has forgotten the job. Works without accounting. `goes_on` is asked about every second whether to wait
// any longer; kCancelled where it said no.
base::Result<std::optional<SlurmJob>> find_job(const std::string& id,
                                               const std::function<bool()>& goes_on = {});
// Says whether the error of find_job means that this machine belongs to no cluster, rather than that Slurm does not answer.
bool is_of_no_cluster(const base::Error& error);
// Returns the numbers of all jobs that Slurm has not forgotten, of an array's elements that of the array: one question, whose answer
// says of many jobs that find_job need not be asked. `goes_on` as there.
base::Result<std::set<std::string>> known_jobs(const std::function<bool()>& goes_on = {});
// Returns them as squeue's answer lists them.
std::set<std::string> listed_jobs(const std::string& answer);
// Says whether the job of a run's id may be among them.
bool is_known(const std::set<std::string>& known, const std::string& id);
// Returns whether `sinfo --format=%T` lists a node that does not answer Slurm. It does not count on such a node ("idle*"), which is
// back with its next answer, or down after SlurmdTimeout ("down*").
bool has_silent_node(std::string_view states);
base::Result<void> cancel_job(const std::string& id);
// Makes Slurm start a running job again, on other nodes than those of `bad` (the newest last). Where the job could
// then never start, the oldest of them are allowed again; while a node does not answer Slurm this is found out for
// up to 15 s. Returns in words what became of `bad`; "" when it is empty. kCancelled when the job is being cancelled
// or is over.
base::Result<std::string> requeue_job(const std::string& id, const spec::JobSpec& spec,
                                      const std::vector<std::string>& bad);

// Returns the argv of a salloc with this job's needs around `command`.
std::vector<std::string> salloc_command(const spec::JobSpec& spec, const std::vector<std::string>& command);

}  // namespace shardrun::launcher

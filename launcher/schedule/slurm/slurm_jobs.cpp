#include "launcher/schedule/slurm/slurm_jobs.h"

#include <strings.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/schedule/slurm/refusals.h"
#include "launcher/schedule/stop_signals.h"
#include "launcher/submit/script.h"
#include "launcher/submit/slurm_options.h"
#include "runtime/base/command.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/base/trust.h"
#include "runtime/contract/sealed_lines.h"
#include "runtime/record/run_dir.h"

namespace shardrun::launcher {
namespace {

base::Result<base::CommandOutput> ask_slurm(const std::vector<std::string>& argv,
                                            const std::string& input = "",
                                            const std::vector<std::string>& without = {},
                                            const std::function<bool()>& goes_on = {}) {
  auto answer = base::run_command(argv, input, std::chrono::seconds(30), without, goes_on);
  if (answer || answer.error().code() != base::Code::kNotFound) return answer;
  return std::move(answer).error().context("is this a Slurm head or compute node?");
}

using base::Code;
using base::Error;
using base::Result;

std::vector<std::string> submit_command(const spec::JobSpec& spec) {
  std::vector<std::string> argv = {"sbatch", "--parsable", "--hold"};
  for (std::string& option : slurm_options(spec)) argv.push_back(std::move(option));
  return argv;
}

// Returns the command as a person could type it.
std::string typed(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& word : argv) {
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                            "-_=./,:@%+") == std::string::npos;
    line += (line.empty() ? "" : " ") + (plain ? word : shell_quoted(word));
  }
  return line;
}

Result<std::string> script_of(const SubmitRequest& request, int array_elements = 0, int at_a_time = 1) {
  // The folder in which the code is looked at before its submission is gone when the job starts.
  const std::string& directory = request.code ? request.runs_directory : request.plan.working_directory;
  return sbatch_script(*request.spec, {request.shardrun_program, request.runs_directory, directory,
                                       request.after, array_elements, at_a_time, request.goes_on_in});
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 20 && text.find_first_not_of("0123456789") == std::string::npos;
}

// Returns whether the id is "123", or "123_4": element 4 of array 123.
bool is_job_id(const std::string& id) {
  const size_t element = id.find('_');
  return is_number(id.substr(0, element)) &&
         (element == std::string::npos || is_number(id.substr(element + 1)));
}

// Returns the job of a run's id: "123-2" is the second run inside job 123.
Result<std::string> job_of(const std::string& id) {
  const std::string job = id.substr(0, id.find('-'));
  if (!is_job_id(job)) return Error(Code::kInvalid, "\"" + id + "\" is no Slurm job id");
  return job;
}

// A job's number is not its own for ever: a cluster that was set up anew counts from 1 again. A folder that is there
// belongs to an earlier job of that number, whose checkpoints this one must not take for its own.
Result<void> make_run_directory(const SubmitRequest& request) {
  const record::RunDir run{request.plan.run_directory};
  if (!request.goes_on_in.empty()) return {};
  RETURN_IF_ERROR(base::make_directories(request.runs_directory));
  if (::mkdir(run.root.c_str(), record::kFolderMode) != 0) {
    const int failure = errno;
    if (failure != EEXIST) return base::errno_error(Code::kIo, "creating folder " + run.root, failure);
    return Error(Code::kRefused,
                 fmt::format("{}: is there already, from another job of this number; submit again, move "
                             "the folder away, or give the job another name",
                             run.root));
  }
  return {};
}

Result<void> write_run_directory(const SubmitRequest& request, const std::string& script) {
  const record::RunDir run{request.plan.run_directory};
  RETURN_IF_ERROR(base::refuse_if_others_write(run.root));
  RETURN_IF_ERROR(base::write_file_atomically(run.job_toml(), request.spec_text, record::kFileMode));
  RETURN_IF_ERROR(base::write_file_atomically(run.plan_json(), to_json(request.plan), record::kFileMode));
  return base::write_file_atomically(run.submit_sh(), script, record::kFileMode);
}

// How long a command of Slurm's is waited for after a request to stop: most answer at once, and then what it began is known.
constexpr auto kLastWords = std::chrono::seconds(2);

// A request to stop that comes while a job is half submitted, which it would leave so; it is obeyed once nothing is.
class Interruption {
 public:
  explicit Interruption(StopSignals signals) : signals_(std::move(signals)) {}
  bool came() {
    if (!came_at_ && signals_.take()) came_at_ = std::chrono::steady_clock::now();
    return came_at_.has_value();
  }
  bool lets_go_on() { return !came() || std::chrono::steady_clock::now() - *came_at_ < kLastWords; }

 private:
  StopSignals signals_;
  std::optional<std::chrono::steady_clock::time_point> came_at_;
};

// Says whether sbatch ended so that Slurm may have taken the job before.
bool may_have_queued(const Error& why) {
  return why.code() == Code::kTimeout || why.code() == Code::kCancelled ||
         why.message().find("timed out") != std::string::npos;
}

// Submits `script` held, lets `prepare` make what the job needs, and releases it; if something fails or we are asked to stop, the
// job is cancelled again. `prepare` adds the folders that it makes, which go with a job that has never been released.
Result<std::string> submit_prepared(
    const spec::JobSpec& spec, const std::string& script,
    const std::function<Result<void>(const std::string& id, std::vector<std::string>& made)>& prepare) {
  ASSIGN_OR_RETURN(auto signals, StopSignals::block());
  Interruption stop(std::move(signals));
  const auto goes_on = [&] { return stop.lets_go_on(); };
  auto answer = ask_slurm(submit_command(spec), script, variables_against(spec), goes_on);
  if (!answer && may_have_queued(answer.error()))
    return Error(
        answer.error().code(),
        fmt::format("whether Slurm took the job is not known: {}; if so, `squeue --me --name={}` shows it "
                    "held: take it away with scancel, and submit again",
                    answer.error().message(), spec.name));
  if (!answer) return explain_refusal(spec, answer.error()).context("the job was not submitted");
  ASSIGN_OR_RETURN(const auto id, submitted_job(answer->out));
  std::vector<std::string> made;
  auto prepared = prepare(id, made);
  if (prepared && !stop.came()) {
    made.clear();  // it may start now
    if (auto released = ask_slurm({"scontrol", "release", id}, "", {}, goes_on); !released)
      prepared = explain_refusal(spec, released.error());
  }
  if (prepared && stop.came()) prepared = Error(Code::kCancelled, "we were asked to stop");
  if (prepared) return id;
  auto cancelled =
      base::run_command({"scancel", id}, "", stop.came() ? kLastWords : std::chrono::seconds(30));
  std::error_code ignored;
  if (cancelled)
    for (const std::string& folder : made) std::filesystem::remove_all(folder, ignored);
  return std::move(prepared).error().context(fmt::format(
      "job {} was submitted and {}", id,
      cancelled ? "cancelled again" : fmt::format("is queued: take it away by `scancel {}`", id)));
}

Result<void> prepare_run(SubmitRequest& request, const std::string& id, const std::string& script,
                         std::vector<std::string>& made) {
  request.plan.id = id;
  request.plan.run_directory =
      request.goes_on_in.empty() ? request.runs_directory + "/" + id : request.goes_on_in;
  RETURN_IF_ERROR(make_run_directory(request));
  if (request.goes_on_in.empty()) {
    made.push_back(request.plan.run_directory);
    ASSIGN_OR_RETURN(request.plan.identity, contract::new_run_identity());
  }
  if (request.code) {
    ASSIGN_OR_RETURN(request.plan.working_directory,
                     unpack_snapshot(*request.code, record::RunDir{request.plan.run_directory}.code()));
  }
  return write_run_directory(request, script);
}

std::string exclusion(const spec::JobSpec& spec, const std::vector<std::string>& avoid) {
  const std::string& own = spec.resources.exclude;
  return fmt::format("{}{}{}", own, own.empty() ? "" : ",", fmt::join(avoid, ","));
}

// Asks Slurm whether a job like this one could start without these nodes; nothing is queued.
bool could_start_without(const spec::JobSpec& spec, const std::vector<std::string>& avoid) {
  std::vector<std::string> argv = {"sbatch", "--test-only", "--wrap=true"};
  for (std::string& option : allocation_options(spec)) argv.push_back(std::move(option));
  for (std::string& option : slurm_options(spec)) argv.push_back(std::move(option));
  argv.push_back("--exclude=" + exclusion(spec, avoid));
  return base::run_command(argv, "", std::chrono::seconds(10), variables_against(spec)).has_value();
}

// Returns whether a node does not answer Slurm at the moment.
bool is_a_node_silent(const spec::JobSpec& spec) {
  std::vector<std::string> argv = {"sinfo", "--noheader", "--dead", "--format=%T"};
  if (!spec.resources.partition.empty()) argv.push_back("--partition=" + spec.resources.partition);
  const auto answer = base::run_command(argv, "", std::chrono::seconds(10));
  return answer && has_silent_node(answer->out);
}

// Returns those of the nodes that a job like this one can do without: the last ones, which were found bad last.
// What is refused while a node is silent is asked again for some seconds.
std::vector<std::string> which_it_can_avoid(const spec::JobSpec& spec, std::vector<std::string> nodes) {
  constexpr auto kPatience = std::chrono::seconds(15);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!nodes.empty() && !could_start_without(spec, nodes)) {
    if (std::chrono::steady_clock::now() < until && is_a_node_silent(spec)) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    } else {
      nodes.erase(nodes.begin());
    }
  }
  return nodes;
}

// Excludes nodes for a job that has just been queued again. Slurm accepts this while the nodes are being cleaned
// up, and ends us meanwhile: the command may get the signal that is meant for us.
Result<void> exclude_nodes(const std::string& job, const spec::JobSpec& spec,
                           const std::vector<std::string>& avoid) {
  constexpr int kTries = 3;
  Result<void> done;
  for (int tries = 0; tries < kTries; ++tries) {
    auto answer = ask_slurm({"scontrol", "update", "JobId=" + job, "ExcNodeList=" + exclusion(spec, avoid)});
    if (answer) return {};
    done = std::move(answer).error();
  }
  return done;
}

// Returns whether an element of an array needs what the array's script asks for: the nodes of the spec.
bool has_size_of(const record::LaunchPlan& plan, const spec::JobSpec& spec) {
  return plan.nodes == spec.resources.nodes && plan.ranks_per_node == spec.resources.ranks_per_node;
}

std::vector<std::string> resize_command(const std::string& element, const record::LaunchPlan& plan) {
  return {"scontrol",
          "update",
          "JobId=" + element,
          fmt::format("NumNodes={0}-{0}", plan.nodes),
          fmt::format("NumCPUs={}", int64_t{plan.world_size()} * plan.cpus_per_rank),
          fmt::format("NumTasks={}", plan.world_size())};
}

}  // namespace

Result<void> check_slurm_options_here(const spec::JobSpec& spec, const std::string& program) {
  if (slurm_options(spec).empty()) return {};
  auto help = ask_slurm({program, "--help"});
  if (!help) return std::move(help).error().context("[slurm] cannot be checked");
  return check_slurm_options(spec, help->out, program);
}

Result<std::string> describe_submission(const SubmitRequest& request) {
  ASSIGN_OR_RETURN(auto script, script_of(request));
  return fmt::format(
      "# {}   < the script below; then, once {}/<job id> is written: scontrol release <job id>\n{}",
      typed(submit_command(*request.spec)), request.runs_directory, script);
}

Result<record::LaunchPlan> submit_job(SubmitRequest request) {
  ASSIGN_OR_RETURN(auto script, script_of(request));
  // This is done before anything is queued: nothing else could fail afterwards for a reason of ours.
  RETURN_IF_ERROR(base::make_directories(request.runs_directory));
  auto id = submit_prepared(*request.spec, script, [&](const std::string& job, auto& made) {
    return prepare_run(request, job, script, made);
  });
  RETURN_IF_ERROR(id);
  return request.plan;
}

Result<Chain> submit_chain(SubmitRequest first, SubmitRequest second) {
  ASSIGN_OR_RETURN(auto script, script_of(first));
  RETURN_IF_ERROR(base::make_directories(first.runs_directory));
  Chain chain;
  auto submitted =
      submit_prepared(*first.spec, script, [&](const std::string& job, auto& made) -> Result<void> {
        RETURN_IF_ERROR(prepare_run(first, job, script, made));
        chain.first = first.plan;
        second.after = job;
        second.plan.precompile_run = first.plan.run_directory;
        ASSIGN_OR_RETURN(chain.second, submit_job(std::move(second)));
        return {};
      });
  RETURN_IF_ERROR(submitted);
  return chain;
}

Result<std::string> describe_array(const ArrayRequest& request) {
  ASSIGN_OR_RETURN(auto script,
                   script_of(request.job, static_cast<int>(request.plans.size()), request.at_a_time));
  std::string text = fmt::format("# {}   < the script below; then, once {}/<array id>_<index> are written:\n",
                                 typed(submit_command(*request.job.spec)), request.job.runs_directory);
  for (size_t i = 0; i < request.plans.size(); ++i) {
    if (has_size_of(request.plans[i], *request.job.spec)) continue;
    text += fmt::format("# {}\n",
                        fmt::join(resize_command(fmt::format("<array id>_{}", i), request.plans[i]), " "));
  }
  return text + "# scontrol release <array id>\n" + script;
}

Result<std::vector<record::LaunchPlan>> submit_array(ArrayRequest request) {
  ASSIGN_OR_RETURN(auto script,
                   script_of(request.job, static_cast<int>(request.plans.size()), request.at_a_time));
  RETURN_IF_ERROR(base::make_directories(request.job.runs_directory));
  auto submitted =
      submit_prepared(*request.job.spec, script, [&](const std::string& array, auto& made) -> Result<void> {
        for (size_t i = 0; i < request.plans.size(); ++i) {
          const std::string element = fmt::format("{}_{}", array, i);
          SubmitRequest job = request.job;
          job.plan = request.plans[i];
          RETURN_IF_ERROR(prepare_run(job, element, script, made));
          request.plans[i] = job.plan;
          if (has_size_of(job.plan, *request.job.spec)) continue;
          if (auto resized = ask_slurm(resize_command(element, job.plan)); !resized)
            return std::move(resized).error();
        }
        return {};
      });
  RETURN_IF_ERROR(submitted);
  return std::move(request.plans);
}

std::string scontrol_field(const std::string& text, const std::string& key) {
  size_t at = text.find(" " + key + "=");
  if (at == std::string::npos) return "";
  at += key.size() + 2;
  return text.substr(at, text.find_first_of(" \n", at) - at);
}

Result<std::string> submitted_job(const std::string& answer) {
  std::string id = answer.substr(0, answer.find_first_of(";\n"));
  if (!is_job_id(id)) return Error(Code::kIo, "sbatch answered \"" + answer + "\", which is no job id");
  return id;
}

Result<std::optional<SlurmJob>> find_job(const std::string& id, const std::function<bool()>& goes_on) {
  ASSIGN_OR_RETURN(auto job, job_of(id));
  auto answer = ask_slurm({"scontrol", "--oneliner", "show", "job", job}, "", {}, goes_on);
  if (!answer) {
    if (answer.error().message().find("Invalid job id") != std::string::npos)
      return std::optional<SlurmJob>{};
    return std::move(answer).error();
  }
  SlurmJob found;
  found.state = scontrol_field(answer->out, "JobState");
  found.reason = scontrol_field(answer->out, "Reason");
  if (found.reason == "None") found.reason.clear();
  return std::optional(found);
}

bool is_of_no_cluster(const Error& error) {
  return error.code() == Code::kNotFound || error.code() == Code::kInvalid ||
         error.to_string().find("Could not establish a configuration source") != std::string::npos;
}

Result<std::set<std::string>> known_jobs(const std::function<bool()>& goes_on) {
  // What a person's squeue leaves out is left out for a person's eyes.
  const std::vector<std::string> filters = {
      "SQUEUE_ACCOUNT",   "SQUEUE_CLUSTERS", "SLURM_CLUSTERS", "SQUEUE_JOB_NAME",    "SQUEUE_LICENSES",
      "SQUEUE_PARTITION", "SQUEUE_QOS",      "SQUEUE_USERS",   "SQUEUE_RESERVATION", "SQUEUE_NODELIST"};
  ASSIGN_OR_RETURN(auto answer, ask_slurm({"squeue", "--noheader", "--all", "--states=all", "--format=%F"},
                                          "", filters, goes_on));
  return listed_jobs(answer.out);
}

std::set<std::string> listed_jobs(const std::string& answer) {
  std::istringstream lines(answer);
  std::set<std::string> known;
  for (std::string job; lines >> job;) known.insert(std::move(job));
  return known;
}

bool is_known(const std::set<std::string>& known, const std::string& id) {
  return known.contains(id.substr(0, id.find_first_not_of("0123456789")));
}

bool has_silent_node(std::string_view states) {
  while (!states.empty()) {
    const std::string_view state = base::take_line(states);
    if (state.ends_with('*') && !state.starts_with("down")) return true;
  }
  return false;
}

bool is_end_of_job(const std::string& state) {
  for (const std::string_view end : {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
                                     "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"})
    if (::strncasecmp(state.c_str(), end.data(), end.size()) == 0) return true;
  return false;
}

Result<void> cancel_job(const std::string& id) {
  ASSIGN_OR_RETURN(auto job, job_of(id));
  ASSIGN_OR_RETURN(auto answer, ask_slurm({"scancel", job}));
  return {};
}

Result<std::string> requeue_job(const std::string& id, const spec::JobSpec& spec,
                                const std::vector<std::string>& bad) {
  ASSIGN_OR_RETURN(auto job, job_of(id));
  const std::vector<std::string> avoid = which_it_can_avoid(spec, bad);
  // A job that somebody cancelled gets SIGTERM like one that is out of time, and must stay cancelled.
  ASSIGN_OR_RETURN(auto state, find_job(job));
  if (!state || (state)->state != "RUNNING") {
    return Error(Code::kCancelled, fmt::format("job {} is {}", job, state ? (state)->state : "gone"));
  }
  // Slurm starts it again once its credential has expired: after two minutes, unless AuthInfo's cred_expire
  // says otherwise.
  ASSIGN_OR_RETURN(auto answer, ask_slurm({"scontrol", "requeue", job}));
  if (bad.empty()) return std::string();
  if (avoid.empty()) {
    return fmt::format("it may get {} again, for it could not start without", fmt::join(bad, ", "));
  }
  auto excluded = exclude_nodes(job, spec, avoid);
  if (!excluded) return "it may get the same nodes again: " + excluded.error().to_string();
  return fmt::format("without {}", fmt::join(avoid, ", "));
}

std::vector<std::string> salloc_command(const spec::JobSpec& spec, const std::vector<std::string>& command) {
  std::vector<std::string> argv = {"salloc"};
  for (const std::string& option : allocation_options(spec)) argv.push_back(option);
  for (std::string& option : slurm_options(spec)) argv.push_back(std::move(option));
  if (const std::string dependency = slurm_dependency(spec, ""); !dependency.empty())
    argv.push_back("--dependency=" + dependency);
  if (spec.resources.time_limit) {
    argv.push_back(fmt::format("--signal=TERM@{}", spec.fault_tolerance.signal_lead.count()));
  }
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

}  // namespace shardrun::launcher

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/agent/checkpoint_hold.h"
#include "launcher/agent/child_program.h"
#include "launcher/agent/conductor.h"
#include "launcher/agent/own_limits.h"
#include "launcher/foresight/prediction.h"
#include "launcher/plan/node_memory.h"
#include "launcher/plan/precompile.h"
#include "launcher/runs/run_state.h"
#include "launcher/schedule/local/local_scheduler.h"
#include "launcher/schedule/local/temporary_directory.h"
#include "launcher/schedule/mpirun/mpirun_scheduler.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/schedule/slurm/slurm_scheduler.h"
#include "launcher/schedule/stop_signals.h"
#include "launcher/submit/cache.h"
#include "launcher/submit/rules.h"
#include "launcher/submit/slurm_options.h"
#include "launcher/submit/snapshot.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/job_line.h"
#include "launcher/verbs/precompile.h"
#include "launcher/verbs/run.h"
#include "launcher/view/follower.h"
#include "launcher/view/loss_plot.h"
#include "launcher/view/progress.h"
#include "runtime/base/allowance.h"
#include "runtime/base/io.h"
#include "runtime/base/say.h"
#include "runtime/base/trust.h"
#include "runtime/base/unix_time.h"
#include "runtime/base/visible.h"
#include "runtime/contract/compile_cache.h"
#include "runtime/contract/epoch.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/sealed_lines.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;
using base::Result;

// <runs>/latest → id, replaced in one step. A convenience: failing is no reason not to run.
void point_latest(const record::RunDir& run) {
  const fs::path directory(run.root);
  const fs::path fresh = directory.parent_path() / fmt::format(".latest.{}", ::getpid());
  std::error_code ignored;
  fs::create_symlink(directory.filename(), fresh, ignored);
  fs::rename(fresh, directory.parent_path() / "latest", ignored);
}

// The end of a run is its verdict, whether or not anybody reads it.
void print_lines(const std::string& text) {
  base::say(STDOUT_FILENO, shown_on(look_at_terminal(STDOUT_FILENO, contract::process_environment()), text));
}

// How long a terminal that nobody reads may hold the end of a run.
constexpr std::chrono::milliseconds kLastLinesTime{2000};

// Follows the run on a thread of its own while the conductor waits for the ranks.
class Viewer {
 public:
  // Once; the follower finds the logs of later attempts by itself.
  void start(const record::RunDir& run, int64_t total_steps) {
    if (thread_.joinable()) return;
    FollowOptions options;
    options.terminal = look_at_terminal(STDOUT_FILENO, contract::process_environment());
    options.terminal_fd = STDOUT_FILENO;
    options.bar = true;
    options.total_steps = total_steps;
    // Lines wait for a terminal that is held (Ctrl-S), but not once the run is over.
    follower_.emplace(run, options, [this](const std::string& text) {
      base::say(STDOUT_FILENO, text, kLastLinesTime, [this] { return done_.load(); });
    });
    thread_ = std::thread([this] {
      while (!done_.load()) {
        follower_->poll();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    });
  }
  void stop() {
    if (!thread_.joinable()) return;
    done_.store(true);
    thread_.join();
    follower_->finish();
  }
  ~Viewer() { stop(); }

 private:
  std::optional<Follower> follower_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

struct Prepared {
  spec::JobSpec spec;
  std::string text;
  record::LaunchPlan plan;
};

Result<Prepared> prepare_new(const RunOptions& options, const Installation& installed) {
  ASSIGN_OR_RETURN(auto loaded, load_job(options.job));
  const std::string runs = runs_of(loaded.spec);
  const bool slurm = wants_slurm(loaded.spec);
  ASSIGN_OR_RETURN(auto context,
                   plan_context(loaded.spec, installed, loaded.overrides, scheduler_of(loaded.spec)));
  context.id = slurm && !inside_allocation() ? "allocation" : new_run_id(runs, slurm);
  context.run_directory = runs + "/" + context.id;
  // A script of the user's own begins from its top when Slurm starts its job again.
  const char* const starts = std::getenv("SLURM_RESTART_COUNT");
  const bool again =
      slurm && inside_allocation() && starts != nullptr && std::strtol(starts, nullptr, 10) > 0;
  if (again && context.id != std::getenv("SLURM_JOB_ID"))
    warn({fmt::format(
        "Slurm has started this job again, and this is a new run; to go on with the one before, the "
        "script has to say `shardrun resume {}/{}`, as a job of `shardrun submit` does by itself",
        runs, std::getenv("SLURM_JOB_ID"))});
  ASSIGN_OR_RETURN(auto solved, solve_launch_plan(loaded.spec, context));
  ASSIGN_OR_RETURN(solved.identity, contract::new_run_identity());
  return Prepared{std::move(loaded.spec), std::move(loaded.text), std::move(solved)};
}

// Lets the job work in its own copy of the code, where it asks for one and nobody has made it yet.
Result<void> work_in_snapshot(Prepared& job) {
  const std::string code = record::RunDir{job.plan.run_directory}.code();
  std::error_code ignored;
  if (job.spec.program.snapshot == spec::SnapshotKind::kNone || fs::exists(code, ignored)) return {};
  ASSIGN_OR_RETURN(auto folder, TemporaryDirectory::make());
  ASSIGN_OR_RETURN(auto snapshot, take_snapshot(job.spec, job.plan.working_directory, folder.path()));
  warn(snapshot.warnings);
  ASSIGN_OR_RETURN(job.plan.working_directory, unpack_snapshot(snapshot, code));
  return {};
}

// A directory that `submit` made: its own job.toml and plan, whatever was edited since.
Result<Prepared> prepare_existing(const std::string& directory, const std::string& id = "") {
  const record::RunDir run{absolute_path(directory)};
  for (const std::string& file : {run.plan_json(), run.job_toml()}) {
    if (auto ours = base::refuse_if_others_write(file); !ours)
      return std::move(ours).error().context("a job's commands are read from its run directory");
  }
  ASSIGN_OR_RETURN(auto plan, read_plan(run));
  ASSIGN_OR_RETURN(auto loaded, load_prepared_spec(run.job_toml(), plan.overrides));
  plan.run_directory = run.root;
  if (!id.empty()) plan.id = id;
  return Prepared{std::move(loaded.spec), std::move(loaded.text), std::move(plan)};
}

// A run whose ranks run on without a conductor.
Result<Prepared> prepare_attached(const std::string& name, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto run, find_run(name, common));
  ASSIGN_OR_RETURN(auto job, prepare_existing(run.root));
  if (job.spec.fault_tolerance.conductor_timeout.count() == 0) {
    return base::Error(
        base::Code::kRefused,
        fmt::format("{}: its ranks end with their conductor; `shardrun resume` starts it again, and "
                    "[fault_tolerance] conductor_timeout lets ranks wait for another",
                    run.root));
  }
  if (job.plan.scheduler == "slurm" && !inside_allocation()) {
    return base::Error(
        base::Code::kRefused,
        fmt::format("{}: its job's script takes it over; by hand only inside of its allocation", run.root));
  }
  if (::chdir(job.plan.working_directory.c_str()) != 0)
    return base::errno_error(base::Code::kIo, job.plan.working_directory, errno);
  return job;
}

std::vector<std::string> own_command(const RunOptions& options, const CommonOptions& common,
                                     const Installation& installed) {
  std::vector<std::string> argv = {installed.shardrun_program, "run"};
  if (options.quiet) argv.emplace_back("--quiet");
  if (options.trace) argv.emplace_back("--trace");
  if (common.json) argv.emplace_back("--json");
  if (common.verbose) argv.emplace_back("--verbose");
  for (std::string& word : words_of(options.job)) argv.push_back(std::move(word));
  return argv;
}

// Becomes salloc, which runs this verb again inside the allocation.
Result<int> run_through_salloc(const spec::JobSpec& spec, const RunOptions& options,
                               const Installation& installed, const CommonOptions& common) {
  RETURN_IF_ERROR(check_slurm_options_here(spec, "salloc"));
  for (const std::string& name : variables_against(spec, "SALLOC_")) ::unsetenv(name.c_str());
  return become(salloc_command(spec, own_command(options, common, installed)),
                "the job asks for Slurm and salloc cannot be run; log in to a head node, or write "
                "--set cluster.scheduler=local");
}

// Not when it went before as a job of its own, nor before a restart, which finds the cache filled.
bool needs_compile_job(const Prepared& job) {
  if (!compiles_by_command(job.spec) || !job.plan.precompile_run.empty()) return false;
  std::error_code ignored;
  return !fs::exists(record::RunDir{job.plan.run_directory}.attempt(0), ignored);
}

int dry_run(const Prepared& job, const RunOptions& options, const CommonOptions& common,
            const Installation& installed) {
  const bool needs_salloc = job.plan.scheduler == "slurm" && !inside_allocation();
  print_text("run directory  {}\nscheduler      {}\nranks          {} × {} of {}\n", job.plan.run_directory,
             job.plan.scheduler, counted(job.plan.nodes, "node"), job.plan.ranks_per_node,
             job.plan.rank_program);
  if (needs_salloc) {
    std::string line;
    for (const std::string& argument : salloc_command(job.spec, own_command(options, common, installed))) {
      line += (line.empty() ? "" : " ") + argument;
    }
    print_text("command        {}\n", line);
  }
  if (!job.spec.program.command.empty()) {
    print_text("program        {}\n", fmt::join(job.spec.program.command, " "));
  }
  if (compiles_by_command(job.spec))
    print_text("before it      {}\n", fmt::join(job.spec.precompile.command, " "));
  print_text("plan.json\n{}", to_json(job.plan));
  return contract::kExitDone;
}

// The picture of the run, beside its record; a run without steps has none.
bool write_plot(const record::RunDir& run, const spec::JobSpec& job) {
  const std::string svg = loss_plot_svg(read_curve(run), job.name, /*in_nats=*/job.program.command.empty());
  return !svg.empty() &&
         base::write_file_atomically(run.root + "/loss.svg", svg, record::kFileMode).has_value();
}

void print_end(const record::RunRecord& record, const record::RunDir& run, int attempt, bool plotted) {
  std::string text =
      fmt::format("\n{}: {}\n", record::status_name(record.status), base::visible(record.verdict));
  if (record.metrics) {
    for (const plan::Utilization& utilization : record.metrics->utilization)
      text += fmt::format("  utilization {}\n", to_string(utilization));
  }
  text += fmt::format("  output      {}/rank_*\n", run.attempt(attempt));
  text += fmt::format("  record      {}\n", run.record_json());
  if (::access(run.launch_trace(attempt).c_str(), F_OK) == 0)
    text += fmt::format("  launch      {}\n", run.launch_trace(attempt));
  if (plotted) text += fmt::format("  loss curve  {}/loss.svg\n", run.root);
  if (record.metrics && !record.metrics->checkpoint.empty())
    text += fmt::format("  checkpoint  {}\n", record.metrics->checkpoint);
  if (record.status == record::RunStatus::kPreempted)
    text += fmt::format("  resume      shardrun resume {}\n", run.root);
  print_lines(text);
}

std::unique_ptr<Scheduler> make_scheduler(const std::string& name) {
  if (name == "slurm") return make_slurm_scheduler();
  return name == "mpirun" ? make_mpirun_scheduler() : make_local_scheduler();
}

// Keeps other runs out of a checkpoint directory that the job names itself, while it runs.
Result<CheckpointHold> hold_checkpoints(const Prepared& job) {
  if (job.spec.checkpoint.directory.empty()) return CheckpointHold();
  return CheckpointHold::take(contract::checkpoint_directory(job.spec, job.plan), job.plan,
                              [](const LockHolder& holder) {
                                if (holder.slurm_job.empty() || holder.slurm_job == "-") return false;
                                const auto known = find_job(holder.slurm_job);
                                return known && (!*known || is_end_of_job((*known)->state));
                              });
}

// What follows from the spec alone is asked, without the programs' own part: a job that fits is never warned of.
void warn_of_memory(const Prepared& job) {
  if (job.plan.scheduler != "local" || job.spec.program.trainer.empty()) return;
  const auto model = plan::job_memory(job.spec, job.plan.batch, rank_place(job.plan));
  if (!model) return;
  if (auto fits = fits_in_memory(model->memory, job.plan.world_size(), base::usable_memory_bytes()); !fits)
    warn({fits.error().message() + ", so the kernel may kill it; `shardrun plan` says what it holds"});
}

// Returns what a rank of the job was to hold, in bytes.
std::optional<int64_t> predicted_memory_bytes(const Prepared& job) {
  const auto model = plan::job_memory(job.spec, job.plan.batch, measured_place(job.spec, job.plan));
  return model ? std::optional(model->memory.total()) : std::nullopt;
}

// Returns the job that Slurm is to start again: of an array its element alone, whose last one has the number of the whole array as
// its SLURM_JOB_ID. A job that was submitted from within an element of another array has that one's variables, too.
std::string own_slurm_job() {
  const std::string job = std::getenv("SLURM_JOB_ID");
  const char *array = std::getenv("SLURM_ARRAY_JOB_ID"), *task = std::getenv("SLURM_ARRAY_TASK_ID");
  return array != nullptr && task != nullptr && job == array ? fmt::format("{}_{}", array, task) : job;
}

Result<int> conduct_and_show(const Prepared& job, const RunOptions& options, const CommonOptions& common,
                             double launch_time, const StopSignals& signals) {
  ConductRequest request;
  request.spec = &job.spec;
  request.spec_text = job.text;
  request.plan = job.plan;
  if (options.trace) request.plan.trace_launch = true;
  request.stop_fd = signals.fd();
  request.launch_time = launch_time;
  if (!job.spec.program.trainer.empty()) {
    if (job.spec.resources.device == spec::DeviceKind::kCpu)
      request.predicted_memory_bytes = [&job] { return predicted_memory_bytes(job); };
    request.predicted = predict_run(job.spec, job.plan);
    if (!options.quiet && !common.json && request.predicted->step_seconds)
      print_lines(fmt::format("predicted  {}; from {}\n", record::step_text(*request.predicted),
                              base::visible(record::basis_text(*request.predicted))));
    request.peak_of_device = [&](const std::string& device) { return peak_of_device(job.spec, device); };
  }
  const bool quiet = options.quiet || common.json;
  Viewer viewer;
  record::RunDir run{job.plan.run_directory};
  int attempt = 0;
  request.on_start = [&](const record::RunDir& directory, int number) {
    attempt = number;
    point_latest(directory);
    if (!quiet) viewer.start(directory, job.spec.program.command.empty() ? job.spec.optimizer.steps : 0);
  };
  if (job.plan.scheduler == "slurm") {
    request.requeue = [&](const std::vector<std::string>& avoid) {
      return requeue_job(own_slurm_job(), job.spec, avoid);
    };
    // A node of the allocation is like the next.
    if (job.spec.program.command.empty()) {
      const auto memory = node_memory_bytes(contract::process_environment(), machine_memory_bytes());
      request.check_plan = [&, memory](const record::LaunchPlan& plan) -> Result<void> {
        ASSIGN_OR_RETURN(auto model, plan::job_memory(job.spec, plan.batch, measured_place(job.spec, plan)));
        return fits_in_memory(model.memory, plan.ranks_per_node, memory);
      };
    }
  }
  request.take_over = !options.attach.empty();
  const std::unique_ptr<Scheduler> scheduler = make_scheduler(job.plan.scheduler);
  ASSIGN_OR_RETURN(auto hold, hold_checkpoints(job));
  auto record = conduct(*scheduler, request);
  viewer.stop();
  if (!record) return record.error();
  const bool plotted = write_plot(run, job.spec);
  if (common.json) {
    print_lines(to_json(*record));
  } else {
    print_end(*record, run, attempt, plotted);
  }
  return record->exit_code;
}

// Makes the [export] of a job whose last step is done, as `shardrun export` does. Returns the exit code to end with.
Result<int> export_model(const Prepared& job, const Installation& installed, const CommonOptions& common,
                         const StopSignals& signals) {
  const spec::ExportSpec& wanted = job.spec.exported;
  if (wanted.directory.empty()) return contract::kExitDone;
  const fs::path here = job.plan.working_directory;
  std::vector<std::string> argv{
      installed.shardrun_program,         "export",  job.plan.run_directory, "--output",
      (here / wanted.directory).string(), "--dtype", name_of(wanted.dtype)};
  if (wanted.adapter) argv.emplace_back("--adapter");
  if (wanted.gguf) argv.emplace_back("--gguf");
  if (!wanted.push.empty()) argv.insert(argv.end(), {"--push", wanted.push});
  if (job.spec.evaluation.keep_best) argv.emplace_back("--best");
  return run_child_program(argv, signals.fd(), common.json);
}

}  // namespace

Result<int> run(const RunOptions& options, const CommonOptions& common) {
  const double launch_time = base::unix_now();
  ASSIGN_OR_RETURN(auto installed, find_installation());
  const bool attaches = !options.attach.empty();
  ASSIGN_OR_RETURN(auto job, attaches ? prepare_attached(options.attach, common)
                             : options.run_directory.empty()
                                 ? prepare_new(options, installed)
                                 : prepare_existing(options.run_directory, options.id));
  if (!attaches) {
    ASSIGN_OR_RETURN(auto warnings, check_launch(job.spec, job.plan, options.dry_run));
    warn(warnings);
    if (options.dry_run) return dry_run(job, options, common, installed);
    if (job.plan.scheduler == "slurm" && !inside_allocation())
      return run_through_salloc(job.spec, options, installed, common);
    warn_of_memory(job);
  }
  RETURN_IF_ERROR(raise_own_limits(job.plan));
  if (!attaches) RETURN_IF_ERROR(work_in_snapshot(job));
  ASSIGN_OR_RETURN(auto signals, StopSignals::block());
  ::signal(SIGPIPE, SIG_IGN);  // a run does not end because nobody reads its lines any more
  if (!attaches && needs_compile_job(job)) {
    ASSIGN_OR_RETURN(auto cache, contract::compile_cache_folder(job.spec, job.plan.working_directory));
    RETURN_IF_ERROR(prepare_cache(job.spec, cache));
    ASSIGN_OR_RETURN(const int compiled, compile_first({job.spec, job.text}, job.plan, installed, signals,
                                                       options.quiet || common.json, common.json));
    if (compiled != contract::kExitDone) return compiled;
  }
  ASSIGN_OR_RETURN(const int code, conduct_and_show(job, options, common, launch_time, signals));
  return code == contract::kExitDone ? export_model(job, installed, common, signals) : code;
}

void add_run(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Run a job here: on this machine, or on this Slurm allocation");
  add_job(*verb, options.job);
  verb->add_option("--run-directory", options.run_directory, "Start what `submit` prepared")->group("");
  auto* attach = verb->add_option("--attach", options.attach,
                                  "Take over RUN, whose conductor died and whose ranks run on")
                     ->type_name("RUN");
  auto* dry_run = verb->add_flag("--dry-run", options.dry_run, "Print what would be run; start nothing");
  attach->excludes(dry_run)->excludes(verb->get_option("spec"));  // it is there already
  verb->add_flag("--quiet", options.quiet, "Show only the end");
  verb->add_flag("--trace", options.trace, "Write what the launch did when, for ui.perfetto.dev")
      ->excludes(attach);
  add_common(*verb, line, true);
  verb->footer(
      "Example:\n  shardrun run jobs/tiny-llama.toml --set optimizer.steps=50\n"
      "  shardrun run -n 2 -- python3 train.py\n"
      "  shardrun run --trace -n 8 -- true");
  verb->callback([&] {
    options.job.command = line.behind_dashes;
    line.end(run(options, line.common));
  });
}

}  // namespace shardrun::launcher

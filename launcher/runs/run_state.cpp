#include "launcher/runs/run_state.h"

#include <functional>

#include <fmt/format.h>

#include "launcher/agent/conductor_lock.h"
#include "launcher/cluster/load_job.h"
#include "launcher/schedule/slurm/refusals.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/view/growing_text.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/contract/exit_code.h"
#include "runtime/record/exit_lines.h"

namespace shardrun::launcher {

using record::RunRecord;
using record::RunStatus;

namespace {

constexpr const char* kInterrupted = "interrupted";

// Says whether a later job goes on in the run directory, which has not written a record yet.
bool is_of_an_earlier_job(const RunState& state) {
  return state.plan.scheduler == "slurm" && state.record && state.record->id != state.plan.id;
}

using AskSlurm = std::function<base::Result<std::optional<SlurmJob>>(const std::string& id)>;

void ask_about(RunState& state, const AskSlurm& ask) {
  auto job = ask(state.plan.id);
  if (!job) {
    // Where there is no Slurm to ask, what the folder says is all there is to know.
    if (!is_of_no_cluster(job.error())) state.unanswered = job.error().to_string();
    return;
  }
  if (*job) {
    state.status = base::lower_case((*job)->state);
    if (const std::string& reason = (*job)->reason; !reason.empty()) {
      const std::string meaning = meaning_of_reason(reason);
      state.status += fmt::format(" ({}{}{})", reason, meaning.empty() ? "" : ": ", meaning);
    }
  } else if (!state.record || state.record->status == RunStatus::kRunning) {
    state.status = kInterrupted;
  }
}

// The record of a run that never started because its compile job did not end well; nullopt when that is not so.
std::optional<RunRecord> blocked_by_compile_job(const record::LaunchPlan& plan) {
  if (plan.precompile_run.empty()) return std::nullopt;
  const auto compile = record::read_record({plan.precompile_run});
  if (!compile || compile->status == RunStatus::kRunning || compile->status == RunStatus::kCompleted)
    return std::nullopt;
  RunRecord record;
  record.name = plan.name;
  record.id = plan.id;
  record.scheduler = plan.scheduler;
  record.status = RunStatus::kRefused;
  record.exit_code = contract::kExitRefused;
  record.verdict = fmt::format("not started, because its compile job {} ended so: {} (see {})", compile->id,
                               compile->verdict, plan.precompile_run);
  record.world_size = plan.world_size();
  record.batch = plan.batch;
  record.precompile = record::PrecompileNote{plan.precompile_run, std::nullopt};
  return record;
}

std::vector<record::RankExit> exits_of(const record::RunDir& run, int attempt, int world_size) {
  std::vector<record::RankExit> exits;
  for (const auto& [rank, exit] : record::read_rank_exits(run, attempt))
    if (rank >= 0 && rank < world_size) exits.push_back(exit);
  return exits;
}

// Reads the record once more of a run that nothing runs of any more, for it may have ended just now; says whether it had.
bool reads_its_end(const record::RunDir& run, RunState& state) {
  auto record = find_record(run);
  if (!record || record->status == RunStatus::kRunning) return false;
  state.record = std::move(record).value();
  state.status = record::status_name(state.record->status);
  return true;
}

// Returns what there is to do while ranks may still wait for another conductor, which nobody but they know; "" where they end
// with theirs.
std::string attach_hint(const record::RunDir& run, const RunState& state) {
  const auto job = load_prepared_spec(run.job_toml(), state.plan.overrides);
  if (!job || state.record->attempts.empty()) return "";
  const auto patience = job->spec.fault_tolerance.conductor_timeout;
  const int world_size = state.plan.world_size();
  const auto ended = exits_of(run, state.record->attempts.back().number, world_size);
  if (patience.count() == 0 || ended.size() == static_cast<size_t>(world_size)) return "";
  return fmt::format("; its ranks wait {} s for another: `shardrun run --attach {}`", patience.count(),
                     run.root);
}

// Says in the state that a run whose record still says "running" has lost its conductor, which can be told on this
// machine alone.
void note_lost_conductor(const record::RunDir& run, RunState& state) {
  const auto holder = read_holder(run);
  const bool nobody = !holder && holder.error().code() == base::Code::kNotFound;
  if (!nobody && !(holder && life_of(*holder) == Life::kGone)) return;
  if (reads_its_end(run, state)) return;  // the record is written before the lock is removed
  state.status = kInterrupted;
  state.record->verdict = nobody ? "interrupted: its conductor ended without a record"
                                 : fmt::format("interrupted: its conductor, {}, is gone{}", describe(*holder),
                                               attach_hint(run, state));
}

// As look_at(); without `ask`, Slurm is not asked.
base::Result<RunState> look_with(const record::RunDir& run, const AskSlurm& ask) {
  RunState state;
  ASSIGN_OR_RETURN(state.plan, read_plan(run));
  auto record = find_record(run);
  // A run without one has not begun; one that cannot be read is not one that is not there.
  if (!record && record.error().code() != base::Code::kNotFound) return std::move(record).error();
  if (record) state.record = std::move(record).value();
  state.status = state.record ? record::status_name(state.record->status) : "not started";
  const bool open = !state.record || state.record->status == RunStatus::kRunning ||
                    state.record->status == RunStatus::kPreempted || is_of_an_earlier_job(state);
  if (state.plan.scheduler == "slurm") {
    if (open && ask) {
      ask_about(state, ask);
      const bool unended = !state.record || state.record->status == RunStatus::kRunning;
      if (unended && is_over(state)) reads_its_end(run, state);  // it is written before Slurm's job ends
    }
    // The job may outlive the conductor that ran in it: an allocation is a person's. Who holds the run has to be seen: another
    // node's file may not be here yet.
    const bool runs = state.record && state.record->status == RunStatus::kRunning;
    if (runs && state.status.starts_with("running") && read_holder(run)) note_lost_conductor(run, state);
  } else if (state.record && state.record->status == RunStatus::kRunning) {
    note_lost_conductor(run, state);
  }
  return state;
}

}  // namespace

base::Result<RunRecord> find_record(const record::RunDir& run) {
  auto record = read_record(run);
  if (record) return record;
  if (auto plan = read_plan(run)) {
    if (auto blocked = blocked_by_compile_job(*plan)) return std::move(*blocked);
  }
  return record;
}

base::Result<RunState> look_at(const record::RunDir& run, bool ask_slurm) {
  return look_with(run, ask_slurm ? [](const std::string& id) { return find_job(id); } : AskSlurm());
}

base::Result<RunState> RunsLook::at(const record::RunDir& run) {
  return look_with(run, [this](const std::string& id) -> base::Result<std::optional<SlurmJob>> {
    if (!known_) known_ = known_jobs(goes_on_);
    if (!*known_ && known_->error().code() == base::Code::kNotFound)
      return find_job(id, goes_on_);  // no squeue here
    if (!*known_) return known_->error();
    if (!is_known(**known_, id)) return std::optional<SlurmJob>();
    auto job = find_job(id, goes_on_);
    if (!job) known_ = job.error();  // it is not waited for once more
    return job;
  });
}

std::string RunsLook::unanswered() const {
  if (!known_ || *known_ || known_->error().code() == base::Code::kNotFound) return "";
  return fmt::format(
      "Slurm does not answer, so what stands here of its runs that have not ended is what their folders say: "
      "{}",
      known_->error().to_string());
}

bool is_over(const RunState& state) {
  for (const char* in_slurm : {"pending", "running", "requeued", "suspended", "configuring", "completing"})
    if (state.status.starts_with(in_slurm)) return false;
  if (state.status.starts_with(kInterrupted)) return true;
  if (!state.unanswered.empty()) return false;
  return (state.record && state.record->status != RunStatus::kRunning) || is_end_of_job(state.status);
}

int exit_code_of(const RunState& state) {
  if (!state.record || state.record->status == RunStatus::kRunning) return contract::kExitInfrastructure;
  return state.record->exit_code;
}

std::string end_line(const RunState& state) {
  if (state.record && state.record->status != RunStatus::kRunning) {
    std::string ended =
        fmt::format("{}: {}", record::status_name(state.record->status), state.record->verdict);
    if (state.record->status == RunStatus::kPreempted)
      ended += fmt::format("; go on with `shardrun resume {}`", state.plan.run_directory);
    return ended;
  }
  if (state.record && state.record->verdict.starts_with(kInterrupted)) return state.record->verdict;
  std::string line =
      fmt::format("{}: {}", state.status, state.record ? "it ended without a verdict" : "it never started");
  if (state.status.find("unch") != std::string::npos)  // JobLaunchFailure, launch failed requeued held
    line += fmt::format("; do the nodes see {} and {}? slurmd's log on the node has the reason",
                        state.plan.working_directory, state.plan.run_directory);
  return line;
}

std::string status_and_code(const RunState& state) {
  if (!state.record || state.record->status == RunStatus::kRunning) return state.status;
  return fmt::format("{}, exit code {}", record::status_name(state.record->status), state.record->exit_code);
}

void say_unanswered(const RunState& state) {
  if (!state.unanswered.empty())
    warn({fmt::format("Slurm does not answer, so what stands here of {} is what its folder says: {}",
                      state.plan.id, state.unanswered)});
}

base::Error not_started(const RunState& state) {
  const std::string run_text = fmt::format("{} {}", state.plan.name, state.plan.id);
  if (is_over(state))
    return base::Error(base::Code::kNotFound, fmt::format("{}: {}", run_text, end_line(state)));
  if (!state.unanswered.empty())
    return base::Error(base::Code::kTimeout,
                       fmt::format("{} has left no record, and Slurm does not answer: {}; "
                                   "look again when `squeue` answers",
                                   run_text, state.unanswered));
  return base::Error(base::Code::kNotFound,
                     fmt::format("{} has not started: {}; follow it with `shardrun logs -f {}`", run_text,
                                 state.status, state.plan.id));
}

base::Result<RunState> RunWatcher::look(const std::function<bool()>& goes_on) {
  const auto now = std::chrono::steady_clock::now();
  if (answered_ && now - *answered_ < std::chrono::duration<double>(kSlurmSeconds)) return glance();
  auto state = look_with(run_, [&](const std::string& id) { return find_job(id, goes_on); });
  if (!state) return state;
  // Counted from its end: who is given up after half a minute would otherwise be asked again at once.
  answered_ = std::chrono::steady_clock::now();
  slurm_status_ = state->status;
  unanswered_ = state->unanswered;
  return state;
}

base::Result<RunState> RunWatcher::glance() const {
  auto state = look_at(run_, /*ask_slurm=*/false);
  if (!state) return state;
  const bool waits =
      state->plan.scheduler == "slurm" &&
      (!state->record || state->record->status == RunStatus::kPreempted || is_of_an_earlier_job(*state));
  if (waits && answered_) state->status = slurm_status_;
  if (waits) state->unanswered = answered_ ? unanswered_ : "it has not answered yet";
  return state;
}

TrainingCurve read_curve(const record::RunDir& run) {
  TrainingCurve curve;
  each_piece(run.metrics_jsonl(), [&](std::string_view lines) { add_metrics(lines, curve); });
  return curve;
}

std::vector<double> read_outline(const record::RunDir& run) {
  TrainingCurve curve;
  each_sample(run.metrics_jsonl(), /*most_bytes=*/4 << 20,
              [&](std::string_view lines) { add_metrics(lines, curve); });
  std::vector<double> losses;
  for (const StepPoint& point : curve.steps) losses.push_back(point.loss);
  return losses;
}

std::optional<StepPoint> read_last_step(const record::RunDir& run) {
  GrowingText file;
  TrainingCurve end;
  file.skip_to_last(run.metrics_jsonl(), /*bytes=*/64 << 10);
  add_metrics(file.take_new(run.metrics_jsonl(), /*to_the_end=*/false), end);
  return end.steps.empty() ? std::nullopt : std::optional(end.steps.back());
}

TimelineSources timeline_sources(const record::RunDir& run, RunState state) {
  TimelineSources sources;
  sources.status = status_and_code(state);
  sources.record = *std::move(state.record);
  each_piece(run.events_jsonl(), [&](std::string_view lines) { sources.events.add(lines); });
  each_piece(run.metrics_jsonl(), [&](std::string_view lines) { sources.training.add(lines); });
  for (const record::Attempt& attempt : sources.record.attempts) {
    const int world_size = attempt.world_size > 0 ? attempt.world_size : sources.record.world_size;
    sources.exits.push_back(exits_of(run, attempt.number, world_size));
  }
  return sources;
}

}  // namespace shardrun::launcher

#include "launcher/agent/conductor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/agent/attached_ranks.h"
#include "launcher/agent/events.h"
#include "launcher/agent/launch_trace.h"
#include "launcher/agent/muster.h"
#include "launcher/agent/output_limit.h"
#include "launcher/agent/rank_exits.h"
#include "launcher/agent/restart.h"
#include "launcher/agent/run_directory.h"
#include "launcher/agent/verdict.h"
#include "launcher/gate/gate.h"
#include "launcher/plan/batch.h"
#include "launcher/watch/watch.h"
#include "runtime/base/io.h"
#include "runtime/base/say.h"
#include "runtime/base/text.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/epoch.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/master_port.h"
#include "runtime/contract/rank_job.h"
#include "runtime/record/exit_lines.h"
#include "runtime/record/line_metrics.h"
#include "runtime/record/results.h"
#include "runtime/record/run_lines.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using record::RankExit;
using record::RunRecord;
using record::RunStatus;

void tell(std::string_view line) {
  base::say(STDERR_FILENO, fmt::format("shardrun: {}\n", line));
}

// Returns what is known of the compile job that went before.
std::optional<record::PrecompileNote> precompile_note(const record::LaunchPlan& plan) {
  if (plan.precompile_run.empty()) return std::nullopt;
  record::PrecompileNote note{plan.precompile_run, std::nullopt};
  const auto record = record::read_record({plan.precompile_run});
  if (record && !record->attempts.empty() && record->attempts.back().ended)
    note.seconds = *record->attempts.back().ended - record->attempts.back().started;
  return note;
}

// Returns the attempts of this run before the next one.
std::vector<record::Attempt> attempts_so_far(const record::RunDir& paths) {
  auto record = read_record(paths);
  return record ? std::move(record->attempts) : std::vector<record::Attempt>{};
}

RunRecord begin_record(const ConductRequest& request, const record::RunDir& paths, int number) {
  RunRecord record;
  record.attempts = attempts_so_far(paths);
  const record::LaunchPlan& plan = request.plan;
  record.name = plan.name;
  record.id = plan.id;
  record.scheduler = plan.scheduler;
  record.verdict = "running";
  record.precompile = precompile_note(plan);
  record.predicted = request.predicted;
  record.versions["shardrun"] = SHARDRUN_VERSION;
  record::Attempt attempt;
  attempt.number = number;
  attempt.started = base::unix_now();
  record.attempts.push_back(attempt);
  return record;
}

void apply_verdict(RunRecord& record, Verdict verdict) {
  record.status = verdict.status;
  record.verdict = std::move(verdict.line);
  record.exit_code = verdict.exit_code;
  record.attempts.back().ended = base::unix_now();
  record.attempts.back().verdict = record.verdict;
  record.attempts.back().first_cause = std::move(verdict.first_cause);
}

Verdict could_not_start(const Error& error) {
  Verdict verdict;
  const bool refused = error.code() == Code::kRefused;
  verdict.status = refused ? RunStatus::kRefused : RunStatus::kFailed;
  verdict.exit_code = refused                          ? contract::kExitRefused
                      : error.code() == Code::kInvalid ? contract::kExitBadInput
                                                       : contract::kExitInfrastructure;
  verdict.line = "the ranks could not be started: " + error.to_string();
  verdict.first_cause = record::FirstCause{refused ? "refused" : "scheduler", "", {}, {}, {}};
  return verdict;
}

// The trainer knows the name of its device, the request what that device can do.
std::vector<plan::PeakRate> peaks_of(const RunRecord& record, const ConductRequest& request) {
  std::vector<plan::PeakRate> peaks;
  if (record.predicted) peaks = record.predicted->peaks;
  const auto has_datasheet = [](const plan::PeakRate& peak) { return peak.kind == "datasheet"; };
  const auto device = record.metrics->versions.find("device");
  if (!request.peak_of_device || device == record.metrics->versions.end() ||
      std::any_of(peaks.begin(), peaks.end(), has_datasheet))
    return peaks;
  if (auto peak = request.peak_of_device(device->second)) peaks.push_back(std::move(*peak));
  return peaks;
}

void fill_metrics(RunRecord& record, const ConductRequest& request, const record::RunDir& paths, int attempt,
                  const std::vector<RankExit>& exits) {
  for (const RankExit& exit : exits) {
    if (exit.peak_memory_bytes <= 0 || exit.global_rank < 0 || exit.global_rank >= record.world_size)
      continue;
    const auto rank = static_cast<size_t>(exit.global_rank);
    record.peak_memory_bytes.resize(record.world_size);
    record.peak_memory_bytes[rank] = exit.peak_memory_bytes;
  }
  const auto text = base::read_file(paths.summary_json(attempt));
  if (!text) return;
  auto metrics = record::parse_training_metrics(*text);
  if (!metrics) return;
  record.versions.insert(metrics->versions.begin(), metrics->versions.end());
  record.metrics = std::move(*metrics);
  if (attempt > 0) {  // the trainer knows the steps of its own attempt
    const auto whole = record::metrics_of_lines(record::first_lines(paths.metrics_jsonl()));
    if (whole && whole->first_loss) record.metrics->first_loss = whole->first_loss;
  }
  record.metrics->utilization =
      plan::utilizations(record.metrics->tokens_per_second, record.metrics->flops_per_token,
                         peaks_of(record, request), record.world_size);
}

// The end of a run is told even when the disk does not take its record. An attempt that another has replaced since
// then has nothing to tell.
void write_end(const RunRecord& record, const spec::JobSpec& job, const RunDirectory& directory) {
  const record::RunDir& paths = directory.paths();
  for (const auto& [path, text] : {std::pair(paths.record_json(), to_json(record)),
                                   std::pair(paths.results_json(), record::to_results_json(record, &job))}) {
    if (auto written = directory.publish(path, text, base::Durability::kPowerLoss); !written) {
      tell(written.error().to_string());
    }
  }
}

struct Attempt {
  record::RunDir paths;
  int number = 0;
  std::vector<std::string> nodes;
  record::LaunchPlan plan;
  bool is_taken_over = false;  // its ranks run already
};

WatchOptions watch_options(const ConductRequest& request, const Attempt& attempt) {
  const spec::FaultToleranceSpec& faults = request.spec->fault_tolerance;
  WatchOptions options;
  options.policy.trainer = request.spec->program.command.empty();
  options.policy.node_timeout_seconds = static_cast<double>(faults.node_timeout.count());
  if (faults.hang_timeout)
    options.policy.hang_timeout_seconds = static_cast<double>(faults.hang_timeout->count());
  options.policy.slow_phase_seconds = static_cast<double>(request.spec->communication.timeout.count());
  options.place_path = attempt.paths.watch_json(attempt.number);
  options.this_machine_only = options.policy.all_reach_us = request.plan.scheduler == "local";
  if (attempt.is_taken_over) {  // its ranks reached the conductor before us, on the same machine
    options.policy.return_seconds = return_seconds(faults);
    options.policy.all_reach_us = true;
  }
  // mpirun's host file may name a node otherwise than the node itself, whose name its file has.
  const bool is_named_so = request.plan.scheduler != "mpirun";
  options.ended = [paths = attempt.paths, number = attempt.number,
                   is_named_so](const std::set<std::string>& nodes) {
    std::set<int> ranks;
    for (const auto& [rank, exit] :
         is_named_so ? record::read_rank_exits(paths, number, nodes) : record::read_rank_exits(paths, number))
      ranks.insert(rank);
    return ranks;
  };
  for (int rank = 0; rank < attempt.plan.world_size(); ++rank) {
    const auto index = static_cast<size_t>(rank / attempt.plan.ranks_per_node);
    options.rank_nodes.push_back(attempt.nodes.size() > index ? attempt.nodes[index] : attempt.nodes.front());
  }
  return options;
}

// Returns the step of the attempt, which must outlive it, except for who raises its alarm.
Result<StepRequest> step_of(const ConductRequest& request, const Attempt& attempt) {
  const auto seed = static_cast<uint64_t>(::getpid()) * 1000 + static_cast<uint64_t>(attempt.number);
  ASSIGN_OR_RETURN(auto port, contract::choose_port(contract::ephemeral_ports(), seed, contract::can_bind));
  StepRequest step;
  step.spec = request.spec;
  step.plan = &attempt.plan;
  step.attempt = attempt.number;
  step.nodes = attempt.nodes;
  step.master_addr = contract::master_address(attempt.nodes.size(), attempt.nodes.front());
  step.master_port = port;
  step.launch_time = request.launch_time;
  step.stop_fd = request.stop_fd;
  return step;
}

// Is the verdict when too few nodes are left to begin.
Verdict failed_preflight(const GateOutcome& gate) {
  const record::ExcludedNode& first = gate.note.excluded.front();
  Verdict verdict;
  verdict.line = excluded_words(gate.note);
  if (gate.is_everywhere) {
    verdict.status = RunStatus::kRefused;
    verdict.exit_code = contract::kExitRefused;
    verdict.line += "; it is the same on every node";
    verdict.first_cause = record::FirstCause{"refused", "", {}, {}, {}};
  } else {
    verdict.exit_code = contract::kExitInfrastructure;
    verdict.first_cause = record::FirstCause{"preflight", first.node, {}, {}, {}};
  }
  return verdict;
}

// Nodes on which the scheduler could not start ranks are lost, unless they are more than half: then the fault is
// more likely on our side. Nobody has heard of their ranks, so the watch says nothing.
void note_unreachable(const std::vector<std::string>& nodes, const Attempt& attempt, VerdictInput& input,
                      record::Attempt& noted) {
  if (nodes.empty() || input.finding || 2 * nodes.size() > attempt.nodes.size()) return;
  noted.also_lost.assign(nodes.begin() + 1, nodes.end());
  std::string line = fmt::format("node {} is lost: no rank could be started on it", nodes.front());
  if (!noted.also_lost.empty()) line += fmt::format(", nor on {}", fmt::join(noted.also_lost, ", "));
  input.finding = WatchFinding{"node_lost", nodes.front(), {}, line, /*detected=*/0.0};
}

Verdict run_attempt(Scheduler& scheduler, const ConductRequest& request, const Attempt& attempt,
                    RunRecord& record, LaunchTrace& trace) {
  auto planned = step_of(request, attempt);
  if (!planned) return could_not_start(planned.error());
  StepRequest& step = *planned;
  auto watch = Watch::start(watch_options(request, attempt));
  if (!watch) return could_not_start(watch.error());
  step.alarm_fd = (*watch)->alarm_fd();
  trace.mark("prepare_step");
  auto outcome = attempt.is_taken_over ? wait_for_ranks(**watch, step, attempt.paths) : scheduler.run(step);
  trace.mark(request.plan.scheduler == "slurm" ? "srun" : "ranks");
  (*watch)->stop();
  if (!outcome) return could_not_start(outcome.error());

  VerdictInput input;
  input.world_size = attempt.plan.world_size();
  input.exits = merge_exits(attempt.paths, attempt.number, input.world_size, *outcome);
  input.stop_signal = outcome->stop_signal;
  input.scheduler_fault = outcome->scheduler_fault;
  input.last_step = record::last_step(record::last_lines(attempt.paths.metrics_jsonl()));
  input.trainer = request.spec->program.command.empty();
  if (const auto raised = (*watch)->raised()) {
    const Alarm& alarm = raised->alarm;
    input.finding = WatchFinding{alarm.kind, alarm.node, alarm.global_rank, alarm.line, raised->detected};
    record.attempts.back().detection_seconds = raised->after_seconds;
    record.attempts.back().also_lost = alarm.also_lost;
  }
  note_unreachable(outcome->unreachable, attempt, input, record.attempts.back());
  for (const RankExit& exit : input.exits) {
    if (!exit.output_losses) continue;
    write_event(attempt.paths, attempt.number,
                {.event = "output_lost",
                 .global_rank = exit.global_rank,
                 .line = fmt::format("rank {}'s output {}", exit.global_rank, *exit.output_losses),
                 .node = exit.node});
  }
  if (const auto strangers = (*watch)->strangers(); strangers.count > 0) {
    record.attempts.back().strangers =
        fmt::format("refused {} that could not prove the attempt's key, the newest from {}",
                    base::counted(strangers.count, "connection"), strangers.newest);
    write_event(attempt.paths, attempt.number,
                {.event = "strangers", .line = record.attempts.back().strangers});
  }
  for (const Straggler& slow : (*watch)->stragglers()) {
    record.attempts.back().stragglers.push_back(
        {slow.global_rank, slow.node, slow.busy_seconds, slow.median_seconds});
  }
  if (record.predicted && !record.predicted->memory_bytes && request.predicted_memory_bytes)
    record.predicted->memory_bytes = request.predicted_memory_bytes();
  fill_metrics(record, request, attempt.paths, attempt.number, input.exits);
  if (record.metrics) input.ended_early = record.metrics->ended_early;
  Verdict verdict = judge(input);
  verdict.stop_requested = input.stop_signal.has_value();
  return verdict;
}

// Runs one run in this process: attempts, one after the other, until nothing follows.
class Conductor {
 public:
  Conductor(Scheduler& scheduler, const ConductRequest& request, RunDirectory& directory)
      : scheduler_(scheduler), request_(request), directory_(directory), paths_(directory.paths()) {}

  Result<RunRecord> run() {
    auto nodes = scheduler_.nodes(request_.plan);
    if (nodes) nodes_ = *nodes;
    // Earlier starts of the job may have had other nodes, or the same ones.
    bad_.suspects = nodes_to_avoid(attempts_so_far(paths_));
    next_ = muster_nodes();
    if (request_.take_over) {
      ASSIGN_OR_RETURN(const bool goes_on, go_on_with_lost());
      if (!goes_on) return std::move(record_);
    }
    while (true) {
      Attempt attempt;
      attempt.paths = paths_;
      RETURN_IF_ERROR(begin(attempt));
      wait_unless_stopped(pause_);  // whoever looks at the run meanwhile sees that it goes on
      trace_.mark("begin_attempt");
      std::optional<Verdict> refusal;
      if (!nodes) refusal = could_not_start(nodes.error());
      if (nodes && needs_preflight()) refusal = pass_gate(attempt);
      if (needs_preflight()) trace_.mark("preflight");
      RETURN_IF_ERROR(directory_.check_ours());
      RETURN_IF_ERROR(announce(attempt));
      if (!refusal) RETURN_IF_ERROR(fence(attempt, refusal));
      Verdict verdict =
          refusal ? std::move(*refusal) : run_attempt(scheduler_, request_, attempt, record_, trace_);
      ASSIGN_OR_RETURN(const bool goes_on, follow(attempt, std::move(verdict)));
      if (!goes_on) return std::move(record_);
    }
  }

 private:
  // Does what follows an attempt; returns whether another begins here.
  Result<bool> follow(const Attempt& attempt, Verdict verdict) {
    ASSIGN_OR_RETURN(const Decision decision, end(attempt, std::move(verdict)));
    if (decision.next == Next::kRestart) ++restarts_;
    pause_ = decision.pause;
    if (decision.next == Next::kRequeue) requeue(attempt);
    return decision.next == Next::kRestart;
  }

  // Leaves a request to stop to the step, which reads it as soon as it begins.
  void wait_unless_stopped(std::chrono::seconds pause) const {
    const auto end = std::chrono::steady_clock::now() + pause;
    for (auto left = std::chrono::milliseconds(pause); left.count() > 0;) {
      pollfd stop{.fd = request_.stop_fd, .events = POLLIN, .revents = 0};
      if (::poll(&stop, 1, static_cast<int>(left.count())) > 0) return;
      left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    }
  }

  // Waits for the ranks of the attempt that has lost its conductor; returns as follow().
  Result<bool> go_on_with_lost() {
    Attempt attempt;
    attempt.paths = paths_;
    attempt.number = directory_.attempt();
    attempt.is_taken_over = true;
    ASSIGN_OR_RETURN(record_, read_record(paths_));
    auto plan = base::read_file(paths_.attempt_plan(attempt.number));
    const bool has_ranks = ::access(paths_.watch_json(attempt.number).c_str(), F_OK) == 0;
    if (record_.attempts.empty() || record_.attempts.back().number != attempt.number ||
        record_.attempts.back().ended || !plan || !has_ranks) {
      return Error(Code::kRefused,
                   fmt::format("{}: attempt {} has no ranks to take over; `shardrun resume` starts "
                               "the run again",
                               paths_.root, attempt.number));
    }
    ASSIGN_OR_RETURN(attempt.plan, record::parse_launch_plan(*plan));
    attempt.plan.run_directory = paths_.root;
    attempt.nodes = record_.attempts.back().nodes;
    write_event(paths_, attempt.number, {.event = "taken_over", .nodes = attempt.nodes});
    if (request_.on_start) request_.on_start(paths_, attempt.number);
    return follow(attempt, run_attempt(scheduler_, request_, attempt, record_, trace_));
  }

  Result<void> begin(Attempt& attempt) {
    ASSIGN_OR_RETURN(attempt.number, directory_.begin_attempt());
    record_ = begin_record(request_, paths_, attempt.number);
    settle(attempt);
    RETURN_IF_ERROR(write_record());
    if (request_.on_start) request_.on_start(paths_, attempt.number);
    return {};
  }

  Result<Muster> muster_nodes() const {
    return muster(*request_.spec, request_.plan, nodes_, bad_, request_.check_plan);
  }

  // Gives the attempt the nodes and the plan that were mustered.
  void settle(Attempt& attempt) {
    attempt.plan = next_->plan;
    attempt.plan.rank_output_bytes =
        rank_output_bytes(request_.spec->logging, paths_, attempt.number, attempt.plan.world_size());
    record::Attempt& noted = record_.attempts.back();
    attempt.nodes = record_.nodes = noted.nodes = next_->nodes;
    record_.world_size = noted.world_size = attempt.plan.world_size();
    record_.batch = noted.batch = attempt.plan.batch;
  }

  Result<void> write_record() const {
    return directory_.publish(paths_.record_json(), to_json(record_), base::Durability::kProcess);
  }

  // Announces the attempt once its nodes are final.
  Result<void> announce(const Attempt& attempt) {
    write_event(paths_, attempt.number,
                {.event = "attempt_started",
                 .global_batch = attempt.plan.batch.global_batch,
                 .gradient_accumulation = attempt.plan.batch.gradient_accumulation,
                 .nodes = attempt.nodes,
                 .world_size = attempt.plan.world_size()});
    const auto& preflight = record_.attempts.back().preflight;
    if (!preflight) return {};
    write_event(paths_, attempt.number,
                {.event = "preflight",
                 .bytes_per_second = preflight->bytes_per_second.value_or(0.0),
                 .seconds = preflight->seconds,
                 .usual_bytes_per_second = preflight->usual_bytes_per_second.value_or(0.0),
                 .warnings = preflight->warnings});
    for (const record::ExcludedNode& node : preflight->excluded) {
      write_event(paths_, attempt.number,
                  {.event = "node_excluded", .kind = node.kind, .node = node.node, .reason = node.reason});
    }
    return write_record();
  }

  // The preflight runs once in an allocation: what fails later is found by the watch.
  bool needs_preflight() const {
    return restarts_ == 0 && spec::wants_preflight(request_.spec->fault_tolerance);
  }

  // Looks at all nodes and takes the bad ones out; returns the verdict when the attempt cannot begin.
  std::optional<Verdict> pass_gate(Attempt& attempt) {
    auto step = step_of(request_, attempt);
    if (!step) return could_not_start(step.error());
    step->nodes = nodes_;
    const int fewest = spec::fewest_nodes(request_.spec->fault_tolerance, request_.plan.nodes);
    const GateOutcome gate =
        look_at_nodes(scheduler_, *step, std::min(nodes_.size(), static_cast<size_t>(fewest)));
    record_.attempts.back().preflight = gate.note;
    if (gate.stop_signal) {
      VerdictInput input;
      input.world_size = attempt.plan.world_size();
      input.stop_signal = gate.stop_signal;
      Verdict verdict = judge(input);
      verdict.stop_requested = true;
      return verdict;
    }
    if (gate.error) return could_not_start(*gate.error);
    note_bad_nodes(record_.attempts.back(), bad_);
    next_ = muster_nodes();
    if (!next_) return failed_preflight(gate);
    settle(attempt);
    left_out_ = excluded_words(gate.note);
    return std::nullopt;
  }

  // Writes what the attempt's ranks read and takes the checkpoints from earlier attempts. The error is that of a
  // conductor that was replaced; what else goes wrong becomes the verdict.
  Result<void> fence(const Attempt& attempt, std::optional<Verdict>& refusal) {
    auto ready = base::write_file_atomically(paths_.attempt_plan(attempt.number), to_json(attempt.plan),
                                             record::kFileMode, base::Durability::kProcess);
    if (ready && request_.spec->program.command.empty()) {
      const std::string checkpoints = contract::checkpoint_directory(*request_.spec, request_.plan);
      ready = contract::fence_checkpoints(paths_, checkpoints, request_.plan.id, attempt.number);
    }
    if (!ready) refusal = could_not_start(ready.error());
    return directory_.check_ours();
  }

  // A conductor that was asleep while the run was given to others must neither judge it nor start it or queue it again.
  Result<Decision> end(const Attempt& attempt, Verdict verdict) {
    if (auto ours = directory_.check_ours(); !ours && ours.error().code() != Code::kIo) return ours.error();
    const bool stopped = verdict.stop_requested;
    record::Attempt& noted = record_.attempts.back();
    noted.checkpoint_step =
        record::last_checkpoint(record::last_lines(paths_.metrics_jsonl()), attempt.number);
    // What earlier attempts trained stays known, also where this one could not begin.
    if (!record_.metrics)
      record_.metrics = record::metrics_of_lines(record::last_lines(paths_.metrics_jsonl()));
    apply_verdict(record_, std::move(verdict));
    note_bad_nodes(noted, bad_);
    if (record_.status == RunStatus::kFailed) next_ = muster_nodes();
    if (noted.first_cause) {
      write_event(paths_, attempt.number,
                  {.event = "fault",
                   .kind = noted.first_cause->kind,
                   .line = noted.verdict,
                   .node = noted.first_cause->node});
    }
    for (const record::StragglerNote& slow : noted.stragglers) {
      write_event(paths_, attempt.number,
                  {.event = "straggler",
                   .busy_seconds = slow.busy_seconds,
                   .global_rank = slow.global_rank,
                   .median_seconds = slow.median_seconds,
                   .node = slow.node});
    }
    RestartInput input;
    input.status = record_.status;
    input.exit_code = record_.exit_code;
    input.stop_requested = stopped;
    input.out_of_memory = noted.first_cause && noted.first_cause->kind == "out_of_memory";
    input.restarts_here = restarts_;
    if (!next_) input.too_few = next_.error().message();
    input.can_requeue = static_cast<bool>(request_.requeue);
    for (const record::Attempt& one : record_.attempts) {
      input.checkpoints.push_back(one.checkpoint_step);
      const bool by_scheduler = one.first_cause && one.first_cause->kind == "scheduler";
      input.scheduler_faults = by_scheduler ? input.scheduler_faults + 1 : 0;
    }
    Decision decision = decide(input, request_.spec->fault_tolerance);
    if (!left_out_.empty()) record_.verdict += "; " + left_out_ + ", and was left out";
    if (attempt.plan.nodes < request_.plan.nodes)
      record_.verdict += fmt::format("; it had {} of {} nodes", attempt.plan.nodes, request_.plan.nodes);
    if (decision.next == Next::kRestart && next_->plan.nodes != attempt.plan.nodes) {
      record_.verdict += fmt::format("; it goes on with {} of {} nodes: {}", next_->plan.nodes,
                                     request_.plan.nodes, describe_batch(next_->plan.batch));
    }
    if (!decision.why.empty()) record_.verdict += "; " + decision.why;
    constexpr const char* kWords[] = {"stop", "restart", "requeue"};
    write_event(paths_, attempt.number,
                {.event = "attempt_ended",
                 .exit_code = record_.exit_code,
                 .next = kWords[static_cast<int>(decision.next)],
                 .status = record::status_name(record_.status),
                 .verdict = record_.verdict});
    if (decision.next == Next::kRestart) {
      const auto pause = decision.pause.count();
      tell(fmt::format("attempt {}: {}; starting again{}", attempt.number, record_.verdict,
                       pause > 0 ? fmt::format(" in {} s", pause) : ""));
    }
    write_end(record_, *request_.spec, directory_);
    write_trace(attempt);
    return decision;
  }

  void write_trace(const Attempt& attempt) {
    if (!request_.plan.trace_launch.value_or(false)) return;
    trace_.mark("judge");
    if (auto written = trace_.write(paths_, attempt.number, attempt.nodes); !written)
      tell(written.error().to_string());
  }

  void requeue(const Attempt& attempt) {
    const bool fault = record_.status == RunStatus::kFailed;
    if (fault) {
      record_.status = RunStatus::kPreempted;
      record_.exit_code = contract::kExitPreempted;
      record_.verdict += "; queued again";
      write_end(record_, *request_.spec, directory_);  // Slurm ends us soon after it answers
    }
    auto queued = request_.requeue(nodes_to_avoid(record_.attempts));
    if (!queued) {
      if (fault) {
        record_.status = RunStatus::kFailed;
        record_.exit_code = contract::kExitInfrastructure;
      }
      record_.verdict += "; it could not be queued again: " + queued.error().to_string();
      write_end(record_, *request_.spec, directory_);
    } else if (!queued->empty()) {
      record_.verdict += "; " + *queued;
      write_event(paths_, attempt.number, {.event = "queued_again", .line = *queued});
      write_end(record_, *request_.spec, directory_);
    }
  }

  Scheduler& scheduler_;
  const ConductRequest& request_;
  RunDirectory& directory_;
  const record::RunDir& paths_;
  std::vector<std::string> nodes_;  // those of the allocation
  BadNodes bad_;
  Result<Muster> next_ = Muster{};  // for the next attempt
  std::chrono::seconds pause_{};    // before the next attempt's ranks
  int restarts_ = 0;
  std::string left_out_;  // for the verdict: which nodes the gate took out
  RunRecord record_;
  LaunchTrace trace_{request_.launch_time};
};

}  // namespace

Result<RunRecord> conduct(Scheduler& scheduler, const ConductRequest& request) {
  ASSIGN_OR_RETURN(auto directory, request.take_over
                                       ? RunDirectory::take_over(request.plan, request.spec_text)
                                       : RunDirectory::claim(request.plan, request.spec_text));
  return Conductor(scheduler, request, directory).run();
}

}  // namespace shardrun::launcher

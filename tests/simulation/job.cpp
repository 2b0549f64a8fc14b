#include "tests/simulation/job.h"

#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "runtime/contract/epoch.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/rank_job.h"
#include "runtime/record/exit_lines.h"
#include "runtime/trainer/checkpoint/store.h"
#include "runtime/trainer/train/metrics.h"
#include "tests/simulation/unwatched.h"

namespace shardrun::simulation {
namespace {

using base::Code;
using base::Error;
using base::Result;
using checkpoint::Manifest;
using checkpoint::Store;

constexpr const char* kRunId = "1";
constexpr int kKeptCheckpoints = 2;
constexpr int64_t kElements = 64;
constexpr const char* kSpecText = "name = \"job\"\n";

// The state of a rank: after step n element e of the model is 1000 n + e.
struct State {
  explicit State(int rank) : shard(rank) {
    block.name = "block";
    model::ParameterInfo info;
    info.name = "block.weight";
    info.shape = {kElements};
    block.parameters = {info};
    block.elements = kElements;
    const std::array<int64_t, 1> elements{kElements};
    layout = plan::make_layout(elements, kRanks);
    for (auto* tensor : {&master, &moment1, &moment2})
      tensor->assign(static_cast<size_t>(layout.flat_shard_elements), 0.0F);
  }

  void set(int64_t step) {
    const plan::ElementRange owned = layout.owned(0, shard);
    for (int64_t i = 0; i < owned.count(); ++i) {
      const auto at = static_cast<size_t>(layout.block(0).shard_offset + i);
      master[at] = static_cast<float>(1000 * step + owned.begin + i);
      moment1[at] = master[at] + 0.25F;
      moment2[at] = master[at] + 0.5F;
    }
  }
  checkpoint::ShardState view() { return {master, moment1, moment2}; }
  checkpoint::Place place() const { return {{1, kRanks, 1}, 0, shard, 0}; }
  Manifest manifest(int64_t step) const {
    Manifest made;
    made.step = step;
    made.data = {5000, 64, 1, "0badcafe"};
    made.model = "{}";
    made.spread = place().spread;
    const std::vector<std::vector<model::BlockLayout>> blocks = {{block}};
    made.blocks = checkpoint::describe_blocks(blocks);
    return made;
  }
  friend bool operator==(const State& left, const State& right) {
    return left.master == right.master && left.moment1 == right.moment1 && left.moment2 == right.moment2;
  }

  int shard;
  model::BlockLayout block;
  plan::ShardLayout layout;
  std::vector<float> master, moment1, moment2;
};

Result<void> load(const Store& store, int64_t step, State& state) {
  ASSIGN_OR_RETURN(const Manifest manifest, store.read_manifest(step));
  const checkpoint::LoadTarget target{{&state.block, 1}, state.layout, state.shard};
  return store.read_shard(manifest, target, state.view());
}

}  // namespace

// Starts ranks in the world.
class SimulatedScheduler final : public launcher::Scheduler {
 public:
  SimulatedScheduler(Job& job, Start& start, std::vector<std::string> nodes)
      : job_(job), start_(start), nodes_(std::move(nodes)) {}
  Result<std::vector<std::string>> nodes(const record::LaunchPlan&) override { return nodes_; }
  Result<launcher::StepOutcome> run(const launcher::StepRequest& step) override {
    if (start_.process->killed) return Error(Code::kCancelled, "the process is dead");
    return job_.run_crew(start_, step);
  }

 private:
  Job& job_;
  Start& start_;
  std::vector<std::string> nodes_;
};

Start& Job::start(const Identity& identity, std::vector<std::string> nodes, bool take_over) {
  starts_.push_back(std::make_unique<Start>());
  Start& made = *starts_.back();
  made.process =
      &world_.start(fmt::format("conductor{}", starts_.size() - 1), identity,
                    [this, &made, nodes = std::move(nodes), take_over] { conduct(made, nodes, take_over); });
  return made;
}

bool Job::is_completed() const {
  return std::any_of(starts_.begin(), starts_.end(), [](const auto& start) { return start->completed; });
}

Crew* Job::crew_of(const Process& process) {
  for (const auto& crew : crews_) {
    if (std::find(crew->ranks.begin(), crew->ranks.end(), &process) != crew->ranks.end()) return crew.get();
  }
  return nullptr;
}

Start* Job::start_of(const Process& process) {
  for (const auto& start : starts_) {
    if (start->process == &process) return start.get();
  }
  return nullptr;
}

void Job::conduct(Start& start, const std::vector<std::string>& nodes, bool take_over) {
  spec::JobSpec spec;
  spec.name = "job";
  spec.fault_tolerance.max_restarts = 2;
  spec.fault_tolerance.requeue = in_slurm_;
  launcher::ConductRequest request;
  request.spec = &spec;
  request.spec_text = kSpecText;
  request.plan.name = "job";
  request.plan.id = kRunId;
  request.plan.scheduler = in_slurm_ ? "slurm" : "local";
  request.plan.run_directory = kRunDirectory;
  request.plan.nodes = in_slurm_ ? kRanks : 1;
  request.plan.ranks_per_node = in_slurm_ ? 1 : kRanks;
  request.plan.batch = {2, 1, 1, 2};
  if (in_slurm_) {
    request.requeue = [&start](const std::vector<std::string>&) -> Result<std::string> {
      start.requeued = !start.process->killed;
      return std::string();
    };
  }
  request.take_over = take_over;
  taken_over = [this](const launcher::StepRequest& step) { return take_crew(step); };
  SimulatedScheduler scheduler(*this, start, nodes);
  const auto record = launcher::conduct(scheduler, request);
  if (start.process->killed) return;
  start.end = record ? record->verdict : record.error().to_string();
  world_.note("ends: " + start.end);
  start.completed = record && record->exit_code == contract::kExitDone;
  if (record) judge_verdict(*record);
}

// Whoever is named first must be one whom a fault befell.
void Job::judge_verdict(const record::RunRecord& record) {
  for (const record::Attempt& attempt : record.attempts) {
    if (!attempt.first_cause || !attempt.first_cause->global_rank) continue;
    const int rank = *attempt.first_cause->global_rank;
    if (!history_.is_to_blame(attempt.number, rank))
      history_.violation(fmt::format("the verdict of attempt {} names rank {}, which was well: {}",
                                     attempt.number, rank, attempt.verdict));
  }
}

launcher::StepOutcome Job::run_crew(Start& start, const launcher::StepRequest& step) {
  crews_.push_back(std::make_unique<Crew>());
  Crew& crew = *crews_.back();
  crew.attempt = step.attempt;
  crew.start = &start;
  history_.fence_is_up(step.attempt);
  for (int rank = 0; rank < kRanks; ++rank) {
    Identity identity = start.process->identity;
    if (in_slurm_) {
      identity.host = step.nodes[static_cast<size_t>(rank)];
      identity.client = identity.host.back() - '0';
    }
    Process& process =
        world_.start(fmt::format("rank{}of{}", rank, step.attempt), identity, [this, &crew, rank] {
          const int code = run_rank(crew, rank);
          if (!crew.ranks[static_cast<size_t>(rank)]->killed) crew.codes[static_cast<size_t>(rank)] = code;
        });
    process.attempt = step.attempt;
    crew.ranks[static_cast<size_t>(rank)] = &process;
  }
  return wait_for_crew(crew, step);
}

// The ranks are those that the dead conductor has started, however many of them live.
launcher::StepOutcome Job::take_crew(const launcher::StepRequest& step) {
  for (const auto& crew : crews_) {
    if (crew->attempt != step.attempt) continue;
    crew->start = start_of(*world_.running());
    world_.running()->attempt = step.attempt;
    return wait_for_crew(*crew, step);
  }
  return {};
}

launcher::StepOutcome Job::wait_for_crew(Crew& crew, const launcher::StepRequest& step) {
  const auto is_over = [&crew] {
    if (crew.alarm) return true;
    int ended = 0;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      if (!crew.ranks[rank]->is_alive()) ++ended;
      if (crew.signals[rank] || (crew.codes[rank] && *crew.codes[rank] != 0)) return true;
    }
    return ended == kRanks;
  };
  raised_alarm = [this]() -> std::optional<launcher::Watch::Raised> {
    for (const auto& one : crews_) {
      if (one->start->process == world_.running() && one->attempt == world_.running()->attempt)
        return one->alarm;
    }
    return std::nullopt;
  };
  launcher::StepOutcome outcome;
  if (!world_.wait(is_over)) return outcome;
  crew.is_dying = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    const bool is_lost = crew.alarm && crew.alarm->alarm.global_rank == rank;
    record::RankExit exit;
    exit.global_rank = rank;
    exit.node = step.nodes.size() > index ? step.nodes[index] : step.nodes.front();
    exit.ended = static_cast<double>(world_.now());
    exit.exit_code = crew.codes[index];
    exit.signal = crew.signals[index];
    exit.peer_lost = exit.exit_code == contract::kExitInfrastructure;
    if (!is_lost && crew.ranks[index]->is_alive()) {
      world_.kill(*crew.ranks[index]);
      exit.signal = SIGKILL;
      exit.stopped_on_request = true;
    }
    if (exit.exit_code || exit.signal) outcome.exits.push_back(exit);
  }
  return outcome;
}

void Job::lose_node(Crew& crew, int rank) {
  const Process& process = *crew.ranks[static_cast<size_t>(rank)];
  if (crew.is_dying || crew.alarm) return;
  launcher::Alarm alarm;
  alarm.kind = in_slurm_ ? "node_lost" : "hang";
  alarm.node = process.identity.host;
  alarm.global_rank = rank;
  alarm.line = "the simulation lost it";
  history_.blame(crew.attempt, rank);
  crew.alarm = launcher::Watch::Raised{alarm, static_cast<double>(world_.now()), 0.0};
}

void Job::kill_rank(Crew& crew, int rank) {
  if (crew.is_dying || !crew.ranks[static_cast<size_t>(rank)]->is_alive()) return;
  history_.blame(crew.attempt, rank);
  crew.signals[static_cast<size_t>(rank)] = SIGKILL;
  world_.kill(*crew.ranks[static_cast<size_t>(rank)]);
}

std::optional<bool> Job::agree(Crew& crew, int rank, bool vote) {
  auto& ours = crew.votes[static_cast<size_t>(rank)];
  const auto& others = crew.votes[static_cast<size_t>(1 - rank)];
  ours.push_back(vote);
  const size_t round = ours.size() - 1;
  const Process* const peer = crew.ranks[static_cast<size_t>(1 - rank)];
  if (!world_.wait([&] { return others.size() > round || !peer->is_alive(); })) return std::nullopt;
  if (others.size() <= round) return std::nullopt;
  return vote && others[round];
}

int Job::run_rank(Crew& crew, int rank) {
  const record::RunDir run{kRunDirectory};
  const Process& process = *crew.ranks[static_cast<size_t>(rank)];
  const auto plan = contract::read_plan_of_attempt(run, crew.attempt, process.identity.host);
  if (!plan) return contract::exit_code_of(plan.error().code());
  // As a rank's supervisor does, before its program and after it.
  const base::UniqueFd log(
      ::open(run.rank_err(crew.attempt, rank).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, record::kFileMode));
  const int code = train(crew, rank);
  record::RankExit exit;
  exit.global_rank = rank;
  exit.node = process.identity.host;
  exit.exit_code = code;
  exit.peer_lost = code == contract::kExitInfrastructure;
  (void)record::append_rank_exit(run, crew.attempt, exit);
  return code;
}

int Job::train(Crew& crew, int rank) {
  const record::RunDir run{kRunDirectory};
  const Store store(kCheckpoints, kKeptCheckpoints,
                    contract::checkpoint_stage(kCheckpoints, kRunId, crew.attempt), crew.attempt);
  State state(rank);
  if (rank == 0) {
    const auto steps = store.steps();
    if (!agree(crew, rank, steps.has_value()).value_or(false))
      return steps ? contract::kExitInfrastructure : contract::kExitProgramFailed;
    crew.candidate = steps->empty() ? 0 : steps->front();
  } else if (const auto agreed = agree(crew, rank, true); !agreed.value_or(false)) {
    return contract::kExitInfrastructure;
  }
  if (!agree(crew, rank, true)) return contract::kExitInfrastructure;
  const int64_t from = crew.candidate;
  state.set(0);
  if (from > 0) {
    const auto loaded = load(store, from, state);
    if (!loaded) world_.note("cannot load: " + loaded.error().to_string());
    const auto all = agree(crew, rank, loaded.has_value());
    if (!all) return contract::kExitInfrastructure;
    if (!loaded) return contract::kExitProgramFailed;
    if (!*all) return contract::kExitInfrastructure;
  }
  State expected(rank);
  expected.set(from);
  if (!crew.ranks[static_cast<size_t>(rank)]->killed && !(state == expected))
    history_.violation(fmt::format("step {} has other bits than were saved", from));
  auto metrics = rank == 0 ? train::MetricsLog::open(run, crew.attempt) : Error(Code::kNotFound, "");
  for (int64_t step = from + 1; step <= kSteps; ++step) {
    state.set(step);
    if (step % kSaveEvery != 0) continue;
    auto saved = store.write_shard(step, state.place(), state.layout, state.view());
    const auto all = agree(crew, rank, saved.has_value());
    if (!all) return contract::kExitInfrastructure;
    if (*all && rank == 0) saved = store.publish(state.manifest(step));
    if (!saved) world_.note("cannot save: " + saved.error().to_string());
    const auto published = agree(crew, rank, saved.has_value());
    if (!published) return contract::kExitInfrastructure;
    if (*published && metrics) metrics->checkpoint(step, store.path_of(step), 0.0);
    crew.saved_all = crew.saved_all && *published;
  }
  return contract::kExitDone;
}

}  // namespace shardrun::simulation

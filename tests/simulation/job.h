// Job: a run's conductors and ranks, as processes of a World. The conductor is launcher/agent's; a rank looks at the epoch,
// resumes, saves and publishes through the trainer's checkpoint store. What lies between, the training, the scheduler and the
// network, is told in a few lines here.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/conductor.h"
#include "launcher/watch/watch.h"
#include "tests/simulation/history.h"
#include "tests/simulation/world.h"

namespace shardrun::simulation {

inline constexpr int kRanks = 2;
inline constexpr int64_t kSteps = 6, kSaveEvery = 2;
inline constexpr const char* kRunDirectory = "/sim/runs/job/1";
inline constexpr const char* kCheckpoints = "/sim/runs/job/1/checkpoints";

// One start of the job: a conductor.
struct Start {
  Process* process = nullptr;
  bool given_up = false;   // Slurm believes that it has ended
  bool requeued = false;   // it asked to be started again
  bool completed = false;  // it ended with 0
  std::string end;         // in words
};

// What the ranks of one attempt share: the network.
struct Crew {
  int attempt = 0;
  Start* start = nullptr;
  std::array<Process*, kRanks> ranks{};
  std::array<std::optional<int>, kRanks> codes;    // of those that have ended by themselves
  std::array<std::vector<bool>, kRanks> votes;     // of each agreement
  int64_t candidate = -1;                          // what rank 0 tells the others
  std::optional<launcher::Watch::Raised> alarm;    // what the watch has found
  bool is_dying = false;                           // the scheduler ends the ranks
  bool saved_all = true;                           // no save has failed
  std::array<std::optional<int>, kRanks> signals;  // that ended a rank's program
};

class Job {
 public:
  Job(World& world, History& history, bool in_slurm)
      : world_(world), history_(history), in_slurm_(in_slurm) {}

  // `take_over`: not a start, but a conductor for the ranks of one that has died.
  Start& start(const Identity& identity, std::vector<std::string> nodes, bool take_over = false);
  const std::vector<std::unique_ptr<Start>>& starts() const { return starts_; }
  bool is_completed() const;
  // The crew that a process is of; null for conductors.
  Crew* crew_of(const Process& process);
  Start* start_of(const Process& process);
  // A machine that the conductor cannot reach any more; its rank runs on, now or later.
  void lose_node(Crew& crew, int rank);
  void kill_rank(Crew& crew, int rank);

 private:
  friend class SimulatedScheduler;
  void conduct(Start& start, const std::vector<std::string>& nodes, bool take_over);
  launcher::StepOutcome run_crew(Start& start, const launcher::StepRequest& step);
  launcher::StepOutcome take_crew(const launcher::StepRequest& step);
  launcher::StepOutcome wait_for_crew(Crew& crew, const launcher::StepRequest& step);
  int run_rank(Crew& crew, int rank);
  int train(Crew& crew, int rank);
  // Is true when all ranks said so; nothing when a peer is gone.
  std::optional<bool> agree(Crew& crew, int rank, bool vote);
  void judge_verdict(const record::RunRecord& record);

  World& world_;
  History& history_;
  bool in_slurm_;
  std::vector<std::unique_ptr<Start>> starts_;
  std::vector<std::unique_ptr<Crew>> crews_;
};

}  // namespace shardrun::simulation

// History: what has happened to a run's folders, and whether it may. It looks at the shared files after every change of a name.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "tests/simulation/world.h"

namespace shardrun::simulation {

class History {
 public:
  History(World& world, std::string run_directory, std::string checkpoints)
      : world_(world), run_directory_(std::move(run_directory)), checkpoints_(std::move(checkpoints)) {}

  // The conductor of this attempt has taken the checkpoints from all earlier ones and starts ranks.
  void fence_is_up(int attempt) { fenced_ = std::max(fenced_, attempt); }
  // A fault befell the rank.
  void blame(int attempt, int rank) { blamed_.insert({attempt, rank}); }
  bool is_to_blame(int attempt, int rank) const { return blamed_.count({attempt, rank}) > 0; }

  // Looks at what `process` has changed. Who makes the folder of an attempt acts in its name from then on.
  void look(Process& process);
  void violation(const std::string& what);
  // The first thing that may not be.
  const std::optional<std::string>& first_violation() const { return first_; }
  int64_t newest_checkpoint() const { return steps_.empty() ? 0 : steps_.rbegin()->first; }

 private:
  std::map<int64_t, int> complete_steps() const;
  void look_at_checkpoints(const Process& process);
  void look_at_file(const Process& process, const std::string& path, int& inode, int& newest_writer);

  World& world_;
  std::string run_directory_, checkpoints_;
  int fenced_ = -1, attempts_ = 0;
  std::set<std::pair<int, int>> blamed_;
  std::map<int64_t, int> steps_;  // complete checkpoints, and their folders
  int latest_ = 0, record_ = 0, results_ = 0;
  int latest_writer_ = -1, record_writer_ = -1, results_writer_ = -1;
  std::optional<std::string> first_;
};

}  // namespace shardrun::simulation

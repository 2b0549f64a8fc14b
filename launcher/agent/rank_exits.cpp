#include "launcher/agent/rank_exits.h"

#include <unistd.h>

#include <map>
#include <utility>

#include "runtime/contract/exit_code.h"
#include "runtime/record/exit_lines.h"

namespace shardrun::launcher {
namespace {

using record::RankExit;

// A rank that refused to start on a node that left no trace does not see the run directory, or cannot write into it. It said
// so, but srun may lose the words of a task that ends at once.
void explain_unseen(RankExit& exit, const record::RunDir& paths, int attempt) {
  const bool left_a_trace = ::access(paths.rank_err(attempt, exit.global_rank).c_str(), F_OK) == 0 ||
                            ::access(paths.node_log(attempt, exit.node).c_str(), F_OK) == 0;
  if (exit.exit_code != contract::kExitRefused || left_a_trace) return;
  exit.exit_code = contract::kExitBadInput;
  exit.stopped_on_request = false;
  exit.last_words = paths.unseen_by(exit.node);
}

}  // namespace

std::vector<RankExit> merge_exits(const record::RunDir& paths, int attempt, int world_size,
                                  const StepOutcome& seen) {
  std::map<int, RankExit> exits;
  const auto told = record::read_rank_exits(paths, attempt);
  for (RankExit exit : seen.exits) {
    if (told.count(exit.global_rank) == 0) {
      explain_unseen(exit, paths, attempt);
      if (exit.exit_code.value_or(0) != 0 && exit.last_words.empty()) exit.last_words = seen.rank_words;
    }
    exits[exit.global_rank] = std::move(exit);
  }
  for (auto [rank, written] : told) {
    if (rank < 0 || rank >= world_size) continue;
    const auto scheduler_saw = exits.find(rank);
    if (scheduler_saw != exits.end()) {
      const RankExit& other = scheduler_saw->second;
      // The program ended well but its supervisor did not, or the rank asked to abort the job. That it may have been
      // stopped is what is said of a rank of which nobody knows how it ended: its supervisor knows.
      const bool unknown = other.exit_code == contract::kExitPreempted;
      if (written.exit_code == 0 && other.exit_code != 0 && !unknown) continue;
      if (!other.last_words.empty()) written.last_words = other.last_words;
    }
    exits[rank] = std::move(written);
  }
  std::vector<RankExit> merged;
  for (auto& [rank, exit] : exits) merged.push_back(std::move(exit));
  return merged;
}

}  // namespace shardrun::launcher

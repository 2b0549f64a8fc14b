// TrainerJob: a spec of the built-in trainer in a scratch folder, run by `shardrun run` as often as a test likes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/command.h"
#include "runtime/record/run_record.h"

namespace shardrun::testing {

// Returns the spec of a job of two ranks that train a Llama of two layers; `more` is added at its end.
std::string two_rank_job(const std::string& name, int hidden, int steps, const std::string& more = "");

class TrainerJob {
 public:
  // `spec` has no [logging].
  explicit TrainerJob(const std::string& spec);
  ~TrainerJob();
  TrainerJob(const TrainerJob&) = delete;
  TrainerJob& operator=(const TrainerJob&) = delete;

  const std::string& folder() const { return folder_; }
  // Returns the launcher's arguments, with `settings` as --set has them.
  std::vector<std::string> command(const std::vector<std::string>& settings) const;
  // Runs the job to its end; fails the test unless it completes.
  record::RunRecord run(const std::vector<std::string>& settings) const;
  // Returns loss_hex by step of the newest run, as its metrics.jsonl has them now.
  std::map<int64_t, std::string> losses() const;
  // Returns the newest checkpoint that the newest run has reported; -1 if there is none.
  int64_t told_checkpoint() const;
  // Returns the folder of the newest run; empty if there is none.
  std::string newest_run() const;
  // Returns all that the newest run's ranks said.
  std::string output() const;
  // Returns the newest run's processes of the trainer, not their supervisors.
  std::vector<pid_t> ranks() const;

 private:
  std::string folder_;
};

}  // namespace shardrun::testing

#include "tests/simulation/history.h"

#include <fmt/format.h>

#include "runtime/record/run_dir.h"
#include "runtime/trainer/checkpoint/format.h"

namespace shardrun::simulation {

constexpr size_t kFilesOfCheckpoint = 3;  // manifest.json and a file a rank
constexpr int kMostStarts = 10;

void History::violation(const std::string& what) {
  world_.note("VIOLATION: " + what);
  if (!first_) first_ = what;
}

std::map<int64_t, int> History::complete_steps() const {
  std::map<int64_t, int> steps;
  const int folder = world_.files().truth(checkpoints_);
  if (folder == 0) return steps;
  for (const auto& [name, inode] : world_.files().at(folder).names) {
    if (const int64_t step = checkpoint::parse_step_name(name); step >= 0) steps[step] = inode;
  }
  return steps;
}

void History::look(Process& process) {
  const record::RunDir run{run_directory_};
  // A number is left out where a conductor died between taking it and making the folder.
  for (int number = attempts_; number < attempts_ + kMostStarts; ++number) {
    if (world_.files().truth(run.attempt(number)) == 0) continue;
    process.attempt = number;
    attempts_ = number + 1;
    break;
  }
  look_at_checkpoints(process);
  look_at_file(process, checkpoints_ + "/latest", latest_, latest_writer_);
  look_at_file(process, run_directory_ + "/record.json", record_, record_writer_);
  look_at_file(process, run_directory_ + "/results.json", results_, results_writer_);
}

void History::look_at_checkpoints(const Process& process) {
  auto steps = complete_steps();
  for (const auto& [step, folder] : steps) {
    if (world_.files().at(folder).names.size() < kFilesOfCheckpoint)
      violation(fmt::format("{} leaves a ruin in the place of step {}", process.name, step));
  }
  if (steps == steps_) return;
  if (process.attempt < fenced_) {
    violation(fmt::format("{} changes what is published after attempt {} has begun", process.name, fenced_));
  }
  if (!steps_.empty() && (steps.empty() || steps.rbegin()->first < steps_.rbegin()->first))
    violation(
        fmt::format("{} takes the newest checkpoint, step {}, away", process.name, newest_checkpoint()));
  steps_ = std::move(steps);
}

void History::look_at_file(const Process& process, const std::string& path, int& inode, int& newest_writer) {
  const int now = world_.files().truth(path);
  if (now == inode) return;
  inode = now;
  if (process.attempt < newest_writer)
    violation(fmt::format("{} replaces {} of attempt {}", process.name, path, newest_writer));
  newest_writer = std::max(newest_writer, process.attempt);
}

}  // namespace shardrun::simulation

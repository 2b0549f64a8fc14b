#include "launcher/foresight/earlier_runs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "launcher/foresight/calibration_file.h"
#include "launcher/runs/common.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"

namespace shardrun::launcher {

using base::Code;
using base::Error;
using base::Result;

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostRuns = 16;
constexpr size_t kMostRead = 64;     // of a folder with many that did not go well
constexpr int64_t kFewestSteps = 5;  // whose median says something

}  // namespace

Result<EarlierRun> read_earlier_run(const std::string& directory) {
  const record::RunDir run{directory};
  ASSIGN_OR_RETURN(const auto record, read_record(run));
  if (record.status != record::RunStatus::kCompleted || record.attempts.size() != 1)
    return Error(Code::kInvalid, "it did not complete in one attempt");
  if (!record.metrics || record.metrics->steps < kFewestSteps || record.metrics->step_seconds_p50 <= 0.0)
    return Error(Code::kInvalid, fmt::format("it has fewer than {} steps", kFewestSteps));
  ASSIGN_OR_RETURN(auto plan, read_plan(run));
  ASSIGN_OR_RETURN(auto loaded, load_prepared_spec(run.job_toml(), plan.overrides));
  if (loaded.spec.program.trainer.empty()) return Error(Code::kInvalid, "it is a command's");
  return EarlierRun{directory, std::move(loaded.spec), std::move(plan), record.attempts.front().started,
                    record.metrics->step_seconds_p50};
}

std::vector<EarlierRun> earlier_runs(const std::string& folder) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.is_symlink(ignored)) continue;
    std::error_code missing;
    const auto written = fs::last_write_time(entry.path() / "record.json", missing);
    if (!missing) found.emplace_back(written, entry.path().string());
  }
  std::sort(found.rbegin(), found.rend());
  found.resize(std::min(found.size(), kMostRead));
  std::vector<EarlierRun> runs;
  for (const auto& [written, directory] : found) {
    if (runs.size() == kMostRuns) break;
    if (auto run = read_earlier_run(directory)) runs.push_back(std::move(*run));
  }
  return runs;
}

Learned learn(const std::vector<EarlierRun>& runs, const MeasuredMachine& machine) {
  Learned learned;
  for (const EarlierRun& run : runs) {
    const auto replayed = forecast_measured(run.spec, run.plan, machine);
    const auto like = run_on_calibrated(run.spec, run.plan);
    if (!replayed || !like) continue;
    learned.misses.push_back({*like, std::log(replayed->seconds / run.step_seconds)});
    learned.from.push_back(run.directory);
  }
  return learned;
}

}  // namespace shardrun::launcher

#include "tests/process/train/trainer_job.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "tests/support/folder.h"

namespace shardrun::testing {
namespace {

namespace fs = std::filesystem;

void for_each_event(const std::string& run, const std::function<void(const nlohmann::json&)>& visit) {
  std::istringstream lines(tests::read_back(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto event = base::parse_json(line);
    if (event.is_object()) visit(event);
  }
}

// Says whether `process` is the trainer: the child of a supervisor, which has the same program and environment.
bool is_trainer(const std::string& process, const std::string& run) {
  if (tests::read_back(process + "/environ").find("SHARDRUN_RUN_DIR=" + run) == std::string::npos)
    return false;
  std::error_code error;
  if (fs::read_symlink(process + "/exe", error).filename() != "shardrun-rank" || error) return false;
  const std::string stat = tests::read_back(process + "/stat");
  const size_t end = stat.rfind(')');
  if (end == std::string::npos) return false;
  std::istringstream rest(stat.substr(end + 2));
  std::string state, parent;
  rest >> state >> parent;
  return state != "Z" && fs::read_symlink("/proc/" + parent + "/exe", error).filename() == "shardrun-rank" &&
         !error;
}

}  // namespace

std::string two_rank_job(const std::string& name, int hidden, int steps, const std::string& more) {
  return fmt::format(R"(name = "{}"
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
layers = 2
hidden = {}
heads = 4
kv_heads = 2
ffn = {}
vocab = 256
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 32
[batch]
micro_batch = 1
[optimizer]
steps = {}
{})",
                     name, hidden, hidden * 11 / 4, steps, more);
}

TrainerJob::TrainerJob(const std::string& spec) {
  std::string path = fs::current_path().string() + "/trainer_job.XXXXXX";
  REQUIRE(::mkdtemp(path.data()) != nullptr);
  folder_ = path;
  std::ofstream(folder_ + "/job.toml") << spec << "[logging]\ndirectory = \"" << folder_ << "/runs\"\n";
}

TrainerJob::~TrainerJob() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::vector<std::string> TrainerJob::command(const std::vector<std::string>& settings) const {
  std::vector<std::string> argv = {BIN_DIR "/shardrun", "run", folder_ + "/job.toml"};
  for (const std::string& setting : settings) argv.insert(argv.end(), {"--set", setting});
  return argv;
}

record::RunRecord TrainerJob::run(const std::vector<std::string>& settings) const {
  const auto ended = base::run_command(command(settings), "", std::chrono::minutes(5));
  if (!ended) FAIL(ended.error().to_string());
  auto record = record::parse_run_record(tests::read_back(newest_run() + "/record.json"));
  REQUIRE(record);
  return std::move(record).value();
}

std::string TrainerJob::newest_run() const {
  std::string newest;
  fs::file_time_type time;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ + "/runs", error)) {
    if (entry.path().filename() != "job.toml") continue;
    const auto written = entry.last_write_time(error);
    if (!error && (newest.empty() || written > time)) newest = entry.path().parent_path(), time = written;
  }
  return newest;
}

std::map<int64_t, std::string> TrainerJob::losses() const {
  std::map<int64_t, std::string> losses;
  for_each_event(newest_run(), [&](const nlohmann::json& event) {
    if (!event.contains("event") && event.contains("loss_hex")) losses[event["step"]] = event["loss_hex"];
  });
  return losses;
}

int64_t TrainerJob::told_checkpoint() const {
  int64_t newest = -1;
  for_each_event(newest_run(), [&](const nlohmann::json& event) {
    if (event.contains("event") && event["event"] == "checkpoint") newest = event["step"];
  });
  return newest;
}

std::string TrainerJob::output() const {
  std::string text;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(newest_run(), error)) {
    const auto extension = entry.path().extension();
    if (extension == ".out" || extension == ".err") text += tests::read_back(entry.path());
  }
  return text;
}

std::vector<pid_t> TrainerJob::ranks() const {
  std::vector<pid_t> ranks;
  std::error_code error;
  const std::string run = newest_run();
  if (run.empty()) return ranks;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos && is_trainer(entry.path(), run))
      ranks.push_back(std::stoi(name));
  }
  return ranks;
}

}  // namespace shardrun::testing

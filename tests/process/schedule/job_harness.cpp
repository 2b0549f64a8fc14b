#include "tests/process/schedule/job_harness.h"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/view/log_merge.h"
#include "launcher/watch/look.h"
#include "runtime/base/json.h"
#include "runtime/base/visible.h"
#include "tests/support/folder.h"

namespace shardrun::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string spec_text(const LocalJobOptions& options) {
  std::string command;
  for (const std::string& argument : options.command)
    command += base::json_text(nlohmann::json(argument)) + ", ";
  return "name = \"job\"\n[resources]\nnodes = " + std::to_string(options.nodes) +
         "\nranks_per_node = " + std::to_string(options.ranks) + "\n[program]\ncommand = [" + command +
         "]\n" + options.more;
}

// Returns one variable of another process's environment; empty if it has none or is gone.
std::string variable_of(pid_t pid, const std::string& name) {
  const std::string environment = tests::read_back("/proc/" + std::to_string(pid) + "/environ");
  std::istringstream stream(environment);
  for (std::string assignment; std::getline(stream, assignment, '\0');) {
    if (assignment.starts_with(name + "=")) return assignment.substr(name.size() + 1);
  }
  return {};
}

bool is_zombie(pid_t pid) {
  const std::string text = tests::read_back("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = text.rfind(')');
  return end == std::string::npos || text.size() < end + 3 || text[end + 2] == 'Z';
}

// Asks again and again. Returns false after 20 s.
bool becomes_true(const std::function<bool()>& condition) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

}  // namespace

LocalJob::LocalJob(const LocalJobOptions& options) {
  std::string path = "/tmp/local_job.XXXXXX";
  REQUIRE(::mkdtemp(path.data()) != nullptr);
  folder_ = path;
  run_directory_ = options.run_directory.empty() ? folder_ + "/run" : options.run_directory;
  const std::string spec = folder_ + "/job.toml";
  std::ofstream(spec) << spec_text(options);
  const std::string output = folder_ + "/launcher.log";
  launcher_ = ::fork();
  REQUIRE(launcher_ >= 0);
  if (launcher_ == 0) {
    const int fd = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    if (options.file_size_limit_kib >= 0) {
      const auto bytes = static_cast<rlim_t>(options.file_size_limit_kib) * 1024;
      const struct rlimit limit = {bytes, bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (!options.temporary_folder.empty()) ::setenv("TMPDIR", options.temporary_folder.c_str(), 1);
    ::execl(BIN_DIR "/conduct_local", "conduct_local", spec.c_str(), run_directory_.c_str(), nullptr);
    ::_exit(127);
  }
}

LocalJob::~LocalJob() {
  if (launcher_ > 0 && exit_code_ < 0) {
    ::kill(launcher_, SIGKILL);
    ::waitpid(launcher_, nullptr, 0);
  }
  for (pid_t pid : processes()) ::kill(pid, SIGKILL);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

int LocalJob::wait(std::chrono::seconds limit) {
  const auto deadline = steady_clock::now() + limit;
  while (exit_code_ < 0) {
    int status = 0;
    const pid_t ended = ::waitpid(launcher_, &status, WNOHANG);
    if (ended == launcher_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (steady_clock::now() >= deadline) {
      return -1;
    } else {
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  return exit_code_;
}

void LocalJob::signal(int signal) {
  ::kill(launcher_, signal);
}

std::string LocalJob::file(const std::string& name) const {
  return tests::read_back(run_directory_ + "/" + name);
}

std::string LocalJob::node_log() const {
  const record::RunDir run{run_directory_};
  launcher::LogMerge merge;
  merge.begin(run, launcher::find_logs(run, 0), /*to_the_end=*/true);
  std::string text;
  const auto all = [](const launcher::LogLine&) { return true; };
  for (auto lines = merge.next(all); !lines.empty(); lines = merge.next(all)) {
    for (const launcher::LogLine& line : lines)
      text += fmt::format("{} {}:{} {}\n", line.time, line.node, line.global_rank, base::visible(line.text));
  }
  return text;
}

record::RunRecord LocalJob::record() const {
  auto record = record::parse_run_record(file("record.json"));
  REQUIRE_MESSAGE(record.has_value(), launcher_output());
  return *record;
}

std::string LocalJob::launcher_output() const {
  return tests::read_back(folder_ + "/launcher.log");
}

bool LocalJob::wait_for(const std::string& name, const std::string& text) const {
  return becomes_true([&] { return file(name).find(text) != std::string::npos; });
}

bool LocalJob::wait_until_heard(int ranks) const {
  return becomes_true([&] {
    const auto sights = launcher::look_at_ranks(record::RunDir{run_directory_}, /*attempt=*/0);
    return sights && std::count_if(sights->begin(), sights->end(),
                                   [](const contract::RankSight& sight) { return sight.heard; }) == ranks;
  });
}

std::vector<pid_t> LocalJob::processes() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry.path().filename().c_str(), nullptr, 10));
    if (pid > 0 && !is_zombie(pid) && variable_of(pid, "SHARDRUN_RUN_DIR") == run_directory_)
      found.push_back(pid);
  }
  return found;
}

pid_t LocalJob::find(int global_rank, bool program) const {
  pid_t found = -1;  // which kill() would take for everybody
  REQUIRE(becomes_true([&] { return (found = look_for(global_rank, program)) > 0; }));
  return found;
}

pid_t LocalJob::look_for(int global_rank, bool program) const {
  for (pid_t pid : processes()) {
    if (variable_of(pid, "SHARDRUN_GLOBAL_RANK") != std::to_string(global_rank)) continue;
    const bool is_supervisor = !variable_of(pid, "SHARDRUN_LAUNCHER_PID").empty();
    const bool has_torchrun_names = !variable_of(pid, "RANK").empty();
    if (program ? has_torchrun_names : is_supervisor && !has_torchrun_names) return pid;
  }
  return -1;
}

}  // namespace shardrun::testing

#include "launcher/schedule/step_command.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include <fmt/format.h>

#include "launcher/schedule/stop_words.h"
#include "runtime/base/io.h"
#include "runtime/base/say.h"
#include "runtime/base/text.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/rank_env.h"

namespace shardrun::launcher {
namespace {

constexpr size_t kLongestWords = 2000;

// The program's output goes to files, so this is its supervisor's, or of the linker that could not start that.
bool is_of_rank_program(const std::string& line) {
  return line.starts_with("shardrun-rank: ") ||
         line.find(": error while loading shared libraries: ") != std::string::npos;
}

}  // namespace

base::Result<StepOutcome> StepCommand::run(const std::vector<std::string>& argv,
                                           const std::map<std::string, std::string>& environment) {
  ASSIGN_OR_RETURN(command_, base::spawn_command(argv, environment, false));
  out_ = {STDOUT_FILENO, "", true};
  err_ = {STDERR_FILENO, "", true};
  watch();
  int status = 0;
  while (::waitpid(command_.pid, &status, 0) < 0 && errno == EINTR) {
  }
  finish(argv.front(), status);
  return std::move(outcome_);
}

void StepCommand::watch() {
  bool ended = false;
  while (!ended || out_.open || err_.open) {
    pollfd polled[5] = {{ended ? -1 : command_.pidfd.get(), POLLIN, 0},
                        {out_.open ? command_.out.get() : -1, POLLIN, 0},
                        {err_.open ? command_.err.get() : -1, POLLIN, 0},
                        {ended ? -1 : request_.stop_fd, POLLIN, 0},
                        {ended || alarmed_ ? -1 : request_.alarm_fd, POLLIN, 0}};
    const int got = ::poll(polled, 5, ended ? 200 : milliseconds_to_kill());
    if (got < 0 && errno != EINTR) break;
    if (got == 0 && ended) break;  // a grandchild that keeps a stream open must not hold us up
    if (polled[1].revents != 0) forward(command_.out.get(), out_);
    if (polled[2].revents != 0) forward(command_.err.get(), err_);
    if (polled[3].revents != 0) take_stop_request();
    if (polled[4].revents != 0) {
      alarmed_ = true;
      on_alarm();
    }
    if (polled[0].revents != 0) ended = true;
    if (!ended && kill_at_ && Clock::now() >= *kill_at_) {
      kill_at_.reset();
      on_kill_time();
    }
  }
}

int StepCommand::milliseconds_to_kill() const {
  if (!kill_at_) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 60000));
}

void StepCommand::forward(int fd, Stream& stream) {
  std::array<char, 16384> chunk;
  const ssize_t got = ::read(fd, chunk.data(), chunk.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  stream.open = got > 0;
  if (got > 0) stream.pending.append(chunk.data(), got);
  const size_t whole = got > 0 ? stream.pending.rfind('\n') + 1 : stream.pending.size();
  const std::string text = stream.pending.substr(0, whole);
  stream.pending.erase(0, whole);
  base::say(stream.to, text);  // a terminal that nobody reads may cost a line, and not a signal
  for (std::string_view left = text; !left.empty();) {
    const std::string line(base::take_line(left));
    if (line.empty()) continue;
    if (outcome_.rank_words.empty() && is_of_rank_program(line)) outcome_.rank_words = line;
    on_line(line, stream.to == STDERR_FILENO);
  }
}

void StepCommand::take_stop_request() {
  signalfd_siginfo info{};
  if (::read(request_.stop_fd, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
  if (outcome_.stop_signal) {
    if (Clock::now() - stop_requested_ < kOneRequest) return;
    tell_of_second_stop();
    kill_at_ = Clock::now();
    return;
  }
  stop_requested_ = Clock::now();
  outcome_.stop_signal = static_cast<int>(info.ssi_signo);
  tell_of_stop(request_, *outcome_.stop_signal);
  on_stop();
}

void StepCommand::schedule_kill(std::chrono::milliseconds in) {
  const auto when = Clock::now() + in;
  if (!kill_at_ || when < *kill_at_) kill_at_ = when;
}

void StepCommand::keep_words(const std::string& line) {
  if (words_.size() < kLongestWords) words_ += (words_.empty() ? "" : "; ") + line;
}

void StepCommand::signal_command(int signal) const {
  ::kill(command_.pid, signal);
}

// A command that ends with 0 says that all ranks did: this is known even where a full disk took no exit file. After a request to
// stop it is not known whether they were done (kStoppedIsDoneVariable), and starting them again costs less than losing the rest.
void StepCommand::finish(const std::string& name, int status) {
  std::map<int, record::RankExit> exits;
  for (const record::RankExit& exit : known_exits()) exits.emplace(exit.global_rank, exit);
  const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  for (int rank = 0; !failed && rank < request_.plan->world_size(); ++rank) {
    record::RankExit exit;
    exit.global_rank = rank;
    exit.node = request_.nodes.at(rank / request_.plan->ranks_per_node);
    exit.ended = base::unix_now();
    exit.exit_code = stopped() ? contract::kExitPreempted : contract::kExitDone;
    exits.emplace(rank, exit);
  }
  for (const auto& [rank, exit] : exits) outcome_.exits.push_back(exit);
  if (failed && exits.empty() && !outcome_.stop_signal && !alarmed_) {
    outcome_.scheduler_fault = words_.empty() ? fmt::format("{} ended with status {}", name, status) : words_;
  }
}

std::map<std::string, std::string> step_environment(const StepRequest& request, const std::string& launcher) {
  return {{contract::kRanksByVariable, launcher},
          {"SHARDRUN_RUN_DIR", request.plan->run_directory},
          {"SHARDRUN_ATTEMPT", std::to_string(request.attempt)},
          {"SHARDRUN_MASTER_ADDR", request.master_addr},
          {"SHARDRUN_MASTER_PORT", std::to_string(request.master_port)},
          {"SHARDRUN_LAUNCH_TIME", fmt::format("{:.6f}", request.launch_time)}};
}

}  // namespace shardrun::launcher

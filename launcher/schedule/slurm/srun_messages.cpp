#include "launcher/schedule/slurm/srun_messages.h"

#include <signal.h>

#include <charconv>
#include <cstring>

namespace shardrun::launcher {
namespace {

// Returns the signal; srun uses strsignal's words, some followed by " (core dumped)".
std::optional<int> signal_of(std::string_view words) {
  if (const size_t core = words.find(" (core dumped)"); core != std::string_view::npos)
    words = words.substr(0, core);
  for (int signal = 1; signal < 32; ++signal) {
    const char* name = ::strsignal(signal);
    if (name != nullptr && words == name) return signal;
  }
  return std::nullopt;
}

std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

bool is_end_of_step(std::string_view line) {
  return line.find("Job step aborted") != std::string_view::npos ||
         line.find("Terminating StepId=") != std::string_view::npos ||
         line.find("DUE TO NODE FAILURE") != std::string_view::npos;
}

// Slurm says it of SIGTERM, which may be the one that asks the ranks to save and end, and of SIGKILL. Only 26.05 says which it was,
// and says it of every signal.
bool is_cancellation(std::string_view line) {
  if (line.find(" STEP ") == std::string_view::npos || line.find("CANCELLED") == std::string_view::npos)
    return false;
  constexpr std::string_view kSignal = " DUE to SIGNAL ";
  const size_t signal = line.find(kSignal);
  const std::string_view name = signal == std::string_view::npos ? "" : line.substr(signal + kSignal.size());
  return name.empty() || name.starts_with("Killed") || name.starts_with("Terminated");
}

}  // namespace

std::vector<int> parse_task_list(std::string_view text, int limit) {
  std::vector<int> tasks;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const size_t dash = part.find('-');
    const auto first = number_of(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number_of(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= limit) return {};
    for (int task = *first; task <= *last; ++task) tasks.push_back(task);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return tasks;
}

std::optional<SrunMessage> parse_srun_line(std::string_view line, int world_size) {
  if (is_end_of_step(line)) return SrunMessage{.step_aborted = true};
  if (is_cancellation(line)) return SrunMessage{.step_cancelled = true};
  constexpr std::string_view kPrefix = "srun: error: ";
  if (line.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  line.remove_prefix(kPrefix.size());
  constexpr std::string_view kLaunch = "Task launch for ", kFailed = " failed on node ";
  if (line.substr(0, kLaunch.size()) == kLaunch) {
    const size_t failed = line.find(kFailed);
    if (failed == std::string_view::npos) return std::nullopt;
    line.remove_prefix(failed + kFailed.size());
    return SrunMessage{.unreachable = std::string(line.substr(0, line.find(':')))};
  }
  const size_t colon = line.find(": task");
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string node(line.substr(0, colon));
  line.remove_prefix(line.find(' ', colon + 2) == std::string_view::npos ? line.size()
                                                                         : line.find(' ', colon + 2) + 1);
  const size_t end = line.find(": ");
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view words = line.substr(end + 2);
  record::RankExit exit;
  exit.node = node;
  constexpr std::string_view kExited = "Exited with exit code ";
  if (words.substr(0, kExited.size()) == kExited) {
    exit.exit_code = number_of(words.substr(kExited.size()));
  } else {
    exit.signal = signal_of(words);
  }
  if (!exit.exit_code && !exit.signal) return std::nullopt;
  SrunMessage message;
  for (const int task : parse_task_list(line.substr(0, end), world_size)) {
    exit.global_rank = task;
    message.exits.push_back(exit);
  }
  return message;
}

}  // namespace shardrun::launcher

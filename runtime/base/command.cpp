#include "runtime/base/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "runtime/base/say.h"

extern char** environ;

namespace shardrun::base {
namespace {

// How long the output of a command that has ended may stay silent before it is over: others may hold its other end.
constexpr int kLastOutputMilliseconds = 200;
// How often it is asked whether to wait any longer.
constexpr auto kAsksEvery = std::chrono::seconds(1);

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error(Code::kIo, "pipe", errno);
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& extra,
                                            const std::vector<std::string>& without) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    const bool is_left_out = std::find(without.begin(), without.end(), name) != without.end();
    if (!is_left_out && extra.count(name) == 0) merged.emplace_back(text);
  }
  for (const auto& [name, value] : extra) merged.push_back(fmt::format("{}={}", name, value));
  return merged;
}

// Appends what is there to `text`; returns false at the end of the stream.
bool drain(int fd, std::string& text) {
  std::array<char, 16384> chunk;
  const ssize_t got = ::read(fd, chunk.data(), chunk.size());
  if (got > 0) text.append(chunk.data(), got);
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

// Writes what fits; returns false when all is written or nobody reads any more.
bool feed(int fd, std::string_view& unread) {
  const ssize_t written = ::write(fd, unread.data(), unread.size());
  if (written < 0) return errno == EINTR || errno == EAGAIN;
  unread.remove_prefix(static_cast<size_t>(written));
  return !unread.empty();
}

std::string on_one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ';';
  }
  return text;
}

}  // namespace

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

Result<SpawnedCommand> spawn_command(const std::vector<std::string>& argv,
                                     const std::map<std::string, std::string>& environment, bool with_input,
                                     const std::vector<std::string>& without, Group group) {
  ASSIGN_OR_RETURN(auto in, make_pipe());
  ASSIGN_OR_RETURN(auto out, make_pipe());
  ASSIGN_OR_RETURN(auto err, make_pipe());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (with_input) {
    posix_spawn_file_actions_adddup2(&actions, in.read.get(), STDIN_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write.get(), STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int own_group = group == Group::kOwn ? POSIX_SPAWN_SETPGROUP : 0;
  posix_spawnattr_setflags(&attributes,
                           static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | own_group));
  const std::vector<std::string> variables = merged_environment(environment, without);
  SpawnedCommand child;
  const int failure = ::posix_spawnp(&child.pid, argv.front().c_str(), &actions, &attributes,
                                     pointers_to(argv).data(), pointers_to(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    return errno_error(failure == ENOENT ? Code::kNotFound : Code::kIo,
                       fmt::format("{} cannot be run", argv.front()), failure);
  }
  child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  if (with_input) child.in = std::move(in.write);
  child.out = std::move(out.read);
  child.err = std::move(err.read);
  return child;
}

Result<CommandOutput> finish_command(const std::vector<std::string>& argv, const std::string& input,
                                     std::chrono::milliseconds limit, const std::function<bool()>& goes_on,
                                     const std::vector<std::string>& without, Group group) {
  ASSIGN_OR_RETURN(auto child, spawn_command(argv, {}, !input.empty(), without, group));
  const NoBrokenPipeSignal quiet;  // a command may end without having read its input
  if (child.in) ::fcntl(child.in.get(), F_SETFL, O_NONBLOCK);
  CommandOutput output;
  std::string_view unread = input;
  bool has_ended = !child.pidfd, timed_out = false, given_up = false;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  auto asks_at = std::chrono::steady_clock::now() + kAsksEvery;
  // A command has ended when its process has, whoever else holds its output; what it wrote is then there to read.
  while (child.out || child.err || !has_ended) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
            .count();
    timed_out = left <= 0;
    if (timed_out) break;
    if (goes_on && !has_ended && std::chrono::steady_clock::now() >= asks_at) {
      given_up = !goes_on();
      if (given_up) break;
      asks_at = std::chrono::steady_clock::now() + kAsksEvery;
    }
    pollfd polled[4] = {{child.out.get(), POLLIN, 0},
                        {child.err.get(), POLLIN, 0},
                        {child.in.get(), POLLOUT, 0},
                        {has_ended ? -1 : child.pidfd.get(), POLLIN, 0}};
    const auto wait = has_ended ? kLastOutputMilliseconds
                      : goes_on
                          ? std::min<decltype(left)>(left, std::chrono::milliseconds(kAsksEvery).count())
                          : left;
    const int ready = ::poll(polled, 4, static_cast<int>(std::min<decltype(left)>(left, wait)));
    if (ready < 0 && errno != EINTR) break;
    if (ready == 0 && has_ended && child.pidfd) break;
    if (polled[0].revents != 0 && !drain(child.out.get(), output.out)) child.out.reset();
    if (polled[1].revents != 0 && !drain(child.err.get(), output.err)) child.err.reset();
    if (polled[2].revents != 0 && !feed(child.in.get(), unread)) child.in.reset();
    has_ended = has_ended || polled[3].revents != 0;
  }
  child.in.reset();
  if (timed_out || given_up) ::kill(group == Group::kOwn ? -child.pid : child.pid, SIGKILL);
  while (::waitpid(child.pid, &output.status, 0) < 0 && errno == EINTR) {
  }
  if (timed_out) {
    return Error(Code::kTimeout,
                 fmt::format("{} did not answer in {} s", argv.front(), limit.count() / 1000));
  }
  if (given_up) return Error(Code::kCancelled, fmt::format("{} was not waited for any longer", argv.front()));
  return output;
}

Result<CommandOutput> run_command(const std::vector<std::string>& argv, const std::string& input,
                                  std::chrono::milliseconds limit, const std::vector<std::string>& without,
                                  const std::function<bool()>& goes_on) {
  auto output = finish_command(argv, input, limit, goes_on, without);
  if (!output) return output;
  if (!WIFEXITED(output->status) || WEXITSTATUS(output->status) != 0) {
    const std::string words = on_one_line(output->err.empty() ? output->out : output->err);
    return Error(Code::kIo,
                 fmt::format("{}: {}", argv.front(),
                             words.empty() ? fmt::format("ended with status {}", output->status) : words));
  }
  return output;
}

}  // namespace shardrun::base

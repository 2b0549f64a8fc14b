#include "runtime/rank/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/descendants.h"
#include "runtime/base/io.h"
#include "runtime/base/threads.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/exit_code.h"
#include "runtime/rank/guard.h"
#include "runtime/rank/heartbeat_file.h"
#include "runtime/rank/memory_events.h"
#include "runtime/rank/rank_logs.h"
#include "runtime/rank/watch_link.h"
#include "runtime/record/exit_lines.h"
#include "runtime/record/run_dir.h"

namespace shardrun::rank {
namespace {

using base::Code;
using base::Result;
using base::UniqueFd;
using std::chrono::steady_clock;

// How often the program's orphans are looked for; they wait as zombies until then.
constexpr std::chrono::milliseconds kOrphanTime{5000};
// How long a rank that only lost another waits for that one's supervisor to say why before it ends itself: schedulers
// kill all others, supervisors included, when one ends.
constexpr std::chrono::milliseconds kFirstCauseTime{1000};
// How often the program's memory is measured.
constexpr std::chrono::milliseconds kMemoryTime{2000};
// A scheduler that ends a step signals every process of it, in any order: our own signal may come after the child's
// end.
constexpr std::chrono::milliseconds kLateSignalTime{100};
constexpr size_t kStartStackBytes = 65536;
constexpr std::array kForwarded = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

struct Pipe {
  UniqueFd read, write;
};

struct Child {
  pid_t pid = -1;
  UniqueFd pidfd;
};

struct Ending {
  int status = 0;
  struct rusage usage {};
};

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return base::errno_error(Code::kIo, "making a pipe", errno);
  ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void mark(const SupervisorRequest& request, const char* phase) {
  if (request.phases != nullptr) request.phases->mark(phase);
}

bool is_stop_request(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : kForwarded) sigaddset(&set, signal);
  sigaddset(&set, SIGQUIT);
  return set;
}

// How a program is started, and what its start met.
struct Start {
  const SupervisorRequest& request;
  const Pipe& out;
  const Pipe& err;
  const sigset_t& mask;
  pid_t parent;
  std::vector<char*> argv;
  int exec_error = 0;
  std::string bind_error;
};

// The new process's side: becomes the head of its own process group, with the signals as we found them, and executes the program.
// It runs in our memory while we stand still, so what it notes in `argument` is there for us.
int begin_program(void* argument) {
  Start& start = *static_cast<Start*>(argument);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) ::_exit(contract::kExitInfrastructure);
  for (int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);
  ::dup2(start.out.write.get(), STDOUT_FILENO);
  ::dup2(start.err.write.get(), STDERR_FILENO);
  if (start.request.progress_fd >= 0) ::fcntl(start.request.progress_fd, F_SETFD, 0);
  if (!start.request.binding.cpus.empty()) {
    if (auto bound = bind_process(start.request.binding.cpus); !bound)
      start.bind_error = bound.error().to_string();
  }
  if (start.argv.empty()) ::_exit(contract::kExitBadInput);
  ::sigprocmask(SIG_SETMASK, &start.mask, nullptr);
  ::execvp(start.argv[0], start.argv.data());
  start.exec_error = errno;
  const bool missing = start.exec_error == ENOENT;
  ::_exit(missing ? 127 : 126);
}

// Returns why the program was not started, or not as it should have been; "" when it was.
std::string words_of(const Start& start) {
  std::string words;
  if (!start.bind_error.empty())
    words = fmt::format("shardrun-rank: {}; running unbound\n", start.bind_error);
  if (!start.request.program)
    return fmt::format("shardrun-rank: {}\n", start.request.program.error().to_string());
  if (start.exec_error == 0) return words;
  const char* const name = start.argv[0];
  std::string why = "cannot be run: " + std::string(std::strerror(start.exec_error));
  if (start.exec_error == ENOENT && ::access(name, F_OK) == 0)
    why = "its interpreter (the #! line) was not found";
  else if (start.exec_error == ENOENT && std::strchr(name, '/') == nullptr)
    why = "not found in PATH; give its full path in [program] command";
  else if (start.exec_error == ENOENT)
    why = "no such file on this node";
  return words + fmt::format("shardrun-rank: {}: {}\n", name, why);
}

// Returns when the child executes its program, or has ended because it cannot.
Result<Child> start_program(const SupervisorRequest& request, const Pipe& out, const Pipe& err,
                            const sigset_t& mask) {
  Start start{request, out, err, mask, ::getpid(), {}};
  if (request.program) {
    for (const std::string& word : *request.program) start.argv.push_back(const_cast<char*>(word.c_str()));
    start.argv.push_back(nullptr);
  }
  constexpr size_t kUnits = kStartStackBytes / sizeof(std::max_align_t);
  const auto stack = std::make_unique_for_overwrite<std::max_align_t[]>(kUnits);  // zeros cost a fault a page
  int pidfd = -1;
  Child child;
  child.pid = ::clone(begin_program, stack.get() + kUnits, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD,
                      &start, &pidfd);
  if (child.pid < 0) return base::errno_error(Code::kIo, "starting the rank's process", errno);
  child.pidfd = UniqueFd(pidfd);
  if (const std::string words = words_of(start); !words.empty())
    (void)base::write_all(err.write.get(), words, "the rank's stderr");
  return child;
}

class Supervisor {
 public:
  Supervisor(const SupervisorRequest& request, base::DescendantReaper& reaper, Guard guard, Child child,
             UniqueFd signals, UniqueFd out, UniqueFd err)
      : request_(request),
        reaper_(reaper),
        guard_(std::move(guard)),
        child_(std::move(child)),
        signals_(std::move(signals)),
        streams_{std::move(out), std::move(err)},
        logs_(record::RunDir{request.env.run_directory}, request.env, request.secrets,
              request.output_limit_bytes),
        link_(request.env, request.conductor_timeout) {}

  record::RankExit run() {
    mark(request_, "open_logs_and_watch");
    if (!request_.binding.note.empty() && request_.env.local_rank == 0) logs_.note(request_.binding.note);
    while (!ended_) {
      poll_once(timeout_ms());
      collect_orphans();
    }
    record::RankExit exit = reap();
    mark(request_, "program");
    write_exit(exit);
    mark(request_, "write_exit");
    link_.say_farewell();
    has_left_ = true;
    reaper_.kill_all(kDrainTime);
    guard_.dismiss();  // not before: killed in between, we would leave what the program has started
    const auto deadline = steady_clock::now() + kDrainTime;
    while (streams_[0] || streams_[1]) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
      if (left <= 0) break;
      poll_once(static_cast<int>(left));
    }
    logs_.finish();
    if (exit.peer_lost && !exit.stopped_on_request) let_first_cause_be_told();
    return exit;
  }

 private:
  int timeout_ms() const {
    const auto orphans = static_cast<int>(kOrphanTime.count());
    return link_.active() ? std::min(orphans, link_.milliseconds_to_next(steady_clock::now())) : orphans;
  }

  // Waits until somebody tells us to go or the time is up.
  void let_first_cause_be_told() {
    const auto deadline = steady_clock::now() + kFirstCauseTime;
    while (!told_to_go_ && steady_clock::now() < deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
      poll_once(static_cast<int>(left.count()));
    }
  }

  void collect_orphans() {
    const auto now = steady_clock::now();
    if (now < next_collection_) return;
    next_collection_ = now + kOrphanTime;
    reaper_.collect_orphans({child_.pid});
  }

  void poll_once(int timeout_ms) {
    // What a program left behind when it ended is a pipe's worth at most, and is not waited with.
    const bool reads = has_left_ || logs_.has_room();
    std::array<pollfd, 8> fds = {{{reads ? streams_[0].get() : -1, POLLIN, 0},
                                  {reads ? streams_[1].get() : -1, POLLIN, 0},
                                  {signals_.get(), POLLIN, 0},
                                  {ended_ ? -1 : child_.pidfd.get(), POLLIN, 0},
                                  {has_left_ ? -1 : link_.fd(), link_.events(), 0},
                                  {has_left_ ? -1 : link_.relay_fd(), POLLIN, 0},
                                  {logs_.room_fd(), POLLIN, 0},
                                  {exit_written_.get(), POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), timeout_ms) < 0) return;
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (fds[i].revents != 0) read_stream(i, /*limit_bytes=*/size_t{1} << 16);
    }
    if (fds[2].revents != 0) forward_signal();
    if (fds[3].revents != 0) ended_ = true;
    // A link that begins behind its program's end would only say so, which the account does.
    if (!has_left_ && (!ended_ || link_.has_begun())) serve_link(fds[4].revents);
  }

  void serve_link(short revents) {
    if (killed_on_request_) return;  // it has had its last order
    const auto order = link_.service(revents, steady_clock::now(), [this] { return read_beat(); });
    if (order == WatchLink::Order::kNone || ended_) return;
    if (order == WatchLink::Order::kSignal) return pass_on(link_.signal());
    logs_.note(fmt::format("ended by order: {}", link_.reason()));
    kill_child();
  }

  void look_at_memory() {
    const auto now = steady_clock::now();
    if (now < next_memory_look_) return;
    next_memory_look_ = now + kMemoryTime;
    resident_bytes_ = base::resident_bytes_of_tree(child_.pid);
  }

  // When the program has ended, it is its account that waits for a disk.
  contract::Beat read_beat() {
    contract::Beat beat;
    if (!ended_) {
      if (heartbeat_file_.has_changed()) last_sign_ = steady_clock::now();
      look_at_memory();
    }
    beat.state = ended_ ? 'D' : base::process_state(child_.pid);
    beat.resident_bytes = resident_bytes_;
    beat.quiet_milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - last_sign_).count();
    if (const contract::ProgressPage* page = request_.progress; page != nullptr) {
      beat.phase = static_cast<contract::RankPhase>(page->phase.load());
      beat.step = page->step.load();
      beat.entered = page->entered.load();
      beat.moves = page->moves.load();
      beat.waiting = page->waiting.load() != 0;
      beat.step_microseconds = page->step_microseconds.load();
      beat.busy_microseconds = page->busy_microseconds.load();
    }
    return beat;
  }

  void kill_child() {
    killed_on_request_ = true;
    ::kill(-child_.pid, SIGKILL);
    ::kill(child_.pid, SIGKILL);
  }

  // Reads what is there, up to the limit; closes our end at the end of the stream.
  void read_stream(size_t index, size_t limit_bytes) {
    std::array<char, 65536> chunk;
    for (size_t total = 0; streams_[index] && total < limit_bytes;) {
      const ssize_t got = ::read(streams_[index].get(), chunk.data(), chunk.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        streams_[index].reset();
        return;
      }
      last_sign_ = steady_clock::now();
      logs_.write(static_cast<Stream>(index), {chunk.data(), static_cast<size_t>(got)});
      total += static_cast<size_t>(got);
    }
  }

  void forward_signal() {
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof info) != sizeof info) return;
    told_to_go_ = ended_;
    if (!ended_) pass_on(static_cast<int>(info.ssi_signo));
  }

  void pass_on(int signal) {
    if (signal == SIGQUIT) {
      kill_child();
      return;
    }
    if (is_stop_request(signal)) stopped_on_request_ = true;
    if (::kill(-child_.pid, signal) != 0) ::kill(child_.pid, signal);
  }

  void hear_late_request() {
    pollfd late{signals_.get(), POLLIN, 0};
    signalfd_siginfo info{};
    if (::poll(&late, 1, static_cast<int>(kLateSignalTime.count())) <= 0 ||
        ::read(signals_.get(), &info, sizeof info) != sizeof info)
      return;
    told_to_go_ = true;
    stopped_on_request_ = is_stop_request(static_cast<int>(info.ssi_signo));
  }

  record::RankExit reap() {
    Ending ending;
    while (::wait4(child_.pid, &ending.status, 0, &ending.usage) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(ending.status) && is_stop_request(WTERMSIG(ending.status)) && !stopped_on_request_)
      hear_late_request();
    record::RankExit exit;
    exit.global_rank = request_.env.global_rank;
    exit.node = request_.env.node_name;
    exit.ended = base::unix_now();
    if (WIFSIGNALED(ending.status)) {
      exit.signal = WTERMSIG(ending.status);
    } else {
      exit.exit_code = WEXITSTATUS(ending.status);
    }
    exit.peer_lost = request_.exit_4_is_peer_lost && exit.exit_code == contract::kExitInfrastructure;
    exit.stopped_on_request = stopped_on_request_ || killed_on_request_;
    if (exit.signal == SIGKILL && !exit.stopped_on_request) exit.out_of_memory = memory_.has_killed();
    exit.peak_memory_bytes = int64_t{ending.usage.ru_maxrss} * 1024;
    if (const contract::ProgressPage* page = request_.progress;
        page != nullptr && page->spent_microseconds.load() > 0) {
      exit.steps_seconds = static_cast<double>(page->spent_microseconds.load()) * 1e-6;
      exit.waiting_seconds = *exit.steps_seconds - static_cast<double>(page->busy_microseconds.load()) * 1e-6;
    }
    return exit;
  }

  void write_exit(record::RankExit& exit) {
    const bool failed = exit.signal.has_value() || exit.exit_code != 0;
    if (failed) {
      for (size_t i = 0; i < streams_.size(); ++i) read_stream(i, /*limit_bytes=*/size_t{1} << 20);
      exit.last_words = logs_.last_words();
    }
    if (std::string losses = logs_.losses(kDrainTime); !losses.empty())
      exit.output_losses = std::move(losses);
    if (auto written = append_exit(exit); !written)
      logs_.note(fmt::format("cannot say how the rank ended: {}", written.error().to_string()));
  }

  // A thread waits for the disk: until the account is there, the conductor hears us, and those for whom we speak. Where it has not
  // heard of us yet, there is nothing to say.
  Result<void> append_exit(const record::RankExit& exit) {
    Result<void> written;
    const auto append = [&] {
      written = record::append_rank_exit({request_.env.run_directory}, request_.env.attempt, exit);
      if (exit_written_) ::eventfd_write(exit_written_.get(), 1);
    };
    if (link_.has_begun()) exit_written_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    std::thread thread;
    if (!exit_written_ || !base::start_thread(thread, append)) append();
    for (eventfd_t told = 0; thread.joinable() && ::eventfd_read(exit_written_.get(), &told) != 0;)
      poll_once(timeout_ms());
    if (thread.joinable()) thread.join();
    exit_written_.reset();
    return written;
  }

  const SupervisorRequest& request_;
  base::DescendantReaper& reaper_;
  Guard guard_;
  Child child_;
  UniqueFd signals_;
  std::array<UniqueFd, 2> streams_;
  RankLogs logs_;
  WatchLink link_;
  MemoryEvents memory_ = MemoryEvents::watch();
  steady_clock::time_point last_sign_ = steady_clock::now();  // when the program last gave a sign of life
  HeartbeatFile heartbeat_file_{request_.heartbeat_file};
  steady_clock::time_point next_memory_look_ = steady_clock::now();
  int64_t resident_bytes_ = 0;
  steady_clock::time_point next_collection_ = steady_clock::now() + kOrphanTime;
  UniqueFd exit_written_;  // readable when the account is
  bool ended_ = false;
  bool has_left_ = false;    // the conductor hears no more
  bool told_to_go_ = false;  // by a signal after the program's end
  bool stopped_on_request_ = false;
  bool killed_on_request_ = false;
};

}  // namespace

Result<record::RankExit> supervise(const SupervisorRequest& request) {
  ASSIGN_OR_RETURN(auto out, make_pipe());
  ASSIGN_OR_RETURN(auto err, make_pipe());
  const sigset_t watched = watched_signals();
  sigset_t inherited_mask;
  ::sigprocmask(SIG_BLOCK, &watched, &inherited_mask);
  // A log that outgrows its limit must cost a line, not end this process.
  for (int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
  // Whoever started us may have blocked these for its own signalfd; the program must not inherit that.
  sigset_t child_mask = inherited_mask;
  for (int signal : kForwarded) sigdelset(&child_mask, signal);
  sigdelset(&child_mask, SIGQUIT);
  UniqueFd signals(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return base::errno_error(Code::kIo, "signalfd", errno);

  ASSIGN_OR_RETURN(auto guard, Guard::start());
  mark(request, "guard");
  // It leaves alone everything that was there before, and the guard.
  ASSIGN_OR_RETURN(auto reaper, base::DescendantReaper::start({guard.pid()}));
  ::putenv(::strdup(guard.mark().c_str()));  // for the program
  ASSIGN_OR_RETURN(auto child, start_program(request, out, err, child_mask));
  mark(request, "start_program");
  guard.watch_over(child.pid);
  out.write.reset();
  err.write.reset();
  return Supervisor(request, reaper, std::move(guard), std::move(child), std::move(signals),
                    std::move(out.read), std::move(err.read))
      .run();
}

// What std::exit() would destroy ends with the process.
void end_with(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

void end_like(const record::RankExit& exit) {
  if (!exit.signal) end_with(exit.exit_code.value_or(contract::kExitInfrastructure));
  const struct rlimit no_core {};
  ::setrlimit(RLIMIT_CORE, &no_core);  // the program has left its own core file
  std::fflush(nullptr);
  ::signal(*exit.signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, *exit.signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::kill(::getpid(), *exit.signal);
  end_with(128 + *exit.signal);
}

}  // namespace shardrun::rank

// The verb that shows the ranks of a running job.
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "launcher/runs/run_state.h"
#include "launcher/schedule/stop_signals.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "launcher/view/growing_text.h"
#include "launcher/view/log_lines.h"
#include "launcher/view/progress.h"
#include "launcher/view/rank_output.h"
#include "launcher/view/terminal.h"
#include "launcher/view/top.h"
#include "launcher/watch/look.h"
#include "runtime/base/io.h"
#include "runtime/base/text.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using base::Result;

constexpr int kRefreshMilliseconds = 1000;
constexpr int64_t kLogTailBytes = 64 << 10;

// Gathers what there is to see of one run.
class TopSource {
 public:
  TopSource(record::RunDir run, const spec::JobSpec& spec)
      : run_(std::move(run)),
        watcher_(run_),
        trainer_(spec.program.command.empty()),
        total_steps_(trainer_ ? spec.optimizer.steps : 0) {}

  struct Seen {
    TopView view;
    bool over = false;
  };
  // As RunWatcher has both.
  Result<Seen> look(const std::function<bool()>& goes_on = {}) { return gather(watcher_.look(goes_on)); }
  Result<Seen> glance() { return gather(watcher_.glance()); }

 private:
  Result<Seen> gather(const Result<RunState>& looked) {
    if (!looked) return looked.error();
    const RunState& state = *looked;
    Seen seen;
    seen.over = is_over(state);
    seen.view.title = title_of(state);
    seen.view.total_steps = total_steps_;
    files_.skip_to_last(run_.metrics_jsonl(), kLogTailBytes);
    add_metrics(files_.take_new(run_.metrics_jsonl(), /*to_the_end=*/false), curve_);
    seen.view.curve = curve_;
    if (!state.record || state.record->attempts.empty()) {
      seen.view.note = "no rank has been started yet";
      return seen;
    }
    const record::Attempt& attempt = state.record->attempts.back();
    if (seen.over) {
      seen.view.note = state.record->verdict;
    } else {
      add_ranks(state, attempt, seen.view);
    }
    add_last_lines(attempt, seen.view);
    return seen;
  }

  static std::string title_of(const RunState& state) {
    std::string title = fmt::format("{} {}: {}{}", state.plan.name, state.plan.id, state.status,
                                    state.unanswered.empty() ? "" : " (Slurm does not answer)");
    if (!state.record || state.record->attempts.empty()) return title;
    const record::Attempt& attempt = state.record->attempts.back();
    const double seconds = attempt.ended.value_or(base::unix_now()) - attempt.started;
    return title + fmt::format(", attempt {} for {}, {} on {}", attempt.number, clock_time(seconds),
                               counted(state.record->world_size, "rank"),
                               counted(static_cast<int64_t>(attempt.nodes.size()), "node"));
  }

  // What the conductor knows, or at least who takes part.
  void add_ranks(const RunState& state, const record::Attempt& attempt, TopView& view) {
    const auto sights = look_at_ranks(run_, attempt.number);
    if (sights) {
      const auto first = trainer_ ? first_step_.of(run_.metrics_jsonl(), attempt.number) : std::nullopt;
      for (const contract::RankSight& sight : *sights) view.ranks.push_back(describe(sight, trainer_, first));
      return;
    }
    view.note = fmt::format("what the ranks do now is not known here: {}", sights.error().to_string());
    const int per_node =
        std::max(1, state.record->world_size / std::max(1, static_cast<int>(attempt.nodes.size())));
    for (int rank = 0; rank < state.record->world_size; ++rank) {
      const auto node = static_cast<size_t>(rank / per_node);
      view.ranks.push_back({.global_rank = rank,
                            .node = node < attempt.nodes.size() ? attempt.nodes[node] : "?",
                            .state = "?"});
    }
  }

  void add_last_lines(const record::Attempt& attempt, TopView& view) {
    if (attempt.number != attempt_) last_lines_.clear();
    attempt_ = attempt.number;
    const AttemptLogs logs = find_logs(run_, attempt.number);
    for (const std::string& path : logs.node_logs) {
      files_.skip_to_last(path, kLogTailBytes);
      const std::string text = files_.take_new(path, /*to_the_end=*/false, kLogTailBytes);
      for (std::string_view left = text; !left.empty();) {
        LogLine line;
        if (parse_log_line(base::take_line(left), line) && !line.text.empty())
          last_lines_[line.global_rank] = std::move(line.text);
      }
    }
    for (const auto& [rank, segments] : logs.segments) {
      add_last_line(rank, run_.rank_out(attempt.number, rank, segments.back()),
                    run_.rank_err(attempt.number, rank, segments.back()));
    }
    for (TopRank& rank : view.ranks) {
      if (const auto found = last_lines_.find(rank.global_rank); found != last_lines_.end()) {
        rank.last_line = found->second;
      }
    }
  }

  // Notes the last line of a rank's output and errors: of the two files that which was written last.
  void add_last_line(int rank, std::string out, std::string err) {
    std::error_code ignored;
    if (std::filesystem::last_write_time(out, ignored) > std::filesystem::last_write_time(err, ignored))
      std::swap(out, err);
    for (const std::string& path : {out, err}) {
      if (std::string line = last_line(path); !line.empty()) last_lines_[rank] = std::move(line);
    }
  }

  record::RunDir run_;
  RunWatcher watcher_;
  bool trainer_;
  int64_t total_steps_;
  GrowingText files_;
  TrainingCurve curve_;
  FirstStep first_step_;
  int attempt_ = -1;
  std::map<int, std::string> last_lines_;  // of attempt_, by global rank
};

// A screen of our own, without echo; the old one comes back.
class Screen {
 public:
  Screen() { enter(); }
  Screen(const Screen&) = delete;
  ~Screen() { leave(); }
  void enter() {
    if (::tcgetattr(STDIN_FILENO, &before_) == 0) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      raw.c_cc[VMIN] = 0;
      raw.c_cc[VTIME] = 0;
      changed_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    write("\x1b[?1049h\x1b[?25l");
  }
  void leave() {
    write("\x1b[?25h\x1b[?1049l");
    if (changed_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    changed_ = false;
  }
  static TopSize size(const Terminal& terminal) {
    winsize window{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0)
      return {80, 24, terminal.colour};
    return {window.ws_col, window.ws_row, terminal.colour};
  }
  static void show(std::string text) {
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 4)
      text.replace(at, 1, "\x1b[K\n");
    if (text.ends_with('\n')) text.pop_back();  // the last row must not scroll
    write("\x1b[H" + text + "\x1b[J");
  }

 private:
  static void write(const std::string& text) {
    (void)base::write_all(STDOUT_FILENO, text, "standard output");
  }
  termios before_{};
  bool changed_ = false;
};

// Ctrl-Z, as something to wait for: the screen must be given back before this process stops.
class SuspendSignal {
 public:
  SuspendSignal() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    fd_ = base::UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (fd_) ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  }
  int fd() const { return fd_.get(); }
  // Gives the screen back, stops, and takes it again when the person goes on.
  void obey(Screen& screen) const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
    screen.leave();
    ::raise(SIGSTOP);
    screen.enter();
  }

 private:
  base::UniqueFd fd_;
};

// True: the person wants to go.
bool wait_for_key(int signals, const SuspendSignal& suspend, Screen& screen, int milliseconds) {
  pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {signals, POLLIN, 0}, {suspend.fd(), POLLIN, 0}};
  if (::poll(fds, 3, milliseconds) <= 0) return false;
  char key = 0;
  if (fds[1].revents != 0) return true;
  if (fds[2].revents != 0) {
    suspend.obey(screen);
    return false;
  }
  const ssize_t got = ::read(STDIN_FILENO, &key, 1);
  return got == 0 || (got == 1 && (key == 'q' || key == 'Q'));
}

// Returns what was seen last of a run that is over; nullopt: the person left.
Result<std::optional<TopSource::Seen>> show_on_screen(TopSource& source, const Terminal& terminal) {
  ASSIGN_OR_RETURN(auto signals, StopSignals::block());
  const SuspendSignal suspend;
  Screen screen;
  const auto show = [&](const TopSource::Seen& seen) {
    Screen::show(shown_on(terminal, render_top(seen.view, Screen::size(terminal))));
  };
  bool left = false;
  const auto goes_on = [&] {  // while Slurm is silent, the ranks are shown and keys obeyed all the same
    if (const auto seen = source.glance()) show(*seen);
    left = wait_for_key(signals.fd(), suspend, screen, 0);
    return !left;
  };
  while (true) {
    ASSIGN_OR_RETURN(auto seen, source.look(goes_on));
    if (!left) show(seen);
    if (!left && seen.over) return std::optional(std::move(seen));
    if (left || wait_for_key(signals.fd(), suspend, screen, kRefreshMilliseconds))
      return std::optional<TopSource::Seen>();
  }
}

Result<int> top(const std::string& run_name, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto run, find_run(run_name, common));
  ASSIGN_OR_RETURN(const auto job, read_job(run));
  TopSource source(run, job);
  const Terminal kind = look_at_terminal(STDOUT_FILENO, contract::process_environment());
  const bool terminal = kind.moves && ::isatty(STDIN_FILENO) == 1 && !common.json;
  if (terminal) {
    ASSIGN_OR_RETURN(auto shown, show_on_screen(source, kind));
    if (shown) print_text(render_top(shown->view, {}));
    return contract::kExitDone;
  }
  ASSIGN_OR_RETURN(auto seen, source.look());
  print_text(common.json ? to_json(seen.view) : render_top(seen.view, {}));
  return contract::kExitDone;
}

}  // namespace

void add_top(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<RunName>();
  CLI::App* verb = app.add_subcommand(
      "top", "Watch the ranks of a run: state, step, time, memory, last line; q leaves it running");
  add_run_name(*verb, options.run, line, true);
  add_common(*verb, line, true);
  verb->footer("Where the output is no terminal, it shows them once.\nExample:\n  shardrun top tiny-llama");
  add_host(*verb, line);
  verb->callback(
      [&] { line.end(line.remote.host.empty() ? top(options.run, line.common) : run_elsewhere(line)); });
}

}  // namespace shardrun::launcher

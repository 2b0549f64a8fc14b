// StepCommand: handles the command that starts all ranks of a step (srun, mpirun) while it runs: passes its output
// on line by line, listens for a request to stop and for an alarm, and ends it when its time has come.
//
// The subclass decides how a step is stopped and killed; its functions are called between the start of run() and
// its return, on the thread that called run().
//
// Thread rule: one thread calls.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/schedule/scheduler.h"
#include "runtime/base/command.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

class StepCommand {
 public:
  explicit StepCommand(const StepRequest& request) : request_(request) {}
  StepCommand(const StepCommand&) = delete;
  virtual ~StepCommand() = default;

  // Starts argv with `environment` on top of ours, and returns when it has ended and its output is drained. Errors:
  // those of base::spawn_command.
  base::Result<StepOutcome> run(const std::vector<std::string>& argv,
                                const std::map<std::string, std::string>& environment);

 protected:
  using Clock = std::chrono::steady_clock;

  // Receives a whole line, without its end, that was passed on to our own stream.
  virtual void on_line(const std::string& line, bool is_error) = 0;
  // Is called at the first request to stop; a second one makes the time to kill come at once.
  virtual void on_stop() = 0;
  virtual void on_alarm() = 0;
  // Is called when the time of schedule_kill has come.
  virtual void on_kill_time() = 0;
  // Returns the ranks that are known to have ended otherwise than well.
  virtual std::vector<record::RankExit> known_exits() const { return {}; }

  // Sets the time to kill; an earlier time wins.
  void schedule_kill(std::chrono::milliseconds in);
  // Keeps the command's words, for a verdict where no rank is known to be at fault.
  void keep_words(const std::string& line);
  // Notes that no rank could be started on the node.
  void note_unreachable(const std::string& node) { outcome_.unreachable.push_back(node); }
  void signal_command(int signal) const;

  const StepRequest& request() const { return request_; }
  bool alarmed() const { return alarmed_; }
  bool stopped() const { return outcome_.stop_signal.has_value(); }

 private:
  struct Stream {
    int to;
    std::string pending;
    bool open = true;
  };
  void watch();
  void forward(int fd, Stream& stream);
  void take_stop_request();
  int milliseconds_to_kill() const;
  void finish(const std::string& name, int status);

  const StepRequest& request_;
  base::SpawnedCommand command_;
  Stream out_, err_;
  std::string words_;
  bool alarmed_ = false;
  std::optional<Clock::time_point> kill_at_;
  Clock::time_point stop_requested_;
  StepOutcome outcome_;
};

// Returns what a step's ranks find in their environment (runtime/contract/rank_env.h); `launcher` starts them, "shardrun",
// "srun" or "mpirun".
std::map<std::string, std::string> step_environment(const StepRequest& request, const std::string& launcher);

}  // namespace shardrun::launcher

// World: processes on several machines that take turns at each of their system calls, in an order that follows from one seed.
//
// A process is a fiber that runs real code of the product. tests/simulation/calls.cpp stands in the place of the C library's
// file calls: before each it gives its turn back, and the call then takes effect in one step on SharedFiles. A process that
// was killed goes on to its end alone, and all its calls fail without effect.
//
// Thread rule: one thread; at most one World exists at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulation/fiber.h"
#include "tests/simulation/shared_files.h"

namespace shardrun::simulation {

// Everything under this folder is in memory.
inline constexpr const char* kRoot = "/sim";

// What a process is told of itself and its machine.
struct Identity {
  std::string host, machine, boot, pid_namespace, slurm_job;  // slurm_job: "" outside of Slurm
  int slurm_starts = 0;
  int client = 0;  // of the shared file system: a machine
};

struct Process {
  std::string name;
  Identity identity;
  pid_t pid = 0;
  int64_t start_time = 0;
  int attempt = -1;  // in whose name it acts; -1: none yet
  std::function<void()> body;
  std::function<bool()> waits_for;  // empty: it can go on
  int64_t stopped_until = 0;        // it gets no turn before this tick
  bool killed = false, ended = false;
  emulation::Fiber* fiber = nullptr;

  bool is_alive() const { return !killed && !ended; }
};

class World {
 public:
  struct Settings {
    uint64_t seed = 0;
    bool caches = false;  // SharedFiles
    bool trace = false;   // print every call
  };
  explicit World(const Settings& settings);
  ~World();
  World(const World&) = delete;

  // Returns a number in [0, n) that follows from the seed.
  int chance(int n);
  int64_t now() const { return tick_; }
  SharedFiles& files() { return files_; }
  const std::vector<std::unique_ptr<Process>>& processes() const { return processes_; }

  Process& start(std::string name, Identity identity, std::function<void()> body);
  void kill(Process& process);
  static constexpr int64_t kUntilQuiet = int64_t{1} << 40;  // until nobody else can go on
  void stop(Process& process, int64_t ticks) { process.stopped_until = tick_ + ticks; }

  // Lets processes take turns until all have ended. `before_turn` is called with whoever comes next, and may kill, stop and
  // start processes. Returns false when that takes more than `most_ticks`.
  bool run(const std::function<void(Process&)>& before_turn, int64_t most_ticks);

  // For code that runs in a process.
  Process* running() const { return running_; }
  bool wait(std::function<bool()> until);  // false: it was killed
  void yield();
  void note(const std::string& line) const;  // into the trace
  // Is called after each change of a name, by whom.
  std::function<void(Process&)> on_change;

  // A file that a process has open.
  struct Handle {
    int inode = 0;     // 0: `text` is all of it
    std::string text;  // of a file of the machine, not a shared one
    size_t position = 0;
    bool appends = false;
  };
  int add_handle(Handle handle);
  Handle* handle(int descriptor);
  void close(int descriptor) { handles_.erase(descriptor); }

 private:
  static void run_body(void* process);
  Process* next();

  Settings settings_;
  uint64_t random_;
  SharedFiles files_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<int, Handle> handles_;
  Process *running_ = nullptr, *last_ = nullptr;
  int64_t tick_ = 0;
  int burst_;  // a process keeps its turn with the probability 1 - 1/burst
  int next_handle_ = 1 << 20;
};

// Returns the world that exists, if a process of it is running; else null.
World* world_of_caller();

}  // namespace shardrun::simulation

// Drives a run through crashes, stops, lost machines, rivals and new starts, in an order that follows from a seed, and looks
// for what must never be:
//   - something is published, or taken away, in the name of an attempt after a later one has begun
//   - the newest committed checkpoint is lost, or a checkpoint is loaded with other bits than were saved
//   - a conductor that lives, and that Slurm has not given up, is displaced
//   - a job cannot be started again, or a save of an undisturbed start fails
//   - a verdict names a rank first that was well
//
//   fencing_simulation [--seed FIRST] [--schedules N] [--all] [--trace]
//
// prints the first seed that breaks one of these, or all, and ends with 1; the same seed does the same again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/simulation/history.h"
#include "tests/simulation/job.h"
#include "tests/simulation/world.h"

namespace shardrun::simulation {
namespace {

constexpr int64_t kMostTicks = 60000;
constexpr int kFaultsUntil = 500;  // ticks; an undisturbed run takes some 250

constexpr const char* kOutsideOfContainers = "pid:[4026531836]";

// Where the job runs: under Slurm, or started by hand on one machine, of which others, containers or machines, have the name.
enum class Place { kSlurm, kOneMachine, kNamesakes };
enum class Fault { kKill, kShortStop, kLongStop, kLoseNode, kKillRank, kRival, kReboot, kAttach, kCount };

class Schedule {
 public:
  Schedule(uint64_t seed, bool trace)
      : world_({.seed = seed, .caches = seed % 2 == 1, .trace = trace}),
        place_(choose_place(world_.chance(6))),
        history_(world_, kRunDirectory, kCheckpoints),
        job_(world_, history_, place_ == Place::kSlurm) {
    world_.on_change = [this](Process& process) { history_.look(process); };
    const int faults = world_.chance(5);
    for (int i = 0; i < faults; ++i) fault_times_.insert(1 + world_.chance(kFaultsUntil));
  }

  // Returns what went wrong.
  std::optional<std::string> run() {
    start_next();
    bool ended = go_on();
    for (int clean = 0; ended && clean < 3 && !job_.is_completed(); ++clean) {
      // Nothing disturbs a start now but what sleeps. Where several people start it at once, one of them wins.
      fault_times_.clear();
      const int rivals = place_ == Place::kOneMachine ? 1 + world_.chance(3) : 1;
      for (int i = 0; i < rivals; ++i) start_next();
      ended = go_on();
      // Who died in another place can be seen to be gone only there.
      for (size_t i = 0; ended && place_ == Place::kNamesakes && !job_.is_completed() && i < rivals_.size();
           ++i) {
        job_.start(rivals_[i], {"box"});
        ended = go_on();
      }
      if (!job_.is_completed())
        history_.violation("a job cannot be started again: " + job_.starts().back()->end);
    }
    if (!ended) history_.violation(fmt::format("{} system calls do not end it", kMostTicks));
    judge_displaced();
    if (job_.is_completed() && history_.newest_checkpoint() != kSteps)
      history_.violation("a completed job has no checkpoint of its last step");
    return history_.first_violation();
  }

  int64_t ticks() const { return world_.now(); }
  bool has_restarted() const { return job_.starts().size() > 1; }

 private:
  static Place choose_place(int number) {
    return number < 3 ? Place::kSlurm : number < 5 ? Place::kOneMachine : Place::kNamesakes;
  }

  bool go_on() {
    bool ended = true;
    do {
      ended = world_.run([this](Process& next) { before_turn(next); }, kMostTicks);
    } while (ended && start_after_end());
    return ended;
  }

  // Slurm starts a job again that asked for it, or whose conductor died.
  bool start_after_end() {
    if (place_ != Place::kSlurm || job_.is_completed() || job_.starts().size() > 6) return false;
    const Start& last = *job_.starts().back();
    if (last.process->is_alive() || (!last.requeued && !last.process->killed)) return false;
    start_next();
    return true;
  }

  void start_next() {
    const int number = static_cast<int>(job_.starts().size());
    Identity identity;
    if (place_ == Place::kSlurm) {
      const int node = world_.chance(3);
      identity = {fmt::format("n{}", node),
                  fmt::format("machine{}", node),
                  fmt::format("boot{}", node),
                  kOutsideOfContainers,
                  "4711",
                  number,
                  node};
      job_.start(identity, {"n0", "n1", "n2"});
      return;
    }
    job_.start(box(), {"box"});
  }

  Identity box() const {
    return {"box", "machine", fmt::format("boot{}", boots_), kOutsideOfContainers, "", 0, 0};
  }

  void before_turn(Process& next) {
    while (!fault_times_.empty() && *fault_times_.begin() <= world_.now()) {
      fault_times_.erase(fault_times_.begin());
      befall(next, static_cast<Fault>(world_.chance(static_cast<int>(Fault::kCount))));
    }
    if (place_ == Place::kSlurm) start_after_end();
  }

  void befall(Process& process, Fault fault) {
    Crew* const crew = job_.crew_of(process);
    Start* const start = job_.start_of(process);
    const int rank = crew == nullptr || crew->ranks[0] == &process ? 0 : 1;
    world_.note(fmt::format("fault {} for {}", static_cast<int>(fault), process.name));
    switch (fault) {
      case Fault::kKill:
        if (crew != nullptr) {
          job_.kill_rank(*crew, rank);
        } else {
          world_.kill(process);
        }
        return;
      case Fault::kShortStop:
        world_.stop(process, 1 + world_.chance(300));
        return;
      case Fault::kLongStop:
        world_.stop(process, world_.chance(2) == 0 ? World::kUntilQuiet : 100 + world_.chance(2000));
        if (crew != nullptr) job_.lose_node(*crew, rank);
        give_up(start);
        return;
      case Fault::kLoseNode:
        if (crew != nullptr) job_.lose_node(*crew, rank);
        return;
      case Fault::kKillRank:
        if (crew != nullptr) job_.kill_rank(*crew, 1 - rank);
        return;
      case Fault::kRival:
        if (place_ != Place::kSlurm && job_.starts().size() < 5) start_rival();
        return;
      case Fault::kReboot:
        if (place_ == Place::kOneMachine) reboot();
        return;
      case Fault::kAttach:
        if (place_ == Place::kOneMachine && job_.starts().size() < 5) attach();
        return;
      case Fault::kCount:
        return;
    }
  }

  // Slurm believes that a node which does not answer is dead, and starts the job elsewhere.
  void give_up(Start* start) {
    if (start == nullptr || place_ != Place::kSlurm || job_.starts().back().get() != start) return;
    start->given_up = true;
    if (job_.starts().size() < 6) start_next();
  }

  // Everybody on the machine is gone, and numbers of processes begin anew.
  void reboot() {
    ++boots_;
    for (const auto& process : world_.processes()) world_.kill(*process);
    start_next();
  }

  // The conductor dies, now or before, or lives; and somebody takes over what it has left.
  void attach() {
    if (world_.chance(4) > 0) world_.kill(*job_.starts().back()->process);
    job_.start(box(), {"box"}, /*take_over=*/true);
  }

  // Somebody else starts the same run by hand: on the same machine, or where it only looks the same.
  void start_rival() {
    Identity identity = box();
    if (place_ == Place::kNamesakes) {
      const int kind =
          world_.chance(3);  // another container of the machine, of another machine, another machine
      if (kind < 2) identity.pid_namespace = "pid:[4026532000]";
      if (kind > 0) identity.boot = "another boot";
      if (kind > 0) identity.machine = "another machine";
      identity.client = 1;
    }
    rivals_.push_back(identity);
    Start& rival = job_.start(identity, {"box"});
    // The number of a process says nothing in another container.
    if (place_ == Place::kNamesakes) {
      rival.process->pid = job_.starts().front()->process->pid;
      rival.process->start_time = job_.starts().front()->process->start_time + world_.chance(2);
    }
  }

  void judge_displaced() {
    for (const auto& start : job_.starts()) {
      const bool was_displaced = start->end.find("taken over") != std::string::npos ||
                                 start->end.find("has begun") != std::string::npos;
      if (was_displaced && !start->given_up)
        history_.violation(fmt::format("{} lived, and was displaced: {}", start->process->name, start->end));
    }
  }

  World world_;
  Place place_;
  History history_;
  Job job_;
  std::multiset<int64_t> fault_times_;
  std::vector<Identity> rivals_;
  int boots_ = 0;
};

int simulate(uint64_t first, int64_t schedules, bool all, bool trace) {
  int64_t ticks = 0, restarted = 0, violations = 0;
  for (int64_t i = 0; i < schedules; ++i) {
    const uint64_t seed = first + static_cast<uint64_t>(i);
    Schedule schedule(seed, trace);
    const auto violation = schedule.run();
    ticks += schedule.ticks();
    restarted += schedule.has_restarted() ? 1 : 0;
    if (!violation) continue;
    std::printf("violation after %lld schedules, --seed %llu: %s\n", static_cast<long long>(i + 1),
                static_cast<unsigned long long>(seed), violation->c_str());
    ++violations;
    if (!all) return 1;
  }
  std::printf("%lld schedules of %lld system calls, %lld with several starts: %lld violations\n",
              static_cast<long long>(schedules), static_cast<long long>(ticks),
              static_cast<long long>(restarted), static_cast<long long>(violations));
  return violations > 0 ? 1 : 0;
}

}  // namespace
}  // namespace shardrun::simulation

int main(int count, char** arguments) {
  uint64_t first = 1;
  int64_t schedules = 1;
  bool all = false, trace = false;
  for (int i = 1; i < count; ++i) {
    const std::string option = arguments[i];
    if (option == "--trace") {
      trace = true;
    } else if (option == "--all") {
      all = true;
    } else if (option == "--seed" && i + 1 < count) {
      first = std::strtoull(arguments[++i], nullptr, 10);
    } else if (option == "--schedules" && i + 1 < count) {
      schedules = std::strtoll(arguments[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: fencing_simulation [--seed FIRST] [--schedules N] [--all] [--trace]\n");
      return 2;
    }
  }
  return shardrun::simulation::simulate(first, schedules, all, trace);
}

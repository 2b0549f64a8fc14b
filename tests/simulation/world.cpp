#include "tests/simulation/world.h"

#include <cstdio>
#include <utility>

namespace shardrun::simulation {
namespace {

World* the_world = nullptr;

// Stacks are used again by later worlds. Of a World a few dozen processes exist at most.
std::vector<std::unique_ptr<emulation::Fiber>>& spare_fibers() {
  static std::vector<std::unique_ptr<emulation::Fiber>> fibers;
  return fibers;
}

constexpr size_t kStackBytes = size_t{512} << 10;

}  // namespace

World* world_of_caller() {
  return the_world != nullptr && the_world->running() != nullptr ? the_world : nullptr;
}

World::World(const Settings& settings)
    : settings_(settings),
      random_(settings.seed * 0x9e3779b97f4a7c15ULL + 1),
      files_(settings.caches, [this](int n) { return chance(n); }),
      burst_(1 << chance(6)) {
  the_world = this;
}

World::~World() {
  for (const auto& process : processes_) {
    if (!process->ended) kill(*process);
    spare_fibers().emplace_back(process->fiber);
  }
  the_world = nullptr;
}

// splitmix64
int World::chance(int n) {
  uint64_t value = random_ += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<int>((value ^ (value >> 31)) % static_cast<uint64_t>(n));
}

void World::run_body(void* argument) {
  auto* const process = static_cast<Process*>(argument);
  process->body();
  process->ended = true;
  process->fiber->pause();
}

Process& World::start(std::string name, Identity identity, std::function<void()> body) {
  auto process = std::make_unique<Process>();
  process->name = std::move(name);
  process->identity = std::move(identity);
  process->pid = static_cast<pid_t>(100 + processes_.size());
  process->start_time = tick_ + 1000;
  process->body = std::move(body);
  if (spare_fibers().empty()) spare_fibers().push_back(std::make_unique<emulation::Fiber>(kStackBytes));
  process->fiber = spare_fibers().back().release();
  spare_fibers().pop_back();
  process->fiber->prepare(run_body, process.get());
  note("starts " + process->name);
  processes_.push_back(std::move(process));
  return *processes_.back();
}

void World::kill(Process& process) {
  if (process.ended) return;
  note("is killed: " + process.name);
  process.killed = true;
  Process* const before = std::exchange(running_, &process);
  if (before == &process) {
    running_ = before;  // it kills itself: its calls fail from now on
    return;
  }
  process.fiber->resume();
  running_ = before;
}

Process* World::next() {
  std::vector<Process*> ready;
  Process* sleeper = nullptr;
  int sleepers = 0;
  for (const auto& process : processes_) {
    if (!process->is_alive()) continue;
    const bool stopped = process->stopped_until > tick_;
    if (stopped && chance(++sleepers) == 0) sleeper = process.get();
    if (!stopped && (!process->waits_for || process->waits_for())) ready.push_back(process.get());
  }
  if (ready.empty() && sleeper != nullptr) {
    note("wakes up: " + sleeper->name);
    sleeper->stopped_until = 0;
    return sleeper->waits_for && !sleeper->waits_for() ? next() : sleeper;
  }
  if (ready.empty()) return nullptr;
  if (chance(burst_) != 0) {
    for (Process* process : ready) {
      if (process == last_) return last_;
    }
  }
  return ready[static_cast<size_t>(chance(static_cast<int>(ready.size())))];
}

bool World::run(const std::function<void(Process&)>& before_turn, int64_t most_ticks) {
  while (Process* const process = next()) {
    if (++tick_ > most_ticks) return false;
    before_turn(*process);
    if (!process->is_alive() || process->stopped_until > tick_) continue;
    process->waits_for = nullptr;
    last_ = running_ = process;
    process->fiber->resume();
    running_ = nullptr;
  }
  return true;
}

bool World::wait(std::function<bool()> until) {
  Process& process = *running_;
  if (process.killed) return false;
  process.waits_for = std::move(until);
  process.fiber->pause();
  return !process.killed;
}

void World::yield() {
  if (!running_->killed) running_->fiber->pause();
}

void World::note(const std::string& line) const {
  if (!settings_.trace) return;
  std::fprintf(stdout, "%6lld %-14s %s\n", static_cast<long long>(tick_),
               running_ != nullptr ? running_->name.c_str() : "", line.c_str());
}

int World::add_handle(Handle handle) {
  handles_[next_handle_] = std::move(handle);
  return next_handle_++;
}

World::Handle* World::handle(int descriptor) {
  const auto found = handles_.find(descriptor);
  return found == handles_.end() ? nullptr : &found->second;
}

}  // namespace shardrun::simulation

#include "plugins/ofi/engine.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "plugins/ofi/operations.h"
#include "plugins/ofi/receive_late.h"

namespace shardrun::ofi {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAnswerTime{400};    // the others must say within it how far they are
constexpr milliseconds kHaltTime{3000};     // the thread must end within it
constexpr milliseconds kLookInterval{500};  // between looks at the thread
constexpr milliseconds kStuckTime{4000};    // of a CPU: no turn of the thread takes it
constexpr int kTurnsAtStart = 2;            // of a caller that may have something to compute

}  // namespace

Status Engine::open(const OpenOptions& options, std::unique_ptr<Engine>* engine) {
  auto opened = std::unique_ptr<Engine>(new Engine());
  opened->cookie_ = random_cookie();
  if (!common::fill_random(&opened->secret_)) return {SHARDRUN_COMM_IO, "the kernel gives no random numbers"};
  opened->wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (opened->wake_fd_ < 0) return {SHARDRUN_COMM_IO, "eventfd failed: too many open files?"};
  if (Status status = opened->open_endpoints(options); !status.ok()) return status;
  *engine = std::move(opened);
  return {};
}

Status Engine::open_endpoints(const OpenOptions& options) {
  const bool automatic = options.provider == "auto";
  const bool one_node = options.node_count == 1;
  RankAddress address;
  address.cookie = cookie_;
  address.secret = secret_;
  if (Status status = choose_ipv4(options.interface_name, one_node, &address.ipv4); !status.ok())
    return status;

  if (options.provider == "shm" || (automatic && options.local_world_size != 1)) {
    if (options.local_rank == 0) NodeMemory::remove_left_behind();
    if (Status status = NodeMemory::open(cookie_, &memory_); !status.ok()) return status;
    address.endpoints.push_back({"shm", {}});
  }
  const std::string provider = automatic ? "tcp" : options.provider;
  const int count = options.provider == "shm" || (automatic && one_node) ? 0 : provider == "tcp" ? 2 : 1;
  for (int i = 0; i < count; ++i) {
    std::unique_ptr<Endpoint> endpoint;
    if (Status status = Endpoint::open(
            {provider, ipv4_text(address.ipv4), options.local_rank, options.local_world_size}, &endpoint);
        !status.ok())
      return status;
    const auto bytes = endpoint->address();
    address.endpoints.push_back({provider, {bytes.begin(), bytes.end()}});
    endpoints_.push_back(std::move(endpoint));
  }
  if (Status status = Bell::open(cookie_, &bell_); !status.ok()) return status;
  const auto silence = std::chrono::ceil<std::chrono::seconds>(options.timeout);
  if (Status status = Liveness::open(address.ipv4, silence, &liveness_); !status.ok()) return status;
  address.liveness_port = liveness_->port();
  packed_address_ = pack(address);
  return {};
}

Engine::~Engine() {
  endpoints_.clear();
  if (wake_fd_ >= 0) close(wake_fd_);
}

Status Engine::connect(uint32_t global_rank, std::vector<Peer> peers) {
  if (thread_.joinable()) return {SHARDRUN_COMM_INVALID, "connect was called twice"};
  if (global_rank >= peers.size() || peers.size() > kMostRanks) {
    return {SHARDRUN_COMM_INVALID, fmt::format("rank {} in a world of {}", global_rank, peers.size())};
  }
  global_rank_ = global_rank;
  peers_ = std::move(peers);
  std::vector<RankAddress> ranks(peers_.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (Status status = unpack(peers_[rank].address, &ranks[rank]); !status.ok()) {
      return {status.code, fmt::format("rank {}: {}", rank, status.text), {static_cast<uint32_t>(rank)}};
    }
    cookies_.push_back(ranks[rank].cookie);
  }
  find_near(ranks);
  if (Status status = connect_memory(); !status.ok()) return status;
  if (Status status = assign_endpoints(ranks); !status.ok()) return status;
  key_ = job_key(ranks);
  if (Status status = liveness_->connect(global_rank, ranks, *key_); !status.ok()) return status;
  post_control_receives();
  callers_help_ = endpoints_.empty() && memory_ != nullptr;
  // Signals are handled by the host's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {};
}

// Finds out which ranks share a node's memory.
void Engine::find_near(const std::vector<RankAddress>& ranks) {
  const auto shares = [&](uint32_t rank) {
    const auto& endpoints = ranks[rank].endpoints;
    return !endpoints.empty() && endpoints.front().provider == "shm";
  };
  std::map<uint64_t, uint32_t> first;
  std::map<uint32_t, uint32_t> count;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    places_.push_back(shares(rank) ? first.emplace(peers_[rank].node_id, rank).first->second : rank);
    near_.push_back(count[places_[rank]]++);
    crowd_ = std::max(crowd_, near_.back() + 1);
  }
}

Status Engine::connect_memory() {
  std::vector<uint64_t> cookies;
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (!is_near(rank)) continue;
    cookies.push_back(cookies_[rank]);
    ranks.push_back(rank);
  }
  if (cookies.size() == 1) memory_.reset();
  if (memory_ == nullptr) return {};
  return memory_->connect(cookies, near_[global_rank_], crowd_);
}

Status Engine::assign_endpoints(const std::vector<RankAddress>& ranks) {
  routes_.assign(ranks.size(), {});
  std::set<std::string> used;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == global_rank_) continue;
    if (is_near(rank)) {
      used.insert("shm");
      continue;
    }
    const auto common = provider_in_common(ranks[rank]);
    if (common.empty()) {
      return {
          SHARDRUN_COMM_INVALID,
          fmt::format("no provider in common with {}: shm reaches ranks of this node only", rank_text(rank)),
          {rank}};
    }
    for (const auto& [endpoint, address] : common) {
      if (Status status =
              endpoints_[endpoint]->connect_peer(rank, *address, static_cast<uint32_t>(ranks.size()));
          !status.ok()) {
        return status;
      }
    }
    routes_[rank] = {common.front().first, common.back().first};
    if (rank < global_rank_) std::swap(routes_[rank].send, routes_[rank].receive);
    used.insert(endpoints_[common.front().first]->provider());
  }
  for (const std::string& provider : used)
    provider_in_use_ += (provider_in_use_.empty() ? "" : "+") + provider;
  if (used.empty()) provider_in_use_ = "none";
  return {};
}

// Returns the endpoints that both ranks have, each with its counterpart's address.
std::vector<std::pair<uint32_t, const std::vector<std::byte>*>> Engine::provider_in_common(
    const RankAddress& theirs) const {
  std::vector<std::pair<uint32_t, const std::vector<std::byte>*>> common;
  std::set<const EndpointAddress*> taken;
  for (uint32_t i = 0; i < endpoints_.size(); ++i) {
    for (const EndpointAddress& address : theirs.endpoints) {
      if (address.provider != endpoints_[i]->provider() || !taken.insert(&address).second) continue;
      common.emplace_back(i, &address.bytes);
      break;
    }
  }
  return common;
}

std::string Engine::rank_text(uint32_t global_rank) const {
  return fmt::format("rank {} (node {})", global_rank, peers_[global_rank].node_name);
}

std::string Engine::ranks_text(const std::vector<uint32_t>& ranks) const {
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < 8; ++i) text += (i > 0 ? ", " : "") + rank_text(ranks[i]);
  if (ranks.size() > 8) text += fmt::format(" and {} more", ranks.size() - 8);
  return text;
}

void Engine::wake() const {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof(one));
}

Status Engine::open_channel(uint32_t id, std::vector<uint32_t> global_ranks, Channel** channel) {
  if (!thread_.joinable()) return {SHARDRUN_COMM_INVALID, "a channel was opened before connect"};
  if (global_ranks.empty()) {
    global_ranks.resize(peers_.size());
    std::iota(global_ranks.begin(), global_ranks.end(), 0u);
  }
  const auto mine = std::find(global_ranks.begin(), global_ranks.end(), global_rank_);
  const bool ascending =
      std::adjacent_find(global_ranks.begin(), global_ranks.end(),
                         [](uint32_t a, uint32_t b) { return a >= b; }) == global_ranks.end();
  if (id >= kControlChannel || mine == global_ranks.end() || !ascending ||
      global_ranks.back() >= peers_.size()) {
    return {SHARDRUN_COMM_INVALID,
            fmt::format("channel {}: the group must be ascending ranks of the world with rank {} "
                        "among them, the number below {}",
                        id, global_rank_, kControlChannel)};
  }
  auto opened = std::make_unique<Channel>();
  opened->engine = this;
  opened->id = id;
  opened->group.mine = static_cast<uint32_t>(mine - global_ranks.begin());
  std::vector<uint64_t> places;
  for (const uint32_t rank : global_ranks) places.push_back(places_[rank]);
  opened->group.layout = common::make_layout(places, crowd_);
  opened->group.global_ranks = std::move(global_ranks);
  std::lock_guard lock(mutex_);
  if (channels_.count(id) > 0) return {SHARDRUN_COMM_INVALID, fmt::format("channel {} is open already", id)};
  if (memory_ != nullptr) memory_->set_posted(id, 0);
  *channel = opened.get();
  channels_[id] = std::move(opened);
  return {};
}

void Engine::close_channel(Channel* channel) {
  std::unique_lock lock(mutex_);
  if (!channel->incomplete.empty()) {
    fail_locked({SHARDRUN_COMM_PEER_LOST,
                 fmt::format("{} left with {} #{} in flight", rank_text(global_rank_),
                             channel->incomplete.begin()->second, channel->incomplete.begin()->first),
                 {global_rank_}},
                global_rank_);
    changed_.wait_for(lock, kHaltTime, [this] { return halted_ || stuck_; });
    if (!halted_) return;  // its thread may still look at the channel; stop() gives up the whole engine
  }
  channels_.erase(channel->id);
}

Status Engine::start(Channel& channel, const Collective& collective, uint64_t* ticket) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  const uint64_t next = channel.posted + 1;
  auto active = std::make_unique<ActiveOperation>();
  // This may copy much, so it is not done under the mutex.
  active->operation = make_operation(channel.group, {*key_, channel.id, next}, collective);
  active->operation->ticket = next;
  active->channel = &channel;
  const uint32_t kind = active->operation->kind();
  const bool needs_connections = channel.group.layout.nodes() > 1 && !is_small(kind);
  {
    std::lock_guard lock(mutex_);
    channel.incomplete[next] = active->operation->name;
    if (needs_connections && channel.begun.insert(kind).second) {
      auto& opening = submitted_.emplace_back(std::make_unique<ActiveOperation>());
      opening->operation = make_barrier(channel.group, {*key_, channel.id, next});
      opening->operation->name = active->operation->name;
      opening->channel = &channel;
      opening->is_opening = true;
      for (const Flow& flow : active->operation->flows()) opening->peers.push_back(flow.global_rank);
    }
    submitted_.push_back(std::move(active));
    *ticket = channel.posted = next;
    if (memory_ != nullptr) memory_->set_posted(channel.id, next);
  }
  if (!callers_help_ || !begin_here()) wake();
  return {};
}

// Does what can be done at once of what was submitted. Returns false if the engine's thread must be woken for the rest.
bool Engine::begin_here() {
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn) return false;
  bool moved = true;
  for (int turns = 0; moved && turns < kTurnsAtStart; ++turns) {
    if (!take_turn(&moved)) return false;
  }
  return !moved && leave_to_thread();
}

// Takes turns until the operation is over, as long as there is something to do in them now and then.
void Engine::help(const Channel& channel, uint64_t ticket) {
  if (has_helper_.exchange(true)) return;
  const std::unique_lock turn(turn_);
  memory_->wake_up();
  const auto done = [&] {
    std::lock_guard lock(mutex_);
    return is_over(channel, ticket);
  };
  bool moved = false, goes_on = true;
  auto last_moved = Clock::now();
  while (goes_on && !done()) {
    goes_on = take_turn(&moved);
    if (moved) {
      last_moved = Clock::now();
    } else if (Clock::now() - last_moved > kLookTime) {
      break;
    } else {
      sched_yield();  // whoever has no CPU goes first
    }
  }
  has_helper_ = false;
  if (!goes_on || !leave_to_thread()) wake();
}

// Returns whether the engine's thread, which sleeps, will be woken for whatever there is to do.
bool Engine::leave_to_thread() {
  return may_sleep() && sleep_milliseconds(/*must_look=*/false) < 0;
}

// Says to the others that this rank must be woken, unless it has nothing under way: what they have for it will be looked at
// when it starts an operation, and a bell would only wake the thread. Returns false if there is something to look at now.
bool Engine::may_sleep() {
  const bool goes_on =
      std::any_of(active_.begin(), active_.end(), [](const auto& active) { return active->goes_on; });
  return !goes_on && (active_.empty() || memory_->may_sleep(notices_));
}

bool Engine::is_over(const Channel& channel, uint64_t ticket) const {
  return halted_ || stuck_ || channel.incomplete.count(ticket) == 0;
}

Status Engine::wait(Channel& channel, uint64_t ticket, milliseconds timeout) {
  if (ticket == 0 || ticket > channel.posted) {
    return {SHARDRUN_COMM_INVALID, fmt::format("channel {} has given no ticket {}", channel.id, ticket)};
  }
  if (callers_help_) help(channel, ticket);
  std::unique_lock lock(mutex_);
  const auto over = [&] { return is_over(channel, ticket); };
  ++waiting_;
  ++waiting_callers;
  const bool ended = wait_watching(lock, timeout, over);
  --waiting_callers;
  --waiting_;
  if (!ended) return time_out(channel, ticket, timeout, lock);
  if (channel.incomplete.count(ticket) == 0) return {};
  return failure_;
}

// Returns how long the engine's thread has had a CPU.
std::chrono::nanoseconds Engine::thread_time() {
  clockid_t clock;
  timespec time{};
  if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 || clock_gettime(clock, &time) != 0)
    return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Works like condition_variable::wait_for. Also ends, with failure_ and stuck_ set, when the engine's thread is stuck:
// libfabric guards shared memory of its own, which some providers use inside a node, with spin locks that a rank killed
// inside it never releases. A thread that gets no CPU is not stuck, so that its own time counts.
bool Engine::wait_watching(std::unique_lock<std::mutex>& lock, milliseconds timeout,
                           const std::function<bool()>& over) {
  const auto deadline = Clock::now() + timeout;
  uint64_t seen = turns_;
  std::chrono::nanoseconds time_then{};
  while (!over()) {
    const auto next = std::min(deadline, Clock::now() + kLookInterval);
    if (changed_.wait_until(lock, next, over)) return true;
    if (Clock::now() >= deadline) return false;
    const uint64_t turns = turns_;
    const auto time = thread_time();
    if (asleep_ || turns != seen || time_then.count() == 0) time_then = time;
    seen = turns;
    if (time - time_then >= kStuckTime) {
      fail_locked(
          {SHARDRUN_COMM_PEER_LOST,
           fmt::format("provider {} does not return: another rank was killed inside it", provider_in_use_)},
          global_rank_);
      stuck_ = true;
      if (memory_ != nullptr) memory_->withdraw();
    }
  }
  return true;
}

Status Engine::time_out(Channel& channel, uint64_t ticket, milliseconds timeout,
                        std::unique_lock<std::mutex>& lock) {
  const auto over = [&] { return is_over(channel, ticket); };
  // Only one question is asked at a time; whoever asks first most likely ends everything for all.
  changed_.wait_for(lock, 2 * kAnswerTime, [&] { return over() || !question_; });
  if (failure_.ok() && !over() && !question_) {
    question_.emplace();
    question_->channel = channel.id;
    question_->ticket = ticket;
    wake();
    const auto answered = [&] {
      return over() || (question_->asked && question_->answers.size() + 1 >= channel.group.size());
    };
    changed_.wait_for(lock, kAnswerTime, answered);
    std::vector<uint32_t> missing;
    for (const uint32_t rank : channel.group.global_ranks) {
      const auto answer = question_->answers.find(rank);
      if (rank == global_rank_ || (answer != question_->answers.end() && answer->second >= ticket)) continue;
      missing.push_back(rank);
    }
    const bool all_started = missing.empty();
    if (all_started) missing = question_->awaited;
    question_.reset();
    if (!over()) {
      fail_locked(
          {SHARDRUN_COMM_TIMEOUT,
           fmt::format("{} #{}: no {} from {} within {:.1f} s", channel.incomplete[ticket], ticket,
                       all_started ? "data" : "answer", ranks_text(missing), timeout.count() / 1000.0),
           missing},
          global_rank_);
    }
  }
  changed_.wait_for(lock, kHaltTime, over);
  if (channel.incomplete.count(ticket) == 0) return {};
  return failure_.ok() ? Status{SHARDRUN_COMM_TIMEOUT, "the engine's thread does not answer"} : failure_;
}

void Engine::abort(const std::string& reason) {
  fail(
      {SHARDRUN_COMM_ABORTED, fmt::format("{} aborted: {}", rank_text(global_rank_), reason), {global_rank_}},
      global_rank_);
}

void Engine::fail(Status failure, uint32_t origin) {
  std::lock_guard lock(mutex_);
  fail_locked(std::move(failure), origin);
}

void Engine::fail_locked(Status failure, uint32_t origin) {
  if (!failure_.ok() || halted_ || stuck_) return;
  told_failure_ = failure;
  failure_origin_ = origin;
  // The text names the rank that is lost; who noticed first matters only for what a rank decided on its own.
  if (origin != global_rank_ && failure.code != SHARDRUN_COMM_PEER_LOST &&
      failure.code != SHARDRUN_COMM_ABORTED) {
    failure.text += fmt::format(", says {}", rank_text(origin));
  }
  // What its machine refuses a rank is that one's failure: whoever only hears of it has lost a peer.
  if (origin != global_rank_ && failure.code == SHARDRUN_COMM_IO) failure.code = SHARDRUN_COMM_PEER_LOST;
  failure_ = std::move(failure);
  wake();
}

bool Engine::stop() {
  if (!thread_.joinable()) return true;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    wake();
    if (stuck_ || !changed_.wait_for(lock, kHaltTime, [this] { return halted_; })) {
      thread_.detach();
      return false;
    }
  }
  thread_.join();
  return true;
}

}  // namespace shardrun::ofi

// The engine's thread: posts segments, reaps completions, listens for news, sleeps.
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "plugins/abi/comm_v1.h"
#include "plugins/common/cpu_slices.h"
#include "plugins/ofi/engine.h"

namespace shardrun::ofi {
namespace {

using std::chrono::milliseconds;

constexpr int kActivePerChannel = SHARDRUN_COMM_V1_RUNNING;
static_assert(kActivePerChannel == std::tuple_size_v<decltype(Channel::regions)>);
constexpr int kStepsInTurn = 8;   // of an operation: a chunk from and to each rank of the node in each
constexpr int kIdleRounds = 20;   // looks at a provider without a descriptor before sleeping
constexpr int kBusyRounds = 120;  // looks, sleeping 1 ms in between, before sleeping longer
constexpr milliseconds kFarewellGrace{1000};  // a rank that left may have messages under way
constexpr milliseconds kSuspectGrace{150};    // the liveness links know the cause of a broken connection

// A thread that computes on the same CPU makes way as soon as a message arrives (docs/decisions/0028).
constexpr std::chrono::microseconds kSlices{100};

using Endpoints = std::vector<std::unique_ptr<Endpoint>>;

// One without a descriptor has a -1, which poll() passes over.
void add_endpoints(const Endpoints& endpoints, std::vector<pollfd>* poll_set) {
  for (const auto& endpoint : endpoints) poll_set->push_back({endpoint->wait_fd(), POLLIN, 0});
}

void hear_endpoints(const std::vector<pollfd>& poll_set, size_t first, const Endpoints& endpoints) {
  for (const auto& endpoint : endpoints) {
    if (poll_set[first++].revents != 0) endpoint->has_news();
  }
}

bool any_is_stale(const std::list<std::unique_ptr<ActiveOperation>>& active) {
  return std::any_of(active.begin(), active.end(), [](const auto& one) { return one->stale; });
}

}  // namespace

void Engine::run() {
  common::ask_for_slices(kSlices);
  std::unique_lock turn(turn_);
  Clock::time_point last_moved;
  for (bool moved = false; take_turn(&moved);) {
    if (moved) {
      idle_rounds_ = 0;
      last_moved = Clock::now();
      // What else may have come meanwhile shows where it looks before it sleeps.
      if (!has_helper_ && (callers_help_ || backlog_ || control_waits_ || any_is_stale(active_))) continue;
    } else if (callers_help_ && waiting_ > 0 && !has_helper_ && Clock::now() - last_moved < kLookTime) {
      sched_yield();  // nothing is computed here meanwhile
      continue;
    }
    sleep(turn);
  }
  halt();
}

// Returns false when it is time to halt.
bool Engine::take_turn(bool* moved) {
  turns_.fetch_add(1, std::memory_order_relaxed);
  if (!take_submissions()) return false;
  look_at_memory();
  *moved = progress();
  check_clocks();
  ring_bells();
  return true;
}

// Returns false when it is time to halt.
bool Engine::take_submissions() {
  std::vector<std::unique_ptr<ActiveOperation>> submitted;
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || !failure_.ok()) return false;
    submitted.swap(submitted_);
    if (question_ && !question_->asked) ask_question();
  }
  for (auto& active : submitted) {
    Channel& channel = *active->channel;
    channel.queued.push_back(std::move(active));
    start_queued(channel);
  }
  return true;
}

// Operations end in any order, but one starts only after that of kActivePerChannel before it has ended: so two that use
// the same half of the node's memory are one after the other for every rank. Before the first of its kind connections are made: of
// one that is made while links are full Linux remembers a long way, and gives it less of them (docs/decisions/0159).
void Engine::start_queued(Channel& channel) {
  while (!channel.queued.empty()) {
    ActiveOperation& next = *channel.queued.front();
    const bool must_wait = std::any_of(active_.begin(), active_.end(), [&](const auto& other) {
      return other->channel == &channel &&
             (other->is_opening || other->operation->ticket + kActivePerChannel <= next.operation->ticket);
    });
    if (must_wait) return;
    Status status = channel.scratch.take(next.operation->scratch_bytes(), &next.scratch);
    if (!status.ok()) return fail(std::move(status), global_rank_);
    next.operation->use_scratch(next.scratch);
    next.started = Clock::now();
    use_early_room(next);
    for (const uint32_t peer : next.peers) greet(peer);
    active_.push_back(std::move(channel.queued.front()));
    channel.queued.pop_front();
  }
}

bool Engine::has_failed() {
  std::lock_guard lock(mutex_);
  return !failure_.ok();
}

bool Engine::progress() {
  bool moved = false;
  std::vector<Completion> completions;
  for (const auto& endpoint : endpoints_) {
    if (Status status = endpoint->poll(&completions); !status.ok()) fail(std::move(status), global_rank_);
  }
  for (const Completion& completion : completions) handle(completion);
  moved = !completions.empty();
  if (!moved && !backlog_ && !control_waits_ && !any_is_stale(active_)) return false;
  backlog_ = false;
  // libfabric 1.17 crashes when a receive meets a message whose sender's connection it has just closed: learn of
  // deaths before the next receive is posted. Without libfabric the thread hears of them, if it gets the turn.
  if (!endpoints_.empty() || thread_waits_.exchange(false)) hear_news();
  if (has_failed()) return true;
  moved |= post_waiting_control();  // before receives of data can take the places of its own
  for (const auto& active : active_) moved |= work_on(*active);
  moved |= post_waiting_control();
  moved |= retire_finished();
  return moved;
}

void Engine::handle(const Completion& completion) {
  if (completion.request->owner == nullptr) {
    handle_control(completion);
  } else {
    handle_flow(completion);
  }
}

void Engine::handle_flow(const Completion& completion) {
  const Request& request = *completion.request;
  auto& active = *static_cast<ActiveOperation*>(request.owner);
  Flow& flow = active.operation->flows()[request.flow];
  if (completion.error != 0) {
    if (!request.is_send && Endpoint::is_truncation(completion.error)) {
      fail({SHARDRUN_COMM_MISMATCH,
            fmt::format("{} #{}: {} sent more than {} bytes: ranks call different operations",
                        active.operation->name, active.operation->ticket, rank_text(request.global_rank),
                        request.expected_bytes),
            {request.global_rank}},
           global_rank_);
    } else {
      suspect(request.global_rank, completion.error_text);
    }
    return;
  }
  if (!request.is_send && completion.bytes != request.expected_bytes) {
    fail({SHARDRUN_COMM_MISMATCH,
          fmt::format("{} #{}: {} sent {} bytes instead of {}: ranks call different operations",
                      active.operation->name, active.operation->ticket, rank_text(request.global_rank),
                      completion.bytes, request.expected_bytes),
          {request.global_rank}},
         global_rank_);
    return;
  }
  flow.mark_complete(request.segment);
  active.stale = true;
}

Endpoint& Engine::endpoint_for(uint32_t global_rank, bool is_send) const {
  const Route& route = routes_[global_rank];
  return *endpoints_[is_send ? route.send : route.receive];
}

// Sees whether ranks of this node have something new for this one.
void Engine::look_at_memory() {
  if (memory_ == nullptr) return;
  const uint64_t notices = memory_->notices();
  if (notices == notices_) return;
  notices_ = notices;
  for (const auto& active : active_) active->stale |= active->operation->needs_region();
}

// Returns whether the operation has what it needs of the node's memory.
bool Engine::give_region(ActiveOperation& active) {
  Operation& operation = *active.operation;
  if (!operation.needs_region() || active.has_region) return true;
  Channel& channel = *active.channel;
  auto& region = channel.regions[operation.ticket % 2];
  if (region == nullptr) {
    const Group& group = channel.group;
    std::vector<uint32_t> members;
    for (const uint32_t member : group.layout.members[group.layout.node_of[group.mine]])
      members.push_back(near_[group.global_ranks[member]]);
    std::string ranks;
    for (const uint32_t rank : group.global_ranks) ranks += fmt::format("{} ", rank);
    const common::Digest digest = (*key_)({"group of a channel", ranks});
    uint64_t name = 0;
    std::memcpy(&name, digest.data(), sizeof(name));
    region = std::make_unique<NodeRegion>(
        memory_.get(), channel.id, static_cast<uint32_t>(operation.ticket % 2), std::move(members), name | 1);
  }
  Status status = region->attach(operation.writes_to_all, operation.writes_to_one, &active.has_region);
  region->take_news(&to_notify_);
  if (!status.ok()) fail(std::move(status), global_rank_);
  operation.wait_for_region(region.get());
  if (active.has_region) operation.use_region(region.get());
  return active.has_region;
}

// Does what can be done for one operation now. Returns true if anything moved.
bool Engine::work_on(ActiveOperation& active) {
  if (!active.stale || !give_region(active)) return false;
  Operation& operation = *active.operation;
  bool moved = advance(active);
  if (const auto& mismatch = operation.mismatch()) {
    const uint32_t rank = active.channel->group.global_ranks[mismatch->group_rank];
    fail({SHARDRUN_COMM_MISMATCH,
          fmt::format("{} #{}: {} gives {} instead of {}: ranks call different operations", operation.name,
                      operation.ticket, rank_text(rank), mismatch->sent, mismatch->expected),
          {rank}},
         global_rank_);
    return true;
  }
  for (Flow& flow : operation.flows()) {
    while (flow.may_post() && post_flow(active, flow)) {
      moved = true;
      // A row of messages takes a CPU for milliseconds: ranks that share it begin meanwhile.
      if (flow.is_send && flow.segments() > 1 && waiting_ > 0) sched_yield();
    }
    if (!flow.is_send && flow.posted > flow.room) tell_room(active, flow);
  }
  return moved;
}

// Lets an operation do a few steps of its local work. On one node, where callers look for
// news, they hear of each chunk at once and work on it while this rank makes the next.
bool Engine::advance(ActiveOperation& active) {
  Operation& operation = *active.operation;
  bool moved = false;
  for (int step = 0; step < kStepsInTurn; ++step) {
    active.stale = active.goes_on = operation.advance();
    moved |= active.goes_on;
    if (operation.needs_region()) active.channel->regions[operation.ticket % 2]->take_news(&to_notify_);
    if (!active.goes_on) break;
    if (callers_help_) ring_bells();
  }
  return moved;
}

bool Engine::post_flow(ActiveOperation& active, Flow& flow) {
  Request& request = flow.requests[flow.posted % flow.window];
  request.owner = &active;
  request.flow = static_cast<uint32_t>(&flow - active.operation->flows().data());
  request.segment = flow.posted;
  request.global_rank = flow.global_rank;
  request.expected_bytes = flow.segment_size(flow.posted);
  request.is_send = flow.is_send;
  Endpoint& endpoint = endpoint_for(flow.global_rank, flow.is_send);
  std::byte* data = flow.segment_data(flow.posted);
  int error = 0;
  const Post post = flow.is_send ? endpoint.send(data, request.expected_bytes, flow.tag, &request, &error)
                                 : endpoint.receive(data, request.expected_bytes, flow.tag,
                                                    /*from_peer=*/true, &request, &error);
  if (post == Post::kAccepted) {
    ++flow.posted;
    return true;
  }
  if (post == Post::kTryAgain) {
    active.stale = backlog_ = true;
  } else {
    suspect(flow.global_rank, Endpoint::describe(error));
  }
  return false;
}

bool Engine::retire_finished() {
  bool retired = false;
  for (auto at = active_.begin(); at != active_.end();) {
    ActiveOperation& active = **at;
    if (!active.operation->finished()) {
      ++at;
      continue;
    }
    Channel& channel = *active.channel;
    if (active.operation->synchronises && channel.group.size() == peers_.size()) {
      if (memory_ != nullptr) memory_->forget_name();
    }
    const uint64_t ticket = active.operation->ticket;
    const bool was_opening = active.is_opening;
    channel.scratch.give_back(active.scratch);
    at = active_.erase(at);
    start_queued(channel);
    retired = true;
    if (was_opening) continue;
    // The channel may be freed as soon as its last ticket is gone, so it is not touched afterwards.
    std::lock_guard lock(mutex_);
    channel.incomplete.erase(ticket);
    changed_.notify_all();
  }
  return retired;
}

// Returns whether a message may be under way that no descriptor announces.
bool Engine::must_look() const {
  return std::any_of(active_.begin(), active_.end(), [this](const auto& active) {
    const auto& flows = active->operation->flows();
    return std::any_of(flows.begin(), flows.end(), [this](const Flow& flow) {
      return !flow.finished() && endpoint_for(flow.global_rank, flow.is_send).wait_fd() < 0;
    });
  });
}

// Returns how long poll may sleep, in milliseconds; -1 means until a descriptor wakes it.
int Engine::sleep_milliseconds(bool must_look) {
  const int news = news_milliseconds(must_look);
  if (caller_milliseconds_ < 0) return news;
  return news < 0 ? caller_milliseconds_ : std::min(news, caller_milliseconds_);
}

int Engine::news_milliseconds(bool must_look) {
  if (backlog_) return 1;
  for (const auto& endpoint : endpoints_) {
    if (!endpoint->may_sleep()) return 0;
  }
  if (must_look) return idle_rounds_ < kBusyRounds ? 1 : 10;
  if (suspect_) return 20;
  // Where no descriptor tells of a message, one may ask how far this rank is; who asked waits for 400 ms.
  const bool tells = std::all_of(endpoints_.begin(), endpoints_.end(),
                                 [](const auto& endpoint) { return endpoint->wait_fd() >= 0; });
  if (!tells) return 100;
  return !departed_.empty() && !active_.empty() ? 100 : -1;
}

void Engine::ring_bells() {
  std::sort(to_notify_.begin(), to_notify_.end());
  to_notify_.erase(std::unique(to_notify_.begin(), to_notify_.end()), to_notify_.end());
  for (const uint32_t near : to_notify_) {
    if (memory_->notify(near)) bell_->ring(memory_->cookie(near));
  }
  to_notify_.clear();
}

void Engine::sleep(std::unique_lock<std::mutex>& turn) {
  const bool look_again = must_look();
  ++idle_rounds_;
  if (look_again && idle_rounds_ <= kIdleRounds) {
    sched_yield();
    return;
  }
  if (memory_ != nullptr && !may_sleep() && !has_helper_) return;
  listen(sleep_milliseconds(look_again), &turn);
  if (memory_ != nullptr) memory_->wake_up();
}

// Sleeps until a descriptor has something or the time is up, and handles what the liveness links say. Others may have the turn
// meanwhile.
void Engine::listen(int timeout_milliseconds, std::unique_lock<std::mutex>* turn) {
  std::vector<pollfd> poll_set = {
      {liveness_->wait_fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}, {bell_->fd(), POLLIN, 0}};
  const size_t first_endpoint = poll_set.size();
  add_endpoints(endpoints_, &poll_set);
  if (turn != nullptr) turn->unlock();
  asleep_.store(true, std::memory_order_relaxed);
  const int ready = poll(poll_set.data(), poll_set.size(), timeout_milliseconds);
  asleep_.store(false, std::memory_order_relaxed);
  if (turn != nullptr && !turn->try_lock()) {
    thread_waits_ = ready > 0;
    turn->lock();
  }
  if (ready <= 0) return;
  if (poll_set[1].revents != 0) {
    uint64_t count;
    (void)!read(wake_fd_, &count, sizeof(count));
  }
  if (poll_set[2].revents != 0) {
    if (bell_->clear()) idle_rounds_ = 0;
  }
  hear_endpoints(poll_set, first_endpoint, endpoints_);
  if (poll_set[0].revents != 0) hear_links();
}

// Asks the endpoints and reads the liveness links, without sleeping: whoever clears the bell must look at the memory again.
void Engine::hear_news() {
  std::vector<pollfd> poll_set = {{liveness_->wait_fd(), POLLIN, 0}};
  add_endpoints(endpoints_, &poll_set);
  if (poll(poll_set.data(), poll_set.size(), 0) <= 0) return;
  hear_endpoints(poll_set, 1, endpoints_);
  if (poll_set[0].revents != 0) hear_links();
}

void Engine::hear_links() {
  for (const Liveness::News& news : liveness_->hear()) {
    switch (news.kind) {
      case Liveness::News::Kind::kFailure:
        fail(news.failure, news.global_rank);
        break;
      case Liveness::News::Kind::kFarewell:
        departed_.emplace(news.global_rank, Clock::now());
        break;
      case Liveness::News::Kind::kClosed:
        fail({SHARDRUN_COMM_PEER_LOST,
              fmt::format("lost {}: its connection closed", rank_text(news.global_rank)),
              {news.global_rank}},
             global_rank_);
        break;
      case Liveness::News::Kind::kSilent:
        fail({SHARDRUN_COMM_PEER_LOST,
              fmt::format("lost {}: it no longer answers, or the network between it and {} is cut",
                          rank_text(news.global_rank), rank_text(global_rank_)),
              {news.global_rank}},
             global_rank_);
        break;
    }
  }
}

void Engine::suspect(uint32_t global_rank, const std::string& why) {
  if (!suspect_) suspect_ = Suspect{global_rank, why, Clock::now() + kSuspectGrace};
}

void Engine::check_clocks() {
  const auto now = Clock::now();
  caller_milliseconds_ = liveness_->look_at_callers();
  // Messages to a rank that said farewell may fail; whether one was needed is decided by the farewell's grace period.
  if (suspect_ && departed_.count(suspect_->global_rank) > 0) suspect_.reset();
  if (suspect_ && now >= suspect_->deadline) {
    // A rank passes its news on before it closes anything: what explains the broken connection is here by now.
    listen(0);
    fail({SHARDRUN_COMM_PEER_LOST,
          fmt::format("lost {}: {}", rank_text(suspect_->global_rank), suspect_->why),
          {suspect_->global_rank}},
         global_rank_);
  }
  if (departed_.empty()) return;
  for (const auto& active : active_) {
    for (const uint32_t rank : active->operation->awaited()) {
      const auto departed = departed_.find(rank);
      if (departed == departed_.end() || now < std::max(departed->second, active->started) + kFarewellGrace)
        continue;
      fail({SHARDRUN_COMM_PEER_LOST,
            fmt::format("{} #{}: {} has left", active->operation->name, active->operation->ticket,
                        rank_text(rank)),
            {rank}},
           global_rank_);
      return;
    }
  }
}

void Engine::halt() {
  Status told;
  uint32_t origin = 0;
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    told = told_failure_;
    origin = failure_origin_;
    failed = !failure_.ok();
    if (!failed) failure_ = {SHARDRUN_COMM_ABORTED, "the context is closed"};
  }
  if (!told.ok()) liveness_->tell_failure(origin, told);
  liveness_->say_farewell();
  if (failed) {
    for (auto& endpoint : endpoints_) Endpoint::abandon(std::move(endpoint));
  }
  endpoints_.clear();
  active_.clear();
  if (memory_ != nullptr) memory_->withdraw();
  std::lock_guard lock(mutex_);
  submitted_.clear();
  for (const auto& [id, channel] : channels_) channel->queued.clear();
  halted_ = true;
  changed_.notify_all();
}

}  // namespace shardrun::ofi

// Engine: one rank's endpoints, the thread that moves its messages, and what happens when something breaks.
//
// Callers make operations and hand them over; the engine's thread posts their segments, sleeps in poll() until a file
// descriptor has news, and wakes the waiting caller. On one node, where nothing but memory is in use, a caller takes the
// thread's turns itself when it starts an operation and while it waits (docs/decisions/0122). The first failure, whether local
// or told by another rank, is final: the thread passes it on over the liveness links and closes the endpoints so that no
// buffer is touched any more, and only then do waits return it.
//
// Thread rule: start, wait and abort may be called from any thread (one per channel); open, connect and stop from one
// thread. A member belongs to whoever holds turn_, which is the engine's thread unless it sleeps, and is taken before mutex_,
// where a comment does not put it under mutex_.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "plugins/common/collective.h"
#include "plugins/ofi/address.h"
#include "plugins/ofi/bell.h"
#include "plugins/ofi/channel.h"
#include "plugins/ofi/control_message.h"
#include "plugins/ofi/fabric.h"
#include "plugins/ofi/liveness.h"
#include "plugins/ofi/node_memory.h"
#include "plugins/ofi/operation.h"

namespace shardrun::ofi {

using common::Collective;
using common::OpenOptions;
using common::Peer;

class Engine {
 public:
  static Status open(const OpenOptions& options, std::unique_ptr<Engine>* engine);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::vector<std::byte>& address() const { return packed_address_; }
  const std::string& provider() const { return provider_in_use_; }
  Status connect(uint32_t global_rank, std::vector<Peer> peers);

  // An empty `global_ranks` means the world.
  Status open_channel(uint32_t id, std::vector<uint32_t> global_ranks, Channel** channel);
  void close_channel(Channel* channel);

  Status start(Channel& channel, const Collective& collective, uint64_t* ticket);
  Status wait(Channel& channel, uint64_t ticket, std::chrono::milliseconds timeout);
  void abort(const std::string& reason);

  // Says farewell and ends the thread. Returns false if the thread did not end (a provider is stuck): then the engine
  // must not be destroyed.
  bool stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct ControlSlot {
    Request request;  // first member: a completion's request leads back to its slot
    ControlMessage message;
    uint32_t endpoint = 0;
    bool posted = false;
  };
  // A caller's question to all members of a channel: how far have you come?
  struct Question {
    uint32_t channel = 0;
    uint64_t ticket = 0;
    bool asked = false;
    std::map<uint32_t, uint64_t> answers;  // rank → its newest ticket
    // The ranks that our own operation awaits; they are named if everyone has started it.
    std::vector<uint32_t> awaited;
  };
  struct Suspect {
    uint32_t global_rank = 0;
    std::string why;
    Clock::time_point deadline;
  };

  Engine() = default;
  Status open_endpoints(const OpenOptions& options);
  void find_near(const std::vector<RankAddress>& ranks);
  bool is_near(uint32_t global_rank) const { return places_[global_rank] == places_[global_rank_]; }
  Status connect_memory();
  Status assign_endpoints(const std::vector<RankAddress>& ranks);
  std::vector<std::pair<uint32_t, const std::vector<std::byte>*>> provider_in_common(
      const RankAddress& theirs) const;
  std::string rank_text(uint32_t global_rank) const;
  std::string ranks_text(const std::vector<uint32_t>& ranks) const;
  void wake() const;

  // The caller's side; no lock is held.
  // Whoever takes turns looks for work so long before it sleeps.
  static constexpr std::chrono::microseconds kLookTime{1000};
  bool begin_here();
  void help(const Channel& channel, uint64_t ticket);
  bool leave_to_thread();
  bool may_sleep();

  // The mutex is held.
  bool is_over(const Channel& channel, uint64_t ticket) const;
  std::chrono::nanoseconds thread_time();
  bool wait_watching(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout,
                     const std::function<bool()>& over);
  Status time_out(Channel& channel, uint64_t ticket, std::chrono::milliseconds timeout,
                  std::unique_lock<std::mutex>& lock);
  void fail(Status failure, uint32_t origin);
  void fail_locked(Status failure, uint32_t origin);

  // The thread's side.
  void run();
  bool take_turn(bool* moved);
  bool take_submissions();
  bool has_failed();
  void hear_news();
  bool progress();
  void handle(const Completion& completion);
  void handle_flow(const Completion& completion);
  void start_queued(Channel& channel);
  void look_at_memory();
  bool give_region(ActiveOperation& active);
  bool work_on(ActiveOperation& active);
  bool advance(ActiveOperation& active);
  bool post_flow(ActiveOperation& active, Flow& flow);
  bool retire_finished();
  void ring_bells();
  void sleep(std::unique_lock<std::mutex>& turn);
  void listen(int timeout_milliseconds, std::unique_lock<std::mutex>* turn = nullptr);
  bool must_look() const;
  Endpoint& endpoint_for(uint32_t global_rank, bool is_send) const;
  int sleep_milliseconds(bool must_look);
  int news_milliseconds(bool must_look);
  void hear_links();
  void check_clocks();
  void suspect(uint32_t global_rank, const std::string& why);
  void halt();

  // Control messages (engine_control.cpp).
  void post_control_receives();
  void greet(uint32_t global_rank);
  void ask_question();
  void send_control(uint32_t global_rank, uint32_t endpoint, const ControlMessage& message);
  void tell_room(const ActiveOperation& active, Flow& flow);
  void hear_room(const ControlMessage& message);
  void use_early_room(ActiveOperation& active);
  bool give_room(ActiveOperation& active, const ControlMessage& message);
  bool post_waiting_control();
  void handle_control(const Completion& completion);

  uint32_t global_rank_ = 0;
  uint64_t cookie_ = 0;
  common::Key secret_{};
  std::optional<common::KeyedHash> key_;  // the job's, since connect
  std::vector<std::byte> packed_address_;
  std::string provider_in_use_;
  std::vector<Peer> peers_;
  std::vector<uint64_t> cookies_;  // by rank
  // By rank: the first rank with which it shares a node's memory, itself included.
  std::vector<uint32_t> places_;
  std::vector<uint32_t> near_;  // by rank: the number of a rank of this node in memory_
  uint32_t crowd_ = 1;          // the most ranks that share memory anywhere in the job
  // Indices into endpoints_, for ranks of other nodes. Over tcp a large message waits for a word of its receiver, which
  // must not queue behind the bytes that go the other way. So messages to higher ranks and to lower ranks have
  // endpoints, and hence connections, of their own.
  struct Route {
    uint32_t send = 0, receive = 0;
  };
  std::vector<Route> routes_;  // by rank
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::unique_ptr<Liveness> liveness_;
  std::unique_ptr<Bell> bell_;
  std::unique_ptr<NodeMemory> memory_;  // null: no rank shares memory with this one
  uint64_t notices_ = 0;                // of memory_, when it was last looked at
  int wake_fd_ = -1;
  bool callers_help_ = false;  // set before the thread starts: all ranks share memory
  std::thread thread_;

  std::mutex turn_;
  std::atomic<bool> has_helper_{false};    // a caller takes the turns, or is about to
  std::atomic<bool> thread_waits_{false};  // the thread was woken, and a caller has the turn
  std::atomic<uint32_t> waiting_{0};       // callers that sleep until an operation is over
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, std::unique_ptr<Channel>> channels_;    // under mutex_
  std::vector<std::unique_ptr<ActiveOperation>> submitted_;  // under mutex_
  std::optional<Question> question_;                         // under mutex_
  // Both are under mutex_: our own failure, and the one that is passed on.
  Status failure_, told_failure_;
  uint32_t failure_origin_ = 0;  // under mutex_
  bool stopping_ = false;        // under mutex_
  bool halted_ = false;          // under mutex_; the thread is done
  bool stuck_ = false;           // under mutex_; the thread is lost inside a provider
  std::list<std::unique_ptr<ActiveOperation>> active_;
  uint64_t control_tag_ = 0;
  std::set<uint32_t> greeted_;  // ranks of other nodes
  std::list<ControlSlot> control_receives_, control_sends_;
  bool control_waits_ = true;  // some of them are not posted
  // What was said of operations that have not begun here, by channel and ticket.
  std::map<std::pair<uint32_t, uint64_t>, std::vector<ControlMessage>> early_room_;
  std::vector<uint32_t> to_notify_;  // ranks of this node, as memory_ counts
  std::map<uint32_t, Clock::time_point> departed_;
  std::optional<Suspect> suspect_;
  bool backlog_ = false;  // a provider asked to try again
  // These are for waiting callers: a thread that neither sleeps nor turns is stuck inside a provider.
  std::atomic<uint64_t> turns_{0};
  std::atomic<bool> asleep_{false};
  int idle_rounds_ = 0;           // turns since something moved
  int caller_milliseconds_ = -1;  // until the liveness links' callers must be looked at; -1: they need not
};

}  // namespace shardrun::ofi

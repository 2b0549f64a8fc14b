// Liveness: plain TCP links that carry news of failures, next to the data and independent of its provider.
//
// libfabric does not tell a receiver that its sender died, so ranks hold links to the ranks at distance 1, 2, 4, … in
// both directions: every rank is watched by several others, each holds at most 2·log2(n) links, and news that every
// rank passes on once reaches all of them in log2(n) hops. A link that closes without a farewell is a death. A rank
// passes its news on before it closes anything, so over one link the cause always comes before the effect.
//
// Only ranks of the job can say anything (liveness_message.h). A caller who has not said who he is within 5 s is closed, and
// so is the oldest of them when there are more than 64: strangers cost neither descriptors nor patience.
//
// Thread rule: open and connect on the opening thread, everything later on the engine's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plugins/ofi/address.h"
#include "plugins/ofi/liveness_message.h"
#include "plugins/ofi/status.h"

namespace shardrun::ofi {

// When the kernel asks whether the other end is there, in seconds, and how often it asks before it gives up.
struct KeepAlive {
  int idle = 0, interval = 0, probes = 0;
};
// A machine that loses power sends nothing, and neither does one whose link is down for a while: gives up after `silence`, and
// never before 25 s.
KeepAlive keep_alive(std::chrono::seconds silence);

class Liveness {
 public:
  // What a link told us.
  struct News {
    enum class Kind { kClosed, kSilent, kFarewell, kFailure } kind = Kind::kClosed;
    uint32_t global_rank = 0;  // whom it is about; for kFailure who said it first
    Status failure;
  };

  // A rank of which nothing came for `silence` is lost.
  static Status open(uint32_t ipv4, std::chrono::seconds silence, std::unique_ptr<Liveness>* liveness);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  uint16_t port() const { return port_; }
  // Returns the number of ranks that a link with words in both directions leads to.
  size_t links() const;

  // Starts the links to the watched ranks above ours; the ranks below call us. `key` is the job's.
  Status connect(uint32_t global_rank, const std::vector<RankAddress>& ranks, const common::KeyedHash& key);

  // A descriptor that can be read while there is something to hear. One for all links: whoever sleeps polls it in their place.
  int wait_fd() const { return set_; }
  // Hears what has come, without waiting.
  std::vector<News> hear();

  // Closes callers who have had their time. Returns for how many milliseconds this need not be called again; -1: until
  // somebody calls.
  int look_at_callers();

  // Tells every linked rank; `global_rank` is who said it first. Does not block.
  void tell_failure(uint32_t global_rank, const Status& failure);
  // Greets and hears whoever has called by now, then says farewell to all.
  void say_farewell();

 private:
  using Clock = std::chrono::steady_clock;
  struct Link {
    int fd = -1;
    int64_t global_rank = -1;  // -1 until its hello has come
    Clock::time_point called;
    uint64_t sent = 0, heard = 0;  // messages
    bool connecting = false;
    bool welcomed = false;  // the other side has said something, so it knows this link
    bool farewell = false;
    std::string received;
  };
  Liveness() = default;
  void set_link_options(int fd) const;
  bool watch(int operation, int fd, uint32_t events) const;  // false: the kernel refuses
  void hear_link(Link& link, std::vector<News>* news);
  void accept_links(std::vector<News>* news);
  static bool is_caller(const Link& link);  // whether it has not said yet who it is
  void forget_closed();
  void send_message(Link& link, const LivenessMessage& message);
  void greet(Link& link);
  void lose(Link& link, std::vector<News>* news, News::Kind kind = News::Kind::kClosed);
  void read_link(Link& link, std::vector<News>* news);
  bool take_message(Link& link, std::vector<News>* news);
  void close_link(Link& link);

  KeepAlive keep_alive_;
  int listener_ = -1;
  int set_ = -1;  // an epoll of the listener and the links
  uint16_t port_ = 0;
  uint32_t global_rank_ = 0, world_size_ = 0;
  std::optional<common::KeyedHash> key_;
  std::set<uint32_t> awaited_;  // ranks below ours that have not called yet
  std::vector<Link> links_;
  // No descriptor was left for a caller: the others wait until then.
  std::optional<Clock::time_point> rest_end_;
};

}  // namespace shardrun::ofi

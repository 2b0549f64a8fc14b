// Liveness: plain TCP links that carry news of failures, next to the data and independent of its provider.
//
// libfabric does not tell a receiver that its sender died, so ranks hold links to the ranks at distance 1, 2, 4, … in
// both directions: every rank is watched by several others, each holds at most 2·log2(n) links, and news that every
// rank passes on once reaches all of them in log2(n) hops. A link that closes without a farewell is a death. A rank
// passes its news on before it closes anything, so over one link the cause always comes before the effect.
//
// Thread rule: open and connect on the opening thread, everything later on the engine's thread.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/ofi/address.h"
#include "plugins/ofi/status.h"

namespace shardrun::ofi {

class Liveness {
 public:
  // What a link told us.
  struct News {
    enum class Kind { kClosed, kFarewell, kFailure } kind = Kind::kClosed;
    uint32_t global_rank = 0;  // whom it is about; for kFailure who said it first
    Status failure;
  };

  static Status open(uint32_t ipv4, uint64_t cookie, std::unique_ptr<Liveness>* liveness);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  uint16_t port() const { return port_; }

  // Starts the links to the watched ranks above ours; the ranks below call us.
  Status connect(uint32_t global_rank, const std::vector<RankAddress>& ranks);

  void add_to(std::vector<pollfd>* poll_set) const;
  // Call it after poll with the same set, `first` being the index where add_to began.
  std::vector<News> handle(const std::vector<pollfd>& poll_set, size_t first);

  // Tells every linked rank; `global_rank` is who said it first. Does not block.
  void tell_failure(uint32_t global_rank, const Status& failure);
  // Greets and hears whoever has called by now, then says farewell to all.
  void say_farewell();

 private:
  struct Link {
    int fd = -1;
    int64_t global_rank = -1;  // -1 until its hello has come
    bool connecting = false;
    bool welcomed = false;  // the other side has said something, so it knows this link
    bool farewell = false;
    std::string received;
  };
  struct Header;

  Liveness() = default;
  void accept_links();
  void send_message(const Link& link, uint32_t kind, uint32_t global_rank, const Status& failure = {});
  void greet(Link& link);
  void lose(Link& link, std::vector<News>* news);
  void read_link(Link& link, std::vector<News>* news);
  bool take_message(Link& link, std::vector<News>* news);
  void close_link(Link& link);

  int listener_ = -1;
  uint16_t port_ = 0;
  uint64_t cookie_ = 0;
  uint32_t global_rank_ = 0;
  std::vector<uint64_t> cookies_;  // by rank
  std::vector<Link> links_;
};

}  // namespace shardrun::ofi

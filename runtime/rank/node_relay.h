// NodeRelay: what the supervisor that speaks for its node has of the others.
//
// The supervisors of a node meet at a name of an abstract Unix socket that follows from the attempt's key and the node's name.
// Whoever binds it speaks for the node: the others hand it their heartbeats, which it passes on in its own connection to the
// conductor (watch_link.h), and gets them the conductor's answers and orders. The kernel frees the name when its holder ends,
// however that was, and the next supervisor takes it.
//
// Both sides ask the kernel for the other's user. Whoever connects shows first, with his hello, that he holds the key. After
// that lines are as they are between supervisor and conductor, but not sealed.
//
// Thread rule: thread-compatible.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/contract/sealed_lines.h"

namespace shardrun::rank {

class NodeRelay {
 public:
  using Clock = std::chrono::steady_clock;
  // How long words wait for others.
  static constexpr std::chrono::milliseconds kGather{20};

  // Takes the name. nullopt with errno: EADDRINUSE when another has it. At most `most` supervisors are served.
  static std::optional<NodeRelay> open(const common::Key& key, const std::string& node, size_t most);
  // Returns a connection to who has the name; none with errno: ECONNREFUSED when nobody has, EACCES when another user has.
  static base::UniqueFd connect(const common::Key& key, const std::string& node);
  // The first line over that connection.
  static std::string greeting(const common::Key& key, const contract::Hello& hello);

  // What poll() needs; service() when it is readable.
  int fd() const { return news_.get(); }
  void service(Clock::time_point now);
  // Returns when what was said must go on; nullopt: nothing was.
  std::optional<Clock::time_point> due() const { return due_; }
  // Returns what was said since: the newest beat of each, and farewells.
  std::vector<contract::RankWord> take_words();
  // Says that a beat of the relay itself has followed the words taken so far, and what the conductor has acknowledged.
  void on_sent(uint64_t sequence);
  void on_acknowledged(uint64_t sequence);
  // Says that what was sent may be lost: nothing of it is acknowledged any more.
  void on_disconnected();
  // Passes an order on, to those that connect later, too. Orders come from the first one on.
  void pass_on(std::string_view order);
  size_t orders() const { return orders_.size(); }

 private:
  struct Client;
  using Clients = std::list<Client>;
  struct Client {
    base::UniqueFd socket;
    std::string received;
    int global_rank = -1;  // until its greeting
    std::optional<contract::Beat> waiting;
    uint64_t passed_on = 0;  // the newest of its beats that was
    std::vector<std::pair<uint64_t, uint64_t>>
        covered;  // a beat of the relay, and the client's that it is behind
    Clients::iterator place{};
  };
  NodeRelay(const common::Key& key, std::string node, size_t most, base::UniqueFd listener,
            base::UniqueFd news);
  void accept_clients();
  bool read_client(Client& client, Clock::time_point now);
  bool on_line(Client& client, std::string_view line, Clock::time_point now);
  bool on_greeting(Client& client, std::string_view line);

  common::Key key_;
  std::string node_;
  size_t most_;
  base::UniqueFd listener_, news_;
  Clients clients_;
  std::vector<contract::RankWord> last_words_;  // of clients that have left
  std::vector<std::string> orders_;
  std::optional<Clock::time_point> due_;
};

}  // namespace shardrun::rank

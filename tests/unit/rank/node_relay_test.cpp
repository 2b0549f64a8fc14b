// The supervisors of one node, as WatchLinks of one process, and a real Watch.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/watch/look.h"
#include "launcher/watch/watch.h"
#include "runtime/rank/node_relay.h"
#include "runtime/rank/watch_link.h"
#include "runtime/record/run_dir.h"
#include "tests/support/folder.h"

using namespace shardrun;
using rank::NodeRelay;
using rank::WatchLink;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr int kRanks = 4;  // of node n0; n1 has as many, of which nobody is there

contract::RankEnv env_of(const std::string& folder, int global_rank) {
  contract::RankEnv env;
  env.global_rank = global_rank;
  env.world_size = 2 * kRanks;
  env.local_rank = global_rank;
  env.local_world_size = kRanks;
  env.node_count = 2;
  env.node_name = "n0";
  env.run_directory = folder;
  return env;
}

// What one supervisor has of its link, and was ordered.
struct Supervisor {
  Supervisor(const std::string& folder, int global_rank)
      : link(env_of(folder, global_rank), std::chrono::seconds(0)) {}

  WatchLink link;
  std::vector<int> signals;
  std::string killed, fenced;
  bool is_stopped = false;  // it gets no CPU

  void serve(short revents) {
    contract::Beat beat;
    beat.state = 'S';
    const auto order = link.service(revents, Clock::now(), [&] { return beat; });
    if (order == WatchLink::Order::kSignal) signals.push_back(link.signal());
    if (order == WatchLink::Order::kKill) killed = link.reason();
    if (order == WatchLink::Order::kFence) fenced = link.reason();
  }
};

struct Node {
  Node() {
    std::filesystem::create_directories(record::RunDir{folder.path()}.attempt(0));
    launcher::WatchOptions options;
    options.policy = {.trainer = true, .node_timeout_seconds = 4.0};
    options.place_path = record::RunDir{folder.path()}.watch_json(0);
    options.rank_nodes = std::vector<std::string>(kRanks, "n0");
    options.rank_nodes.resize(2 * kRanks, "n1");
    options.this_machine_only = true;
    watch = launcher::Watch::start(options).value();
    place = contract::parse_watch_place(base::read_file(options.place_path).value()).value();
    for (int rank = 0; rank < kRanks; ++rank)
      supervisors.push_back(std::make_unique<Supervisor>(folder.path(), rank));
  }

  std::vector<contract::RankSight> sights() const {
    auto seen = launcher::look_at_ranks(place);
    REQUIRE(seen);
    return std::move(seen).value();
  }
  // Serves all supervisors until `is_so`, or for so long; returns whether it is so.
  bool until(const std::function<bool()>& is_so, milliseconds limit = milliseconds(30'000)) {
    const auto end = Clock::now() + limit;
    while (!is_so()) {
      if (Clock::now() > end) return false;
      std::vector<pollfd> fds;
      int wait = 20;
      for (const auto& one : supervisors) {
        if (one->is_stopped) continue;
        fds.push_back({one->link.fd(), one->link.events(), 0});
        fds.push_back({one->link.relay_fd(), POLLIN, 0});
        wait = std::min(wait, one->link.milliseconds_to_next(Clock::now()));
      }
      REQUIRE(::poll(fds.data(), fds.size(), wait) >= 0);
      size_t next = 0;
      for (const auto& one : supervisors) {
        if (one->is_stopped) continue;
        one->serve(fds[next].revents);
        next += 2;
      }
    }
    return true;
  }
  void run(milliseconds time) {
    (void)until([] { return false; }, time);
  }

  contract::RankSight sight(int rank) const { return sights()[static_cast<size_t>(rank)]; }
  bool are_all_heard() const {
    const auto seen = sights();
    for (const auto& one : supervisors) {
      const size_t rank = static_cast<size_t>(&one - supervisors.data());
      if (!seen[rank].heard || seen[rank].milliseconds_ago > 1200) return false;
    }
    return true;
  }
  int speakers() const {
    int count = 0;
    for (const auto& one : supervisors) count += one->link.relay_fd() >= 0 ? 1 : 0;
    return count;
  }
  Supervisor& speaker() const {
    for (const auto& one : supervisors)
      if (one->link.relay_fd() >= 0) return *one;
    FAIL("nobody speaks for the node");
    return *supervisors.front();
  }
  // Connections that the conductor has (proc(5)): by its port, of state 1.
  // Ranks of which the conductor has a sign of life that is younger than two beats.
  int heard_now() const {
    int heard = 0;
    for (const auto& sight : sights()) heard += sight.heard && sight.milliseconds_ago < 700 ? 1 : 0;
    return heard;
  }
  int connections() const {
    std::ifstream table("/proc/self/net/tcp");
    int count = 0;
    for (std::string line; std::getline(table, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (colon == std::string::npos || state != "01") continue;
      count += std::stoi(local.substr(colon + 1), nullptr, 16) == place.port ? 1 : 0;
    }
    return count;
  }

  tests::Folder folder;
  std::unique_ptr<launcher::Watch> watch;
  contract::WatchPlace place;
  std::vector<std::unique_ptr<Supervisor>> supervisors;
};

common::Key key_of(const contract::WatchPlace& place) {
  common::Key key{};
  REQUIRE(common::from_hex(place.key, &key));
  return key;
}

// Says a line over a relay's socket; returns whether the relay hung up.
bool is_shown_the_door(NodeRelay& relay, const base::UniqueFd& socket, const std::string& line) {
  REQUIRE(::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size()));
  for (int turn = 0; turn < 2; ++turn) relay.service(Clock::now());  // it accepts, and reads
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

}  // namespace

TEST_CASE_FIXTURE(Node, "relay: the supervisors of a node share one connection, and each rank is heard") {
  REQUIRE(until([&] { return are_all_heard(); }));
  CHECK(speakers() == 1);
  CHECK(connections() == 1);

  run(milliseconds(4000));  // longer than who is not acknowledged would wait
  CHECK(are_all_heard());
  CHECK(connections() == 1);
  CHECK_FALSE(watch->raised());
}

TEST_CASE_FIXTURE(Node, "relay: when the one that speaks dies, the next does, and the others are heard on") {
  REQUIRE(until([&] { return are_all_heard(); }));
  for (int left = kRanks - 1; left > 0; --left) {
    const auto dead = std::find_if(supervisors.begin(), supervisors.end(),
                                   [](const auto& one) { return one->link.relay_fd() >= 0; });
    REQUIRE(dead != supervisors.end());
    std::rotate(supervisors.begin(), dead, supervisors.end());
    supervisors.front() =
        std::make_unique<Supervisor>("/nowhere", 0);  // its descriptors are closed by the kernel
    supervisors.front()->is_stopped = true;
    std::rotate(supervisors.begin(), supervisors.begin() + 1, supervisors.end());

    REQUIRE(until([&] { return speakers() == 1; }));
    run(milliseconds(700));
    CHECK(until([&] { return connections() == 1 && heard_now() == left; }));
  }
  CHECK_FALSE(watch->raised());
}

TEST_CASE_FIXTURE(Node, "relay: farewells reach the conductor, also of one that speaks for others") {
  REQUIRE(until([&] { return are_all_heard(); }));
  Supervisor& speaker = this->speaker();
  for (const auto& one : supervisors) {
    if (one.get() != &speaker) one->link.say_farewell();
    one->is_stopped = true;
  }
  speaker.link.say_farewell();

  const auto all_left = [&] {
    int left = 0;
    for (const auto& sight : sights()) left += sight.left ? 1 : 0;
    return left == kRanks;
  };
  CHECK(until(all_left, milliseconds(5000)));
}

TEST_CASE_FIXTURE(Node, "relay: one that is stopped is passed by, before its node counts as lost") {
  REQUIRE(until([&] { return are_all_heard(); }));
  run(milliseconds(2000));  // until the conductor has acknowledged something
  Supervisor& speaker = this->speaker();
  speaker.is_stopped = true;

  REQUIRE(until([&] { return connections() == kRanks; }, milliseconds(3500)));
  run(milliseconds(600));
  CHECK(until([&] { return heard_now() == kRanks - 1; }));
  CHECK_FALSE(watch->raised());
}

TEST_CASE_FIXTURE(Node, "relay: one that hangs up on everybody keeps nobody from the conductor") {
  auto full = NodeRelay::open(key_of(place), "n0", 0).value();
  const auto all_heard = [&] {
    full.service(Clock::now());
    return are_all_heard();
  };
  REQUIRE(until(all_heard));
  CHECK(connections() == kRanks);
}

TEST_CASE_FIXTURE(Node, "relay: orders reach every supervisor, and once, whoever speaks") {
  REQUIRE(until([&] { return are_all_heard(); }));
  const auto signals = [&] {
    size_t count = 0;
    for (const auto& one : supervisors) count += one->signals.size();
    return count;
  };
  watch->order_signal(10);
  REQUIRE(until([&] { return signals() == kRanks; }));
  Supervisor& first = speaker();
  first.link.say_farewell();
  first.is_stopped = true;

  REQUIRE(until([&] { return speakers() == 1; }));
  run(milliseconds(1000));
  CHECK(signals() == kRanks);
  watch->order_kill("the job ends");
  const auto all_killed = [&] {
    int count = 0;
    for (const auto& one : supervisors) count += one->killed == "the job ends" ? 1 : 0;
    return count == kRanks - 1;
  };
  CHECK(until(all_killed, milliseconds(5000)));
}

TEST_CASE_FIXTURE(Node, "relay: what it acknowledges, the conductor has acknowledged") {
  REQUIRE(until([&] { return are_all_heard(); }));
  watch->stop();  // as when the conductor is stopped: nobody answers
  std::filesystem::rename(record::RunDir{folder.path()}.attempt(0), folder / "gone");

  const auto all_fenced = [&] {
    int count = 0;
    for (const auto& one : supervisors) count += one->fenced.empty() ? 0 : 1;
    return count == kRanks;
  };
  REQUIRE(until(all_fenced));
  for (const auto& one : supervisors)
    CHECK(one->fenced.find("the run's epoch cannot be read") != std::string::npos);
}

TEST_CASE_FIXTURE(Node, "relay: who does not hold the key, or is of another node, is shown the door") {
  common::Key key = key_of(place), other{1};
  auto relay = NodeRelay::open(key, "n0", 8).value();
  CHECK_FALSE(NodeRelay::open(key, "n0", 8));
  CHECK_FALSE(NodeRelay::connect(other, "n0"));
  CHECK_FALSE(NodeRelay::connect(key, "n1"));

  const contract::Hello hello{3, "n0"};
  for (const std::string& line :
       {to_line(hello), NodeRelay::greeting(other, hello), NodeRelay::greeting(key, {3, "n1"}),
        NodeRelay::greeting(key, hello) + "1", std::string("nonce 12"), std::string(5000, 'x')}) {
    CAPTURE(line);
    CHECK(is_shown_the_door(relay, NodeRelay::connect(key, "n0"), line + "\n"));
  }
  const auto socket = NodeRelay::connect(key, "n0");
  CHECK_FALSE(is_shown_the_door(relay, socket, NodeRelay::greeting(key, hello) + "\n"));
  CHECK_FALSE(is_shown_the_door(relay, socket, to_line(contract::Beat{.sequence = 7}) + "\n"));
  CHECK(relay.take_words().size() == 1);
  CHECK(is_shown_the_door(relay, socket, "look 2\n"));
}

TEST_CASE_FIXTURE(Node, "relay: another user is neither served nor trusted") {
  if (::geteuid() != 0) {
    MESSAGE("not tried: only root can become another user");
    return;
  }
  constexpr uid_t kNobody = 65534;
  const common::Key key = key_of(place);
  {
    auto relay = NodeRelay::open(key, "n0", 8).value();
    REQUIRE(::seteuid(kNobody) == 0);
    const auto distrusts = NodeRelay::connect(key, "n0");
    const int why = errno;
    REQUIRE(::seteuid(0) == 0);
    CHECK_FALSE(distrusts);
    CHECK(why == EACCES);
  }
  REQUIRE(::seteuid(kNobody) == 0);
  auto theirs = NodeRelay::open(key, "n0", 8);
  REQUIRE(::seteuid(0) == 0);
  REQUIRE(theirs);
  const auto distrusts = NodeRelay::connect(key, "n0");
  CHECK_FALSE(distrusts);
  CHECK(errno == EACCES);
  REQUIRE(until([&] { return are_all_heard(); }));  // the node's supervisors go to the conductor themselves
  CHECK(connections() == kRanks);
}

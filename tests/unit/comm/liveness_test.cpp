// Links between ranks that strangers can reach: what they say is not heard, and their silence costs nothing.
#include "plugins/ofi/liveness.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugins/ofi/bell.h"

using namespace shardrun::ofi;
using shardrun::common::KeyedHash;
using News = Liveness::News;

namespace {

const KeyedHash kKey{{1}}, kOtherKey{{2}};

TEST_CASE("liveness: the other end is asked until the limit of an operation, and never for less than 25 s") {
  const auto of = [](int silence) {
    const KeepAlive asked = keep_alive(std::chrono::seconds(silence));
    return std::vector<int>{asked.idle, asked.interval, asked.probes};
  };
  CHECK(of(1) == std::vector<int>{10, 5, 3});
  CHECK(of(300) == std::vector<int>{10, 5, 58});
  CHECK(of(3600) == std::vector<int>{10, 36, 100});
  CHECK(of(1'000'000) == std::vector<int>{10, 328, 100});
}

TEST_CASE("liveness: a message is read at its place alone, whole, and unchanged") {
  const LivenessMessage message{LivenessMessage::kFailure, 3, {5, "lost rank 3", {3, 7}}};
  const LivenessPlace place{2, 4, 9};
  const std::string packed = pack(message, place, kKey);
  const auto read = [](std::string bytes, LivenessPlace at, const KeyedHash& key = kKey) {
    LivenessMessage out;
    return unpack(&bytes, /*world_size=*/8, &at, key, &out);
  };

  LivenessMessage out;
  LivenessPlace at = place;
  std::string bytes = packed + "more";
  REQUIRE(unpack(&bytes, 8, &at, kKey, &out) == Unpacked::kWhole);
  CHECK(bytes == "more");
  CHECK(out.kind == LivenessMessage::kFailure);
  CHECK(out.global_rank == 3);
  CHECK(out.failure.code == 5);
  CHECK(out.failure.text == "lost rank 3");
  CHECK(out.failure.ranks == std::vector<uint32_t>{3, 7});

  CHECK(read(packed.substr(0, packed.size() - 1), place) == Unpacked::kMore);
  CHECK(read(packed, {2, 4, 8}) == Unpacked::kForeign);
  CHECK(read(packed, {1, 4, 9}) == Unpacked::kForeign);
  CHECK(read(packed, {2, 5, 9}) == Unpacked::kForeign);
  CHECK(read(packed, {UINT32_MAX, 4, 9}) == Unpacked::kForeign);
  CHECK(read(packed, place, kOtherKey) == Unpacked::kForeign);
  for (size_t i = 0; i < packed.size(); ++i) {
    std::string changed = packed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK(read(changed, place) != Unpacked::kWhole);
  }
}

TEST_CASE("liveness: who has not said his name can only say it, and only with the key") {
  LivenessPlace place{UINT32_MAX, 1, 0};
  LivenessMessage out;
  std::string hello = pack({LivenessMessage::kHello, 0, {}}, {0, 1, 0}, kKey);
  REQUIRE(unpack(&hello, 2, &place, kKey, &out) == Unpacked::kWhole);
  CHECK(place.from == 0);
  CHECK(hello.empty());
  place.from = UINT32_MAX;
  std::string bye = pack({LivenessMessage::kBye, 0, {}}, {0, 1, 0}, kKey);
  CHECK(unpack(&bye, 2, &place, kKey, &out) == Unpacked::kForeign);
  std::string guess = pack({LivenessMessage::kHello, 0, {}}, {0, 1, 0}, kOtherKey);
  CHECK(unpack(&guess, 2, &place, kKey, &out) == Unpacked::kForeign);
}

int call(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

bool is_closed(int fd) {
  char byte;
  const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

// The links of ranks 0 and 1, turned by hand.
struct Pair {
  Pair() {
    ranks.resize(2);
    for (int rank = 0; rank < 2; ++rank) {
      REQUIRE(Liveness::open(htonl(INADDR_LOOPBACK), std::chrono::seconds(60), &links[rank]).ok());
      ranks[rank].ipv4 = htonl(INADDR_LOOPBACK);
      ranks[rank].liveness_port = links[rank]->port();
    }
  }
  ~Pair() {
    for (const int fd : strangers) ::close(fd);
  }
  void connect() {
    for (int rank = 0; rank < 2; ++rank) REQUIRE(links[rank]->connect(rank, ranks, kKey).ok());
  }
  // Turns both, or from the second on, until `over`, at most 60 s.
  bool turn_until(const std::function<bool()>& over, int first = 0) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!over()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      for (int rank = first; rank < 2; ++rank) {
        pollfd waits{links[rank]->wait_fd(), POLLIN, 0};
        ::poll(&waits, 1, 10);
        for (News& one : links[rank]->hear()) news[rank].push_back(std::move(one));
        links[rank]->look_at_callers();
      }
    }
    return true;
  }
  size_t closed() const {
    return static_cast<size_t>(std::count_if(strangers.begin(), strangers.end(), is_closed));
  }

  std::vector<RankAddress> ranks;
  std::unique_ptr<Liveness> links[2];
  std::vector<News> news[2];
  std::vector<int> strangers;
};

TEST_CASE_FIXTURE(Pair,
                  "liveness: hundreds of silent strangers keep no rank out, and are closed before long") {
  for (int i = 0; i < 200; ++i) strangers.push_back(call(links[1]->port()));
  connect();
  CHECK(turn_until([&] { return closed() >= 100 && links[0]->links() == 1 && links[1]->links() == 1; }));
  CHECK(news[0].empty());
  CHECK(news[1].empty());
  links[0]->tell_failure(0, {5, "the cause", {}});
  CHECK(turn_until([&] { return !news[1].empty(); }));
  CHECK(news[1].at(0).kind == News::Kind::kFailure);
  CHECK(news[1].at(0).failure.text == "the cause");
  CHECK(turn_until([&] { return closed() == strangers.size(); }));
  CHECK(news[0].empty());
}

TEST_CASE_FIXTURE(Pair, "liveness: a rank that gets no CPU for seconds after it has called is still let in") {
  connect();  // the kernel does, the first rank says nothing
  const auto enough = std::chrono::steady_clock::now() + std::chrono::milliseconds(6500);
  CHECK(turn_until([&] { return std::chrono::steady_clock::now() > enough; }, /*first=*/1));
  CHECK(turn_until([&] { return links[0]->links() == 1 && links[1]->links() == 1; }));
  CHECK(news[0].empty());
  CHECK(news[1].empty());
}

TEST_CASE_FIXTURE(Pair,
                  "liveness: forged farewells and failures are not heard, nor a rank's own words once more") {
  connect();
  CHECK(turn_until([&] { return links[0]->links() == 1 && links[1]->links() == 1; }));
  for (const std::string& words :
       {pack({LivenessMessage::kHello, 0, {}}, {0, 1, 0}, kOtherKey) +
            pack({LivenessMessage::kFailure, 0, {5, "forged", {}}}, {0, 1, 1}, kOtherKey),
        pack({LivenessMessage::kHello, 0, {}}, {0, 1, 0}, kKey) +
            pack({LivenessMessage::kBye, 0, {}}, {0, 1, 1}, kKey),
        std::string(5000, '\0'), std::string(5000, '\xff')}) {
    strangers.push_back(call(links[1]->port()));
    REQUIRE(::send(strangers.back(), words.data(), words.size(), MSG_NOSIGNAL) > 0);
  }
  CHECK(turn_until([&] { return closed() == strangers.size(); }));
  CHECK(news[0].empty());
  CHECK(news[1].empty());
  CHECK(links[1]->links() == 1);
}

TEST_CASE("bell: any number of rings is forgotten piece by piece, and one of this user's is told") {
  std::unique_ptr<Bell> bell, other;
  REQUIRE(Bell::open(random_cookie(), &other).ok());
  const uint64_t cookie = random_cookie();
  REQUIRE(Bell::open(cookie, &bell).ok());
  CHECK_FALSE(bell->clear());
  other->ring(cookie);
  CHECK(bell->clear());
  CHECK_FALSE(bell->clear());
}

}  // namespace

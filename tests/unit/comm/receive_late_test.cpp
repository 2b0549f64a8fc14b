// recv() as libfabric has it in the plugin: this program is linked with plugins/ofi/receive_late.cpp in its place, too.
#include "plugins/ofi/receive_late.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace {

// Both ends of a connection over loopback.
struct Connection {
  Connection() {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(connect(sender, reinterpret_cast<sockaddr*>(&address), length) == 0);
    receiver = accept(listener, nullptr, nullptr);
    REQUIRE(receiver >= 0);
    close(listener);
  }
  ~Connection() {
    if (sender >= 0) close(sender);
    close(receiver);
  }

  void give(size_t bytes) const {
    const std::vector<char> data(bytes);
    REQUIRE(send(sender, data.data(), bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
  }
  // Asks for so many bytes; returns how many there were.
  ssize_t take(size_t bytes) const {
    std::vector<char> data(bytes);
    return recv(receiver, data.data(), bytes, MSG_DONTWAIT);
  }
  bool has_news(int milliseconds) const {
    pollfd what{receiver, POLLIN, 0};
    return poll(&what, 1, milliseconds) == 1;
  }

  int sender = -1, receiver = -1;
};

constexpr int kSoon = 20, kAtLast = 5000;  // milliseconds

TEST_CASE("receive late: of a long message much is waited for") {
  const Connection connection;
  connection.give(20'000);
  REQUIRE(connection.has_news(kAtLast));
  CHECK(connection.take(800'000) == 20'000);
  connection.give(200'000);
  CHECK_FALSE(connection.has_news(kSoon));
  connection.give(70'000);
  REQUIRE(connection.has_news(kAtLast));
  CHECK(connection.take(780'000) >= 262'144);
}

TEST_CASE("receive late: while somebody waits, each part of a message is news") {
  const Connection connection;
  connection.give(20'000);
  REQUIRE(connection.has_news(kAtLast));
  ++shardrun::ofi::waiting_callers;
  CHECK(connection.take(90'000) ==
        20'000);  // what is left no other case asks for, whose socket had this number
  --shardrun::ofi::waiting_callers;
  connection.give(1);
  CHECK(connection.has_news(kAtLast));
}

TEST_CASE("receive late: the rest of a message is news when it is whole, and then a byte is") {
  const Connection connection;
  connection.give(80'000);
  ssize_t taken = 0;
  while (taken < 80'000) {
    REQUIRE(connection.has_news(kAtLast));
    const ssize_t got = connection.take(static_cast<size_t>(100'000 - taken));
    REQUIRE(got > 0);
    taken += got;
  }
  connection.give(19'999);
  CHECK_FALSE(connection.has_news(kSoon));
  connection.give(1);
  REQUIRE(connection.has_news(kAtLast));
  CHECK(connection.take(20'000) == 20'000);
  CHECK_FALSE(connection.has_news(0));
  connection.give(1);
  CHECK(connection.has_news(kAtLast));
}

TEST_CASE("receive late: half a message whose sender is gone is news") {
  Connection connection;
  connection.give(20'000);
  REQUIRE(connection.has_news(kAtLast));
  CHECK(connection.take(200'000) == 20'000);
  close(connection.sender);
  connection.sender = -1;
  CHECK(connection.has_news(kAtLast));
  CHECK(connection.take(180'000) == 0);
}

TEST_CASE("receive late: who asks for as much as may come waits for any") {
  const Connection connection;
  connection.give(40);
  REQUIRE(connection.has_news(kAtLast));
  CHECK(connection.take(9'000) == 40);
  connection.give(1);
  CHECK(connection.has_news(kAtLast));
}

}  // namespace

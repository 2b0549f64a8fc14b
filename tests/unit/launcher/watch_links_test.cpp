// A real Watch with connections of ranks, viewers and strangers.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "launcher/watch/look.h"
#include "launcher/watch/watch.h"
#include "runtime/contract/sealed_lines.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::launcher;
using contract::Beat;
using contract::RankPhase;

namespace {

// A connection to a real Watch.
class Connection {
 public:
  explicit Connection(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    // As in a supervisor: what still waited for its turn would be lost when a connection with unread lines is closed.
    const int on = 1;
    REQUIRE(::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
  }
  void send(const std::string& line) {
    const std::string bytes = line + "\n";
    (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);  // it may have been closed
  }
  // Returns the next line; "" at the end of the stream or after 30 s.
  std::string receive() {
    size_t end = 0;
    while ((end = received_.find('\n')) == std::string::npos) {
      pollfd polled{socket_.get(), POLLIN, 0};
      char bytes[4096];
      if (::poll(&polled, 1, 30'000) != 1) return "";
      const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return "";
      received_.append(bytes, static_cast<size_t>(got));
    }
    const std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }

 private:
  base::UniqueFd socket_;
  std::string received_;
};

common::Key key_of(const contract::WatchPlace& place) {
  common::Key key{};
  REQUIRE(common::from_hex(place.key, &key));
  return key;
}

contract::SealedLines client_lines(const common::Key& key) {
  return {contract::SealedLines::Side::kClient, key, contract::random_key().value()};
}

// One that holds the key.
class Client {
 public:
  explicit Client(const contract::WatchPlace& place)
      : connection_(place.port), lines_(client_lines(key_of(place))) {
    REQUIRE(lines_.take_opening(connection_.receive()));
    connection_.send(lines_.opening());
  }
  void send(std::string_view text) { connection_.send(lines_.seal(text)); }
  // Returns the text of the next line; "" as Connection does, or when it is not sealed as it should be.
  std::string receive() { return lines_.unseal(connection_.receive()).value_or(""); }

 private:
  Connection connection_;
  contract::SealedLines lines_;
};

// This is short, and longer than a busy machine keeps this process asleep.
constexpr double kNodeTimeout = 1.5;

struct Watching {
  Watching() {
    std::string path = "/tmp/watch_test.XXXXXX";
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    folder = path;
    WatchOptions options;
    options.policy = {.trainer = true, .node_timeout_seconds = kNodeTimeout};
    options.place_path = folder + "/watch.json";
    options.rank_nodes = {"n0", "n1"};
    options.this_machine_only = true;
    watch = Watch::start(options).value();
    place = contract::parse_watch_place(base::read_file(options.place_path).value()).value();
  }
  ~Watching() {
    watch.reset();
    std::filesystem::remove_all(folder);
  }
  std::string folder;
  std::unique_ptr<Watch> watch;
  contract::WatchPlace place;
};

}  // namespace

TEST_CASE_FIXTURE(Watching, "watch: where to connect and the key are for the owner's eyes only") {
  struct stat status {};
  REQUIRE(::stat((folder + "/watch.json").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(place.key.size() == 64);
}

TEST_CASE_FIXTURE(Watching,
                  "watch: who does not hold the key is shown the door, is not heard, and is counted") {
  common::Key guessed{};
  for (const std::string& words :
       {std::string("hello 2 0 n0"), std::string("nonce 12"),
        "nonce " + std::string(64, '0') + "\nhello 2 0 n0",
        client_lines(guessed).opening() + "\n" + std::string(32, '0') + " hello 2 0 n0"}) {
    CAPTURE(words);
    Connection stranger(place.port);
    CHECK(stranger.receive().starts_with("nonce "));  // nothing that a secret went into
    stranger.send(words);
    CHECK(stranger.receive().empty());
  }
  CHECK(watch->strangers().count == 4);
  CHECK(watch->strangers().newest.starts_with("127.0.0.1 port "));
  CHECK_FALSE(watch->raised().has_value());
}

TEST_CASE_FIXTURE(Watching, "watch: whoever hangs up before it proved anything is no stranger") {
  { Connection(place.port).receive(); }
  {
    Connection begun(place.port);
    auto lines = client_lines(key_of(place));
    REQUIRE(lines.take_opening(begun.receive()));
    begun.send(lines.opening());
  }
  Connection stranger(place.port);  // what came before it has been read when it is closed
  stranger.receive();
  stranger.send("hello 2 0 n0");
  CHECK(stranger.receive().empty());
  CHECK(watch->strangers().count == 1);
}

TEST_CASE_FIXTURE(Watching, "watch: what a rank said on one connection is worth nothing on another") {
  auto lines = client_lines(key_of(place));
  Connection heard(place.port), again(place.port);
  REQUIRE(lines.take_opening(heard.receive()));
  const std::string words = lines.opening() + "\n" + lines.seal("hello 2 0 n0");
  heard.send(words);
  CHECK(lines.unseal(heard.receive()) == "welcome");
  again.receive();
  again.send(words);
  CHECK(again.receive().empty());

  const std::string beat = lines.seal(to_line(Beat{.sequence = 1}));
  heard.send(beat);
  CHECK(lines.unseal(heard.receive()) == "ack 1");
  heard.send(beat);
  CHECK(heard.receive().empty());
}

TEST_CASE_FIXTURE(Watching, "watch: whoever says nothing is closed, and in time") {
  Connection silent(place.port);
  CHECK(silent.receive().starts_with("nonce "));
  CHECK(silent.receive().empty());  // within 30 s
  CHECK(watch->strangers().count == 1);
}

TEST_CASE_FIXTURE(Watching, "watch: hundreds of silent strangers keep no rank out and cost few descriptors") {
  std::vector<std::unique_ptr<Connection>> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(std::make_unique<Connection>(place.port));

  Client rank(place);
  rank.send("hello 2 0 n0");
  CHECK(rank.receive() == "welcome");
  rank.send(to_line(Beat{.sequence = 1}));
  CHECK(rank.receive() == "ack 1");
  CHECK(watch->strangers().count >= 300 - static_cast<int>(kMostUnproven) - 2);
}

TEST_CASE_FIXTURE(Watching,
                  "watch: beats are acknowledged, and when one falls silent the others are told to kill") {
  Client first(place), second(place);
  first.send("hello 2 0 n0");
  second.send("hello 2 1 n1");
  CHECK(first.receive() == "welcome");
  CHECK(second.receive() == "welcome");
  second.send(to_line(Beat{.sequence = 1}));
  CHECK(second.receive() == "ack 1");
  std::string heard;
  for (uint64_t sequence = 1; sequence <= 75 && heard.find("kill") == std::string::npos; ++sequence) {
    first.send(to_line(Beat{.sequence = sequence}));
    heard = first.receive();
    const std::string acknowledged = "ack " + std::to_string(sequence);
    CHECK((heard == acknowledged || heard.starts_with("kill ")));
    ::usleep(400'000);  // longer than between two answers
  }
  CHECK(heard.starts_with("kill node n1 is lost: no sign of life for "));
  // Its machine is there, as it is asked, so that it got the time of a supervisor without a CPU.
  CHECK(second.receive() == contract::kAreYouThereLine);
  CHECK(watch->raised()->after_seconds >= kStarvedShare * kNodeTimeout);
  pollfd polled{watch->alarm_fd(), POLLIN, 0};
  CHECK(::poll(&polled, 1, 30'000) == 1);
  CHECK(watch->raised()->alarm.node == "n1");
}

TEST_CASE_FIXTURE(Watching, "watch: beats that come close to each other share an answer") {
  Client rank(place);
  rank.send("hello 2 0 n0");
  CHECK(rank.receive() == "welcome");
  for (uint64_t sequence = 1; sequence <= 200; ++sequence) rank.send(to_line(Beat{.sequence = sequence}));
  CHECK(rank.receive() == "ack 1");
  ::usleep(500'000);
  watch->order_signal(10);
  int answers = 0;
  for (std::string line = rank.receive(); line.starts_with("ack "); line = rank.receive()) ++answers;
  CHECK(answers <= 20);
}

TEST_CASE_FIXTURE(Watching, "watch: who looks is told of every rank, and who does not hold the key of none") {
  Client rank(place);
  rank.send("hello 2 1 n1");
  CHECK(rank.receive() == "welcome");
  rank.send(to_line(Beat{.sequence = 1, .phase = RankPhase::kStepping, .step = 12, .resident_bytes = 4096}));
  CHECK(rank.receive() == "ack 1");

  const auto sights = look_at_ranks(place).value();
  REQUIRE(sights.size() == 2);
  CHECK(sights[0].node == "n0");
  CHECK_FALSE(sights[0].heard);
  CHECK(sights[1].global_rank == 1);
  CHECK(sights[1].heard);
  CHECK_FALSE(sights[1].left);
  CHECK(sights[1].milliseconds_ago < 5000);
  CHECK(sights[1].beat.step == 12);
  CHECK(sights[1].beat.resident_bytes == 4096);

  contract::WatchPlace wrong = place;
  wrong.key = std::string(64, '0');  // or somebody else has the port by now
  CHECK_FALSE(look_at_ranks(wrong).has_value());
  wrong.key = "";
  CHECK_FALSE(look_at_ranks(wrong).has_value());
  watch->stop();
}

TEST_CASE("watch: what is said of thousands of ranks arrives whole, however slowly it is read") {
  const tests::Folder folder;
  WatchOptions options;
  options.place_path = folder / "watch.json";
  options.rank_nodes = std::vector<std::string>(40000, "node-with-a-long-name-0001");
  options.this_machine_only = true;
  const auto watch = Watch::start(options).value();
  const auto place = contract::parse_watch_place(base::read_file(options.place_path).value()).value();
  Client slow(place);
  slow.send(contract::kLookLine);
  ::usleep(300'000);
  int64_t count = 0;
  std::string last;
  for (std::string line = slow.receive(); !line.empty(); line = slow.receive(), ++count) last = line;
  CHECK(last == "end");
  CHECK(count == 40002);
  CHECK(look_at_ranks(place).value().size() == 40000);
}

TEST_CASE("watch: a farewell counts although its rank hung up before it was answered") {
  const tests::Folder folder;
  WatchOptions options;
  options.policy = {.node_timeout_seconds = 0.3};  // nobody is silent, so it cannot be too short
  options.place_path = folder / "watch.json";
  for (int rank = 0; rank < 40; ++rank) options.rank_nodes.push_back("n" + std::to_string(rank));
  options.this_machine_only = true;
  const auto watch = Watch::start(options).value();
  const auto place = contract::parse_watch_place(base::read_file(options.place_path).value()).value();

  for (int rank = 0; rank < 40; ++rank) {
    const std::string number = std::to_string(rank);
    Client client(place);
    client.send("hello 2 " + number + " n" + number);
    for (uint64_t sequence = 1; sequence <= 3; ++sequence) client.send(to_line(Beat{.sequence = sequence}));
    client.send("bye");
  }

  ::usleep(900'000);
  CHECK_MESSAGE(!watch->raised(), watch->raised()->alarm.line);
}

TEST_CASE_FIXTURE(Watching, "watch: a supervisor speaks for the ranks of its node and for no other") {
  const std::vector<contract::RankWord> foreign{{0, Beat{.sequence = 1}}, {1, Beat{.sequence = 1}}},
      own{{0, Beat{.sequence = 1}}};
  {
    Client rank(place);
    rank.send("hello 2 0 n0");
    CHECK(rank.receive() == "welcome");
    rank.send(to_line(foreign));
    CHECK(rank.receive().empty());
  }
  CHECK_FALSE(look_at_ranks(place).value()[0].heard);  // nothing of such a line counts
  Client rank(place);
  rank.send("hello 2 0 n0");
  CHECK(rank.receive() == "welcome");
  rank.send(to_line(own));
  CHECK(rank.receive() == "ack 1");
}

TEST_CASE("watch: a rank whose farewell was lost is not missed once it has left an account of its end") {
  const tests::Folder folder;
  WatchOptions options;
  options.policy = {.node_timeout_seconds = 2.0};
  options.place_path = folder / "watch.json";
  options.rank_nodes = {"n0", "n0"};
  options.this_machine_only = true;
  std::atomic<bool> has_ended = false;
  options.ended = [&has_ended](const std::set<std::string>& nodes) {
    return has_ended && nodes == std::set<std::string>{"n0"} ? std::set<int>{1} : std::set<int>{};
  };
  const auto watch = Watch::start(options).value();
  const auto place = contract::parse_watch_place(base::read_file(options.place_path).value()).value();
  Client rank(place);
  rank.send("hello 2 0 n0");
  CHECK(rank.receive() == "welcome");
  rank.send(to_line(std::vector<contract::RankWord>{{1, Beat{.sequence = 1}}, {0, Beat{.sequence = 1}}}));
  CHECK(rank.receive() == "ack 1");
  has_ended = true;

  for (uint64_t sequence = 2; sequence < 10; ++sequence) {  // longer than node_timeout and two beats
    ::usleep(500'000);
    rank.send(to_line(Beat{.sequence = sequence}));
  }
  CHECK_MESSAGE(!watch->raised(), watch->raised()->alarm.line);
  CHECK(look_at_ranks(place).value()[1].left);
}

TEST_CASE_FIXTURE(Watching,
                  "watch: orders reach every rank, in their order, also one that comes after them") {
  Client early(place);
  early.send("hello 2 0 n0");
  CHECK(early.receive() == "welcome");
  watch->order_signal(15);
  CHECK(early.receive() == "signal 15");
  watch->order_kill("the job ends");
  CHECK(early.receive() == "kill the job ends");

  Client late(place);
  late.send("hello 2 1 n1");
  CHECK(late.receive() == "welcome");
  CHECK(late.receive() == "signal 15");
  CHECK(late.receive() == "kill the job ends");
  early.send(to_line(Beat{.sequence = 1}));
  CHECK(early.receive() == "ack 1");  // it was told once
}

TEST_CASE(
    "watch: beats are answered while the accounts of ended ranks cannot be read, and nobody is named "
    "meanwhile") {
  const tests::Folder folder;
  WatchOptions options;
  options.policy = {.node_timeout_seconds = 1.0};
  options.place_path = folder / "watch.json";
  options.rank_nodes = {"n0", "n0"};
  options.this_machine_only = true;
  std::promise<void> disk;
  options.ended = [answers = disk.get_future().share()](const std::set<std::string>&) {
    answers.wait();
    return std::set<int>{1};
  };
  const auto watch = Watch::start(options).value();
  const auto place = contract::parse_watch_place(base::read_file(options.place_path).value()).value();
  Client rank(place);
  rank.send("hello 2 0 n0");
  CHECK(rank.receive() == "welcome");
  rank.send(to_line(std::vector<contract::RankWord>{{1, Beat{.sequence = 1}}, {0, Beat{.sequence = 1}}}));
  CHECK(rank.receive() == "ack 1");

  for (uint64_t sequence = 2; sequence < 10; ++sequence) {  // longer than node_timeout and two beats
    ::usleep(500'000);
    rank.send(to_line(Beat{.sequence = sequence}));
    CHECK(rank.receive() == "ack " + std::to_string(sequence));
  }
  CHECK_MESSAGE(!watch->raised(), watch->raised()->alarm.line);
  disk.set_value();

  ::usleep(300'000);
  CHECK_MESSAGE(!watch->raised(), watch->raised()->alarm.line);
  CHECK(look_at_ranks(place).value()[1].left);
}

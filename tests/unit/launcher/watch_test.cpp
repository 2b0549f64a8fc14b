#include "launcher/watch/watch.h"
#include "launcher/watch/look.h"
#include "tests/support/folder.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "launcher/watch/rules.h"
#include "runtime/contract/sealed_lines.h"

using namespace shardrun;
using namespace shardrun::launcher;
using contract::Beat;
using contract::RankPhase;

namespace {

// A world of ranks on nodes n0, n1, … that beat twice a second.
class World {
 public:
  World(int ranks, int ranks_per_node, WatchPolicy policy = {.trainer = true})
      : rules_(policy, make_ranks(ranks, ranks_per_node)), beats_(static_cast<size_t>(ranks)) {
    for (Beat& beat : beats_) {
      beat.phase = RankPhase::kStepping;
      beat.state = 'R';
    }
  }
  Beat& beat(int rank) { return beats_[static_cast<size_t>(rank)]; }
  WatchRules& rules() { return rules_; }
  double now() const { return now_; }

  // Lets all ranks step for so long, each step taking `step_seconds`.
  void run(double seconds, double step_seconds) {
    const double end = now_ + seconds;
    while (now_ < end) {
      for (Beat& beat : beats_) {
        beat.step += std::max<int64_t>(1, static_cast<int64_t>(0.5 / step_seconds));
        beat.step_microseconds = static_cast<int64_t>(step_seconds * 1e6);
        beat.entered += 10;
        beat.moves += 30;
      }
      tick();
      REQUIRE_FALSE(rules_.find_alarm(now_));
    }
  }
  // Sends the beats of the ranks that are not silenced, unchanged, until an alarm or for `limit` seconds.
  std::optional<Alarm> wait(double limit) {
    const double end = now_ + limit;
    while (now_ < end) {
      tick();
      if (auto alarm = rules_.find_alarm(now_)) return alarm;
    }
    return std::nullopt;
  }
  void silence(int rank) { silent_.push_back(rank); }

 private:
  static std::vector<RankWatch> make_ranks(int ranks, int ranks_per_node) {
    std::vector<RankWatch> made(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      made[static_cast<size_t>(rank)].global_rank = rank;
      made[static_cast<size_t>(rank)].node = "n" + std::to_string(rank / ranks_per_node);
    }
    return made;
  }
  void tick() {
    now_ += 0.5;
    for (size_t rank = 0; rank < beats_.size(); ++rank) {
      if (std::count(silent_.begin(), silent_.end(), static_cast<int>(rank)) > 0) continue;
      rules_.on_beat(static_cast<int>(rank), beats_[rank], now_);
    }
  }

  WatchRules rules_;
  std::vector<Beat> beats_;
  std::vector<int> silent_;
  double now_ = 1000.0;
};

}  // namespace

TEST_CASE("watch: a stopped process is named within 5 s, whatever the others do") {
  World world(4, 2);
  world.run(10.0, 0.1);
  const double stopped = world.now();
  world.beat(2).state = 'T';
  for (int rank : {0, 1, 3}) world.beat(rank).waiting = true;

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->kind == "hang");
  CHECK(alarm->global_rank == 2);
  CHECK(alarm->node == "n1");
  CHECK(world.now() - stopped <= 5.0);
  CHECK(alarm->line.find("rank 2 on node n1 hangs after step ") == 0);
}

TEST_CASE("watch: a process that is stopped whenever we look but moves in between is slow, not stopped") {
  World world(2, 2);
  world.beat(1).state = 'T';
  world.run(60.0, 0.1);  // requires that there is no alarm
  CHECK(world.rules().ranks()[1].beat.state == 'T');
}

TEST_CASE("watch: of ranks that compute and wait, the one that waits for nobody is the culprit") {
  World world(4, 4);
  world.run(10.0, 0.1);
  const double stuck = world.now();
  for (int rank : {0, 1, 2}) world.beat(rank).waiting = true;

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->global_rank == 3);
  CHECK(alarm->line.find("computing") != std::string::npos);
  CHECK(world.now() - stuck <= 5.0);
}

TEST_CASE(
    "watch: when all wait, the rank that has entered fewer collectives than the others is the culprit") {
  World world(4, 4);
  world.run(10.0, 0.1);
  for (int rank : {0, 1, 2, 3}) world.beat(rank).waiting = true;
  for (int rank : {0, 2, 3}) world.beat(rank).entered += 1;

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->global_rank == 1);
}

TEST_CASE("watch: when all wait in the same collective no rank is blamed") {
  World world(4, 4);
  world.run(10.0, 0.1);
  for (int rank : {0, 1, 2, 3}) world.beat(rank).waiting = true;

  const auto alarm = world.wait(60.0);

  REQUIRE(alarm.has_value());
  CHECK_FALSE(alarm->global_rank.has_value());
  CHECK(alarm->line.find("all 4 ranks wait for each other") == 0);
}

TEST_CASE("watch: a step that takes four times as long is no hang, with steps of any length") {
  for (const double step_seconds : {0.05, 0.5, 2.0, 10.0, 60.0}) {
    CAPTURE(step_seconds);
    World world(2, 2);
    world.run(40.0, step_seconds);
    // The slow step moves with each of its blocks: 4 blocks of a quarter of the step, forward and backward.
    for (int visit = 0; visit < 8; ++visit) {
      CHECK_FALSE(world.wait(4 * step_seconds / 8).has_value());
      for (int rank : {0, 1}) world.beat(rank).moves += 1;
    }
  }
}

TEST_CASE("watch: with long steps a hang is named within three steps") {
  World world(2, 2);
  world.run(60.0, 4.0);
  const double stuck = world.now();
  world.beat(0).waiting = true;

  const auto alarm = world.wait(100.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->global_rank == 1);
  CHECK(world.now() - stuck <= 12.0);
}

TEST_CASE(
    "watch: before the first steps and while a checkpoint is waited for, patience is that of a collective") {
  for (const RankPhase phase : {RankPhase::kStarting, RankPhase::kSaving, RankPhase::kEnding}) {
    World world(2, 2, {.trainer = true, .slow_phase_seconds = 60.0});
    for (int rank : {0, 1}) world.beat(rank).phase = phase;
    CHECK_FALSE(world.wait(59.0).has_value());
    CHECK(world.wait(3.0).has_value());
  }
}

TEST_CASE("watch: a rank that a disk or a file server keeps asleep gets two minutes") {
  World world(2, 2);
  world.run(10.0, 0.1);
  world.beat(1).state = 'D';
  world.beat(0).waiting = true;
  CHECK_FALSE(world.wait(119.0).has_value());

  const auto alarm = world.wait(5.0);

  REQUIRE(alarm.has_value());
  CHECK(alarm->line.find("uninterruptible sleep") != std::string::npos);
}

TEST_CASE(
    "watch: a node none of whose ranks is heard is lost within 5 s; one silent rank among others hangs") {
  World world(4, 2);
  world.run(10.0, 0.1);
  const double silent = world.now();
  world.silence(2);
  world.silence(3);
  for (int rank : {0, 1}) world.beat(rank).waiting = true;

  const auto lost = world.wait(60.0);

  REQUIRE(lost.has_value());
  CHECK(lost->kind == "node_lost");
  CHECK(lost->node == "n1");
  CHECK_FALSE(lost->global_rank.has_value());
  CHECK(world.now() - silent <= 5.0);

  // A rank that had not moved when its node went dark is not what is wrong.
  World busy(4, 2);
  busy.run(10.0, 0.1);
  for (int rank : {0, 1, 2}) busy.beat(rank).waiting = true;
  REQUIRE_FALSE(busy.wait(0.5));
  busy.silence(2);
  busy.silence(3);
  const auto dark = busy.wait(60.0);
  REQUIRE(dark.has_value());
  CHECK(dark->kind == "node_lost");
  CHECK(dark->node == "n1");

  World other(4, 2, {.trainer = true, .hang_timeout_seconds = 100.0});
  other.run(10.0, 0.1);
  other.silence(3);
  const auto hangs = other.wait(60.0);
  REQUIRE(hangs.has_value());
  CHECK(hangs->kind == "hang");
  CHECK(hangs->global_rank == 3);
}

TEST_CASE("watch: nodes that fall silent together are lost together, unless they are half of all") {
  World world(10, 2);
  world.run(5.0, 0.5);
  for (const int rank : {2, 3, 6, 7}) world.silence(rank);
  const auto two = world.wait(10.0);
  REQUIRE(two);
  CHECK(two->node == "n1");
  CHECK(two->also_lost == std::vector<std::string>{"n3"});
  CHECK(two->line.find("node n1 is lost: no sign of life for ") == 0);
  CHECK(two->line.find(" s, nor of n3") != std::string::npos);

  World cut_off(10, 2);
  cut_off.run(5.0, 0.5);
  for (int rank = 2; rank < 10; ++rank) cut_off.silence(rank);
  const auto ours = cut_off.wait(10.0);
  REQUIRE(ours);
  CHECK(ours->kind == "node_lost");
  CHECK(ours->also_lost.empty());
}

TEST_CASE("watch: silence while we were asleep ourselves is forgiven") {
  World world(2, 1);
  world.run(10.0, 0.1);

  world.rules().forgive(100.0);

  CHECK_FALSE(world.rules().find_alarm(world.now() + 100.0).has_value());
}

TEST_CASE("watch: ranks that were not heard in a minute are told of once, those that said farewell are not") {
  World world(3, 1);
  WatchRules& rules = world.rules();
  CHECK(rules.take_unheard(1000.0).empty());
  rules.on_beat(0, Beat{}, 1001.0);
  rules.on_farewell(1);
  CHECK(rules.take_unheard(1059.0).empty());
  CHECK(rules.take_unheard(1060.0) == std::vector<int>{2});
  CHECK(rules.take_unheard(2000.0).empty());
}

TEST_CASE("watch: ranks that said farewell or were never heard are not missed") {
  World world(3, 1);
  world.run(5.0, 0.1);
  for (int rank : {0, 1, 2}) world.rules().on_farewell(rank);
  CHECK_FALSE(world.rules().find_alarm(world.now() + 1000.0).has_value());
}

TEST_CASE("watch: a command hangs only when hang_timeout is given and no rank wrote for so long") {
  World patient(2, 2, {.trainer = false});
  for (int rank : {0, 1}) patient.beat(rank).quiet_milliseconds = 3600 * 1000;
  CHECK_FALSE(patient.wait(10.0).has_value());

  World world(2, 2, {.trainer = false, .hang_timeout_seconds = 30.0});
  world.beat(0).quiet_milliseconds = 1000;
  world.beat(1).quiet_milliseconds = 3600 * 1000;
  CHECK_FALSE(world.wait(10.0).has_value());
  world.beat(0).quiet_milliseconds = 30 * 1000;
  const auto alarm = world.wait(1.0);
  REQUIRE(alarm.has_value());
  CHECK(alarm->line.find("no rank wrote a line") == 0);
}

TEST_CASE("watch: a rank that is busy 15 % longer in each step is named once, within 30 s, and no other") {
  World world(4, 2);
  int named = 0;
  const double begin = world.now();
  double named_at = 0.0;
  while (world.now() < begin + 100.0) {
    for (int rank : {0, 1, 2, 3}) world.beat(rank).busy_microseconds += 5 * (rank == 2 ? 92'000 : 80'000);
    world.run(0.5, 0.1);
    for (const Straggler& slow : world.rules().take_stragglers(world.now())) {
      ++named;
      named_at = world.now();
      CHECK(slow.global_rank == 2);
      CHECK(slow.busy_seconds / slow.median_seconds == doctest::Approx(1.15));
    }
  }
  CHECK(named == 1);
  CHECK(named_at - begin <= 30.0);
}

TEST_CASE("heartbeats: lines survive a round trip and malformed ones are refused") {
  Beat beat{7, RankPhase::kStepping, 12, 345, 678, true, 'S', 1000, 900, 50, 4096};
  const auto read = contract::parse_beat(to_line(beat));
  REQUIRE(read.has_value());
  CHECK(to_line(*read) == "beat 7 1 12 345 678 1 S 1000 900 50 4096");
  for (const char* line :
       {"", "beat", "beat 1 2 3", "beat 7 9 12 345 678 1 S 1000 900 50 1",
        "beat 7 1 12 345 678 1 SS 1000 900 50 1", "beat 7 1 -2 345 678 1 S 1000 900 50 1",
        "beat 7 1 12 345 678 1 S 1000 900 50", "beat 7 1 12 345 678 1 S 1000 900 50 60 70", "hello 2 3 n1"}) {
    CHECK_FALSE(contract::parse_beat(line).has_value());
  }
  const auto hello = contract::parse_hello("hello 2 3 node7");
  REQUIRE(hello.has_value());
  CHECK(hello->global_rank == 3);
  CHECK(hello->node == "node7");
  for (const char* line :
       {"hello 1 secret 3 node7", "hello 2", "hello 2 3", "hello 2 x n", "hello 2 3 ", "hello 2 -1 n"}) {
    CHECK_FALSE(contract::parse_hello(line).has_value());
  }
}

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
  second.send(to_line(Beat{.sequence = 1}));
  std::string heard;
  for (uint64_t sequence = 1; sequence <= 600 && heard.find("kill") == std::string::npos; ++sequence) {
    first.send(to_line(Beat{.sequence = sequence}));
    heard = first.receive();
    const std::string acknowledged = "ack " + std::to_string(sequence);
    CHECK((heard == acknowledged || heard.starts_with("kill ")));
    ::usleep(50'000);
  }
  CHECK(heard.starts_with("kill node n1 is lost: no sign of life for "));
  pollfd polled{watch->alarm_fd(), POLLIN, 0};
  CHECK(::poll(&polled, 1, 30'000) == 1);
  CHECK(watch->raised()->alarm.node == "n1");
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

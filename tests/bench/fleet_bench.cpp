// What the heartbeats of a large fleet cost the conductor, and how soon it finds a node without power among them.
//
//   fleet_bench NODES RANKS SECONDS
//
// One process plays on each of NODES nodes the supervisor that speaks for its RANKS ranks, over loopback: it proves the key,
// passes on a beat of each rank twice a second, and reads the answers. Another is the real conductor, with a scheduler that
// starts nothing. Once all are heard, the conductor's CPU time is measured for SECONDS. Then one node's packets are dropped by its
// socket, as if it had lost its power, and what counts is when the conductor raises the alarm and when the last of the others has its
// order to kill.
//
// Prints one JSON object. Fails (1) when the conductor takes more than a fifth of a core or 1 GiB, finds the wrong node, or
// takes longer than twice node_timeout to find it, or when an order is missing.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/agent/conductor.h"
#include "launcher/schedule/stop_signals.h"
#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/contract/sealed_lines.h"
#include "runtime/record/run_dir.h"

using namespace shardrun;

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMostOfACore = 0.2;
constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr double kLatestSeconds = 4.0;  // beyond node_timeout, on a machine however busy
constexpr double kSettleSeconds = 3.0;
constexpr char kAllHeard = 'h', kPowerOff = 'p', kIsOff = 'o';

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "fleet_bench: {}\n", what);
  std::exit(1);
}

template <typename T>
T value_of(base::Result<T> result) {
  if (!result) fail(result.error().to_string());
  return std::move(*result);
}

// What the fleet saw, as it tells the conductor's process.
struct FleetReport {
  int ordered = 0;                 // supervisors that were told to kill
  double last_order_seconds = 0;   // from the power loss to the last of them
  double longest_unanswered = 0;   // seconds from a beat to its answer
  double latest_beat_seconds = 0;  // how late the fleet itself was at most
};

// The supervisor that speaks for the ranks of one node.
class Node {
 public:
  Node(int number, int ranks, const contract::WatchPlace& place)
      : first_rank_(number * ranks),
        ranks_(ranks),
        socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        lines_(contract::SealedLines::Side::kClient, key_of(place), value_of(contract::random_key())) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(place.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!socket_ || ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      fail(fmt::format("node {} reaches no conductor: {}", number, std::strerror(errno)));
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    hello_ = to_line(contract::Hello{first_rank_, fmt::format("n{}", number)});
  }

  bool is_welcome() const { return is_welcome_; }
  bool is_ordered() const { return is_ordered_; }
  double longest_unanswered() const { return longest_unanswered_; }

  // Reads what has come, and answers what opens the connection.
  void read() {
    char bytes[4096];
    for (ssize_t got = 0; (got = ::recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
      received_.append(bytes, static_cast<size_t>(got));
    for (size_t end = 0; (end = received_.find('\n')) != std::string::npos; received_.erase(0, end + 1))
      on_line(received_.substr(0, end));
  }

  void beat() {
    if (!is_welcome_) return;
    contract::Beat beat;
    beat.sequence = ++sequence_;
    beat.phase = contract::RankPhase::kStepping;
    beat.state = 'S';
    beat.step = beat.moves = static_cast<int64_t>(sequence_);
    if (!unanswered_since_) unanswered_since_ = Clock::now();
    std::vector<contract::RankWord> words;
    for (int rank = 0; rank < ranks_; ++rank) words.push_back({first_rank_ + rank, beat});
    send(lines_.seal(to_line(words)));
  }

  // From now on nothing that is sent to it is acknowledged.
  void lose_power() {
    sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog program{1, drop};
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
      fail("a socket takes no filter");
  }

 private:
  static common::Key key_of(const contract::WatchPlace& place) {
    common::Key key{};
    if (!common::from_hex(place.key, &key)) fail("watch.json has no key");
    return key;
  }
  void on_line(const std::string& line) {
    if (!lines_.open()) {
      if (!lines_.take_opening(line)) fail("the conductor opens with something else");
      return send(lines_.opening() + "\n" + lines_.seal(hello_));
    }
    const auto text = lines_.unseal(line);
    if (!text) fail("a line of the conductor is not sealed");
    if (*text == contract::kWelcomeLine) is_welcome_ = true;
    if (text->starts_with(contract::kKillOrder)) is_ordered_ = true;
    if (text->starts_with("ack ") && unanswered_since_) {
      longest_unanswered_ = std::max(longest_unanswered_, seconds_since(*unanswered_since_));
      unanswered_since_.reset();
    }
  }
  void send(const std::string& line) const {
    const std::string bytes = line + "\n";
    (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  int first_rank_, ranks_;
  base::UniqueFd socket_;
  contract::SealedLines lines_;
  std::string hello_, received_;
  uint64_t sequence_ = 0;
  bool is_welcome_ = false, is_ordered_ = false;
  std::optional<Clock::time_point> unanswered_since_;
  double longest_unanswered_ = 0.0;
};

// The process that plays all nodes. It hears kPowerOff from `orders` and writes kAllHeard, kIsOff and its report to `words`.
class Fleet {
 public:
  Fleet(int nodes, int ranks, const std::string& watch_json) {
    while (::access(watch_json.c_str(), F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto place = value_of(contract::parse_watch_place(value_of(base::read_file(watch_json))));
    nodes_.reserve(static_cast<size_t>(nodes));
    for (int node = 0; node < nodes; ++node) {
      nodes_.emplace_back(node, ranks, place);
      if (node % 64 == 63) read_all();
    }
    begin_ = Clock::now();
  }

  void play(int orders, int words) {
    bool said = false;
    while (true) {
      turn();
      if (!said && std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.is_welcome(); })) {
        said = ::write(words, &kAllHeard, 1) == 1;
      }
      pollfd order{orders, POLLIN, 0};
      if (::poll(&order, 1, 5) == 0) continue;
      char word = 0;
      if (::read(orders, &word, 1) != 1 || word != kPowerOff) return;
      break;
    }
    for (const Node& node : nodes_)
      report_.longest_unanswered = std::max(report_.longest_unanswered, node.longest_unanswered());
    dark_ = static_cast<int>(nodes_.size()) / 2;
    nodes_[static_cast<size_t>(dark_)].lose_power();
    const auto off = Clock::now();
    (void)!::write(words, &kIsOff, 1);
    while (report_.ordered + 1 < static_cast<int>(nodes_.size()) && seconds_since(off) < 30.0) {
      turn();
      read_all();
      const auto ordered =
          std::count_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.is_ordered(); });
      if (ordered > report_.ordered) report_.last_order_seconds = seconds_since(off);
      report_.ordered = static_cast<int>(ordered);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    (void)!::write(words, &report_, sizeof report_);
  }

 private:
  void read_all() {
    for (int node = 0; node < static_cast<int>(nodes_.size()); ++node)
      if (node != dark_) nodes_[static_cast<size_t>(node)].read();
  }
  // Beats for the nodes whose time has come: they follow one another evenly.
  void turn() {
    const auto count = static_cast<int64_t>(nodes_.size());
    const double each = contract::kBeatSeconds / static_cast<double>(count);
    const auto due = static_cast<int64_t>(seconds_since(begin_) / each);
    report_.latest_beat_seconds =
        std::max(report_.latest_beat_seconds, static_cast<double>(due - beaten_) * each);
    for (; beaten_ < due; ++beaten_) {
      if (beaten_ % count == dark_) continue;
      Node& node = nodes_[static_cast<size_t>(beaten_ % count)];
      node.read();
      node.beat();
    }
  }

  std::vector<Node> nodes_;
  Clock::time_point begin_;
  int64_t beaten_ = 0;
  int dark_ = -1;
  FleetReport report_;
};

double cpu_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

int64_t peak_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Starts nothing: the fleet is there.
class FleetScheduler : public launcher::Scheduler {
 public:
  FleetScheduler(int nodes, double seconds, int orders, int words)
      : nodes_(nodes), seconds_(seconds), orders_(orders), words_(words) {}
  base::Result<std::vector<std::string>> nodes(const record::LaunchPlan& /*plan*/) override {
    std::vector<std::string> names;
    for (int node = 0; node < nodes_; ++node) names.push_back(fmt::format("n{}", node));
    return names;
  }
  base::Result<launcher::StepOutcome> run(const launcher::StepRequest& step) override {
    const auto begin = Clock::now();
    expect(kAllHeard);
    heard_seconds = seconds_since(begin);
    std::this_thread::sleep_for(std::chrono::duration<double>(kSettleSeconds));
    const auto window = Clock::now();
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
    descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    share_of_a_core = (cpu_seconds() - before) / seconds_since(window);
    (void)!::write(orders_, &kPowerOff, 1);
    expect(kIsOff);
    const auto off = Clock::now();
    pollfd alarm{step.alarm_fd, POLLIN, 0};
    if (::poll(&alarm, 1, 30'000) == 1) detection_seconds = seconds_since(off);
    if (::read(words_, &report, sizeof report) != sizeof report) fail("the fleet left no report");
    return launcher::StepOutcome{};
  }

  int64_t descriptors = 0;
  double heard_seconds = 0.0, share_of_a_core = 0.0, detection_seconds = 1e9;
  FleetReport report;

 private:
  void expect(char word) const {
    char got = 0;
    if (::read(words_, &got, 1) != 1 || got != word) fail("the fleet has ended");
  }
  int nodes_;
  double seconds_;
  int orders_, words_;
};

base::Result<record::RunRecord> conduct(FleetScheduler& scheduler, const std::string& folder, int nodes,
                                        int ranks, const spec::JobSpec& job) {
  launcher::ConductRequest request;
  request.spec = &job;
  request.spec_text = value_of(base::read_file(folder + "/job.toml"));
  request.plan.name = job.name;
  request.plan.id = "fleet";
  request.plan.scheduler = "slurm";
  request.plan.run_directory = folder + "/run";
  request.plan.working_directory = folder;
  request.plan.nodes = nodes;
  request.plan.ranks_per_node = ranks;
  request.plan.cpus_per_rank = 1;
  request.plan.batch = {nodes * ranks, 1, 1, nodes * ranks};
  return launcher::conduct(scheduler, request);
}

int measure(int nodes, int ranks, double seconds, const std::string& folder) {
  std::ofstream(folder + "/job.toml") << fmt::format(
      "name = \"fleet\"\n[resources]\nnodes = {}\nranks_per_node = {}\n[program]\ncommand = [\"true\"]\n",
      nodes, ranks);
  const spec::JobSpec job = value_of(spec::load_job_spec(folder + "/job.toml"));
  int orders[2], words[2];
  if (::pipe2(orders, O_CLOEXEC) != 0 || ::pipe2(words, O_CLOEXEC) != 0) fail("no pipes");
  const pid_t fleet = ::fork();
  if (fleet == 0) {
    ::close(orders[1]);
    struct rlimit limit {};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    Fleet(nodes, ranks, record::RunDir{folder + "/run"}.watch_json(0)).play(orders[0], words[1]);
    std::_Exit(0);
  }
  ::close(words[1]);
  FleetScheduler scheduler(nodes, seconds, orders[1], words[0]);
  const auto record = conduct(scheduler, folder, nodes, ranks, job);
  ::close(orders[1]);
  ::waitpid(fleet, nullptr, 0);
  if (!record) fail(record.error().to_string());

  const bool names_it = record->attempts.back().first_cause &&
                        record->attempts.back().first_cause->node == fmt::format("n{}", nodes / 2);
  const auto timeout = static_cast<double>(job.fault_tolerance.node_timeout.count());
  const FleetReport& report = scheduler.report;
  const nlohmann::json result = {{"nodes", nodes},
                                 {"ranks", int64_t{nodes} * ranks},
                                 {"descriptors", scheduler.descriptors},
                                 {"heard_seconds", scheduler.heard_seconds},
                                 {"share_of_a_core", scheduler.share_of_a_core},
                                 {"peak_bytes", peak_bytes()},
                                 {"detection_seconds", scheduler.detection_seconds},
                                 {"last_order_seconds", report.last_order_seconds},
                                 {"ordered", report.ordered},
                                 {"longest_unanswered_seconds", report.longest_unanswered},
                                 {"latest_beat_seconds", report.latest_beat_seconds},
                                 {"verdict", record->verdict}};
  fmt::print("{}\n", base::json_text(result));
  const bool good = scheduler.share_of_a_core <= kMostOfACore && peak_bytes() <= kMostBytes && names_it &&
                    scheduler.detection_seconds <= timeout + kLatestSeconds && report.ordered == nodes - 1;
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int nodes = argc == 4 ? std::atoi(argv[1]) : 0, ranks = argc == 4 ? std::atoi(argv[2]) : 0;
  const double seconds = argc == 4 ? std::atof(argv[3]) : 0.0;
  if (nodes < 2 || ranks < 1 || seconds <= 0.0) {
    fmt::print(stderr, "usage: fleet_bench NODES RANKS SECONDS\n");
    return 2;
  }
  if (auto signals = launcher::StopSignals::block(); !signals) fail(signals.error().to_string());
  std::string folder = (std::filesystem::temp_directory_path() / "fleet_bench.XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) fail("no scratch folder");
  const int code = measure(nodes, ranks, seconds, folder);
  std::filesystem::remove_all(folder);
  return code;
}

// One rank of comm_process_test: joins a world through files instead of PMIx, plays a scenario, and reports on stdout.
//
//   comm_peer PLUGIN PROVIDER FOLDER RANK NODES SCENARIO [TIMEOUT_MS]
//
// NODES is one letter for each rank, e.g. "aab". Each scenario begins after one barrier; the highest rank is
// the special one:
//   collectives  every collective, then two communicators at once, then a sub-group
//   late         the special rank starts a gather of 64 MiB a rank a second after the others, and says how much memory it had
//                taken by then
//   silent       the special rank does not join barrier #2 for three time limits
//   die          the special rank kills itself with SIGKILL in the middle of a loop of all-reduces
//   freeze       the special rank stops itself with SIGSTOP
//   leave        the special rank ends in good order while the others wait for it
//   mismatch     the special rank gathers one byte more than the others, of few
//   large        the same of many
//   idle         only the first barrier
// Prints "ok", or the code and text of the first error and the milliseconds since the special rank's deed.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/trainer/comm/plugin_communicator.h"
#include "tests/process/comm/peer_checks.h"

using namespace shardrun;
using namespace std::chrono_literals;

namespace {

struct Scene {
  std::string folder, name;
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{20000};
  bool special() const { return rank == size - 1; }
};

std::string read_when_there(const std::string& path) {
  for (;;) {
    auto text = base::read_file(path);
    if (text) return *text;
    std::this_thread::sleep_for(2ms);
  }
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void note_deed(const Scene& scene) {
  // Does not wait for the disk: the clock is running.
  std::ofstream(scene.folder + "/deed") << fmt::format("{:.6f}", unix_seconds());
}

long resident_kib() {
  long pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

// Reports what a failed operation looked like from here.
int report(const Scene& scene, const base::Error& error) {
  const double now = unix_seconds();
  double deed = now;
  if (auto text = base::read_file(scene.folder + "/deed")) deed = std::stod(*text);
  fmt::print("{}|{}|{:.0f}|{}\n", base::code_name(error.code()), error.message(), (now - deed) * 1000,
             fmt::join(error.ranks(), " "));
  return 0;
}

base::Result<void> barrier(comm::Communicator& communicator) {
  auto pending = communicator.barrier();
  if (!pending) return std::move(pending).error();
  return communicator.wait(*pending);
}

int collectives(const Scene& scene, comm::PluginSession& session, comm::Communicator& a,
                comm::Communicator& b) {
  std::string error = tests::check_collectives(a);
  if (error.empty()) error = tests::check_overlap(a, b);
  if (error.empty()) error = tests::check_all_to_all(a);
  if (error.empty() && scene.size >= 3 && scene.rank != 1) {
    std::vector<uint32_t> group;  // everyone but rank 1
    for (int rank = 0; rank < scene.size; ++rank) {
      if (rank != 1) group.push_back(static_cast<uint32_t>(rank));
    }
    auto sub = session.communicator(/*channel=*/7, group);
    error = sub ? tests::check_collectives(**sub) : sub.error().to_string();
  }
  if (error.empty()) {
    if (auto last = barrier(a); !last) error = last.error().to_string();
  }
  fmt::print("{}\n", error.empty() ? "ok" : error);
  return error.empty() ? 0 : 1;
}

int late(const Scene& scene, comm::Communicator& a) {
  std::vector<std::byte> mine(size_t{64} << 20, std::byte(scene.rank)), all(mine.size() * scene.size);
  const long before = resident_kib();
  if (scene.special()) std::this_thread::sleep_for(1s);
  const long taken = resident_kib() - before;
  auto pending = a.all_gather(mine, all);
  auto done = pending ? a.wait(*pending) : base::Result<void>(pending.error());
  if (!done) return report(scene, done.error());
  for (size_t rank = 0; rank < static_cast<size_t>(scene.size); ++rank)
    for (size_t i = 0; i < mine.size(); ++i)
      if (all[rank * mine.size() + i] != std::byte(rank)) return 1;
  fmt::print("{}\n", taken);
  return 0;
}

int play(const Scene& scene, comm::Communicator& a) {
  if (scene.special()) {
    note_deed(scene);
    if (scene.name == "silent") std::this_thread::sleep_for(3 * scene.timeout);
    if (scene.name == "freeze") raise(SIGSTOP);
    if (scene.name == "leave") return 0;
  }
  if (scene.name == "mismatch" || scene.name == "large") {
    const size_t bytes = scene.name == "large" ? size_t{8} << 20 : 100;
    std::vector<std::byte> mine(bytes + (scene.special() ? 1 : 0)), all(mine.size() * scene.size);
    auto pending = a.all_gather(mine, all);
    auto done = pending ? a.wait(*pending) : base::Result<void>(pending.error());
    if (!done) return report(scene, done.error());
  }
  if (scene.name == "die") {
    std::vector<float> buffer(300000, 1.0f);
    for (int i = 0;; ++i) {
      if (scene.special() && i == 20) {
        note_deed(scene);
        raise(SIGKILL);
      }
      auto pending = a.all_reduce(std::span(buffer));
      auto done = pending ? a.wait(*pending) : base::Result<void>(pending.error());
      if (!done) return report(scene, done.error());
    }
  }
  if (auto done = barrier(a); !done) return report(scene, done.error());
  fmt::print("ok\n");
  return 0;
}

base::Result<int> join_and_play(const Scene& scene, const comm::SessionOptions& options,
                                const std::string& nodes) {
  auto session = comm::PluginSession::open(options);
  if (!session) return std::move(session).error();
  RETURN_IF_ERROR(base::write_file_atomically(scene.folder + fmt::format("/address_{}", scene.rank),
                                              session->local_address()));
  std::vector<comm::PeerCard> cards;
  for (int rank = 0; rank < scene.size; ++rank) {
    comm::PeerCard card;
    card.address = read_when_there(scene.folder + fmt::format("/address_{}", rank));
    card.node_name = std::string("n") + nodes[rank];
    card.node_id = static_cast<uint64_t>(nodes[rank]);
    cards.push_back(card);
  }
  RETURN_IF_ERROR(session->connect(scene.rank, cards));
  auto a = session->communicator(0), b = session->communicator(1);
  if (!a) return std::move(a).error();
  if (!b) return std::move(b).error();
  RETURN_IF_ERROR(barrier(**a));
  fmt::print("{}\n", session->provider());
  std::fflush(stdout);
  if (scene.name == "idle") return 0;
  if (scene.name == "collectives") return collectives(scene, *session, **a, **b);
  return scene.name == "late" ? late(scene, **a) : play(scene, **a);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  const std::string nodes = argv[5];
  Scene scene;
  scene.folder = argv[3];
  scene.rank = std::stoi(argv[4]);
  scene.size = static_cast<int>(nodes.size());
  scene.name = argv[6];
  if (argc > 7) scene.timeout = std::chrono::milliseconds(std::stoi(argv[7]));
  comm::SessionOptions options;
  options.plugin_path = argv[1];
  options.provider = argv[2];
  options.timeout = scene.timeout;
  auto result = join_and_play(scene, options, nodes);
  if (result) return *result;
  fmt::print("{}|{}\n", base::code_name(result.error().code()), result.error().to_string());
  return 1;
}

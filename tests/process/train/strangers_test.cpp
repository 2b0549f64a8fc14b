// Another user of the machine, who knows every port and socket name of a job, has no effect on it: the same losses, verdict and
// exit code. Needs root, who can become another user; elsewhere it is skipped.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/train/trainer_job.h"
#include "tests/support/folder.h"

using namespace shardrun;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kStranger = 65534;
constexpr int kIdle = 60;    // silent connections to each port in a round
constexpr int kChurn = 100;  // connections that are closed at once
constexpr int kRings = 200;
constexpr size_t kPorts = 2 + 2 * 2;  // liveness and data of two ranks at least, beside the conductor's two

const std::string kSpec = testing::two_rank_job("besieged", 64, 1500);

// What a stranger can find out of a job with ls and cat: it is gathered with root's eyes, so that no other job of this machine is
// disturbed.
struct Public {
  std::vector<uint16_t> ports;
  std::vector<std::string> bells;  // names of abstract sockets
};

std::set<std::string> sockets_of(const std::vector<pid_t>& processes) {
  std::set<std::string> inodes;
  for (const pid_t process : processes) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", error)) {
      const std::string target = fs::read_symlink(entry.path(), error).string();
      if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  return inodes;
}

Public look_around(const std::vector<pid_t>& processes) {
  const auto inodes = sockets_of(processes);
  Public found;
  std::ifstream tcp("/proc/net/tcp");
  for (std::string line; std::getline(tcp, line);) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    if (!(fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >>
          inode))
      continue;
    if (state != "0A" || inodes.count(inode) == 0) continue;
    found.ports.push_back(static_cast<uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  std::ifstream named("/proc/net/unix");
  for (std::string line; std::getline(named, line);) {
    std::istringstream fields(line);
    std::string slot, count, protocol, flags, type, state, inode, name;
    if (fields >> slot >> count >> protocol >> flags >> type >> state >> inode >> name &&
        inodes.count(inode) > 0)
      found.bells.push_back(name);
  }
  return found;
}

int call(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  (void)::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  return fd;
}

// News of a failure as it was once believed of whoever knew the name of a bell.
std::string once_believed(const std::string& bell) {
  const struct {
    uint32_t kind = 3, global_rank = 0;
    uint64_t cookie;
    int32_t code = 5;
    uint32_t text_bytes = 0, rank_count = 0, reserved = 0;
  } news{.cookie = std::strtoull(bell.substr(bell.rfind('-') + 1).c_str(), nullptr, 16)};
  return std::string(reinterpret_cast<const char*>(&news), sizeof news);
}

void ring(const std::string& bell) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(bell.begin() + 1, bell.end(), address.sun_path + 1);  // the name begins with @ instead of NUL
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (int i = 0; i < kRings; ++i) {
    (void)::sendto(fd, "x", 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bell.size()));
  }
  ::close(fd);
}

// One round, in a process of the stranger's. Exit code 1: a door was open.
[[noreturn]] void besiege(const Public& known, const std::string& run) {
  if (::setgid(kStranger) != 0 || ::setuid(kStranger) != 0) ::_exit(2);
  ::alarm(5);
  for (const std::string& path : {run + "/attempt_0/watch.json"}) {
    if (::open(path.c_str(), O_RDONLY) >= 0) ::_exit(1);
  }
  std::vector<std::string> words = {"hello 1 00000000000000000000000000000000 0 n0\n",
                                    "nonce " + std::string(64, '0') + "\nlook 2\n", std::string(4000, '\0'),
                                    std::string(4000, '\xff'), "GET / HTTP/1.0\r\n\r\n"};
  for (const std::string& bell : known.bells) {
    if (bell.starts_with("@shardrun-bell-")) words.push_back(once_believed(bell));
  }
  for (const uint16_t port : known.ports) {
    for (int i = 0; i < kChurn; ++i) ::close(call(port));
    for (const std::string& said : words) (void)::send(call(port), said.data(), said.size(), MSG_NOSIGNAL);
    for (int i = 0; i < kIdle; ++i) (void)call(port);
  }
  for (const std::string& bell : known.bells) ring(bell);
  ::sleep(1);
  ::_exit(0);
}

std::vector<pid_t> with_launcher(std::vector<pid_t> ranks, pid_t launcher) {
  ranks.push_back(launcher);
  return ranks;
}

struct Siege {
  int rounds = 0, open_doors = 0;
  size_t ports = 0;
  int exit_code = -1;
};

Siege besiege_until_its_end(const testing::TrainerJob& job, const std::vector<std::string>& settings) {
  auto launcher = base::spawn_command(job.command(settings), {}, /*with_input=*/false);
  REQUIRE(launcher);
  Siege siege;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  int status = 0;
  while (::waitpid(launcher->pid, &status, WNOHANG) == 0 && std::chrono::steady_clock::now() < deadline) {
    const Public known = look_around(with_launcher(job.ranks(), launcher->pid));
    if (siege.ports < kPorts && known.ports.size() < kPorts) {  // the job has not begun
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    siege.ports = std::max(siege.ports, known.ports.size());
    const std::string run = job.newest_run();
    const pid_t stranger = ::fork();
    REQUIRE(stranger >= 0);
    if (stranger == 0) besiege(known, run);
    int how = 0;
    REQUIRE(::waitpid(stranger, &how, 0) == stranger);
    siege.open_doors += WIFEXITED(how) && WEXITSTATUS(how) == 1;
    ++siege.rounds;
  }
  siege.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return siege;
}

}  // namespace

TEST_CASE(
    "strangers: another user who calls, floods, forges and stalls changes no loss, verdict or exit code") {
  if (::geteuid() != 0) {
    std::puts("skipped: only root can become another user");
    std::exit(77);
  }
  const testing::TrainerJob alone(kSpec), besieged(kSpec);
  const std::vector<std::string> settings = {"communication.provider=tcp"};
  const auto expected = alone.run(settings);
  REQUIRE(expected.exit_code == 0);

  const Siege siege = besiege_until_its_end(besieged, settings);

  CHECK(siege.exit_code == 0);
  CHECK(siege.open_doors == 0);
  CHECK(siege.rounds > 0);
  CHECK(siege.ports >= kPorts);
  CHECK(besieged.losses() == alone.losses());
  CHECK(alone.losses().size() > 1);
  const auto record = record::parse_run_record(tests::read_back(besieged.newest_run() + "/record.json"));
  REQUIRE(record);
  CHECK(record->verdict == expected.verdict);
  CHECK(record->attempts.size() == 1);
  CHECK(tests::read_back(besieged.newest_run() + "/events.jsonl").find("\"strangers\"") != std::string::npos);
  REQUIRE(record->attempts.at(0).strangers);
  CHECK(record->attempts.at(0).strangers->find("that could not prove the attempt's key, the newest") !=
        std::string::npos);
}

// Who may compile: one at a time, and nobody waits for the dead.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/trainer/compile/lease.h"
#include "tests/support/folder.h"

using namespace shardrun;
using compile::Lease;
namespace fs = std::filesystem;

namespace {

struct Folder : tests::Folder {
  std::string lease() const { return *this / "x.lease"; }
};

bool takes(const std::string& path) {
  auto lease = Lease::take(path);
  REQUIRE(lease);
  return lease->has_value();
}

void age(const std::string& path, long seconds) {
  timespec times[2];
  ::clock_gettime(CLOCK_REALTIME, &times[0]);
  times[0].tv_sec -= seconds;
  times[1] = times[0];
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

}  // namespace

TEST_CASE("a_lease_is_held_by_one_until_it_gives_it_back") {
  const Folder folder;
  {
    auto lease = Lease::take(folder.lease());
    REQUIRE(lease);
    REQUIRE(lease->has_value());
    std::string holder;
    auto second = Lease::take(folder.lease(), &holder);
    REQUIRE(second);
    CHECK_FALSE(second->has_value());
    CHECK(holder.find("process " + std::to_string(::getpid())) != std::string::npos);
    age(folder.lease(), 3600);  // old, but its holder lives here
    CHECK_FALSE(takes(folder.lease()));
  }
  CHECK(takes(folder.lease()));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("the_lease_of_a_process_that_died_here_is_taken_at_once") {
  const Folder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    auto lease = Lease::take(folder.lease());
    ::_exit(lease && *lease ? 0 : 1);  // without giving it back
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(fs::exists(folder.lease()));
  CHECK(takes(folder.lease()));
}

TEST_CASE("the_lease_of_another_node_is_honoured_until_it_is_not_renewed") {
  const Folder folder;
  REQUIRE(base::write_file_atomically(folder.lease(), "other-boot/pid:[1] node7 41 99 0\n"));
  std::string holder;
  auto lease = Lease::take(folder.lease(), &holder);
  REQUIRE(lease);
  CHECK_FALSE(lease->has_value());
  CHECK(holder == "node7 (process 41)");
  age(folder.lease(), compile::kLeaseLifetime.count() - 5);
  CHECK_FALSE(takes(folder.lease()));
  age(folder.lease(), compile::kLeaseLifetime.count() + 5);
  CHECK(takes(folder.lease()));
}

TEST_CASE("renewing_keeps_a_lease_young_and_leaves_another_ones_alone") {
  const Folder folder;
  auto lease = Lease::take(folder.lease());
  REQUIRE(lease);
  REQUIRE(lease->has_value());
  age(folder.lease(), 3600);
  (*lease)->renew();
  struct stat status {};
  REQUIRE(::stat(folder.lease().c_str(), &status) == 0);
  CHECK(::time(nullptr) - status.st_mtime < 60);

  REQUIRE(base::write_file_atomically(folder.lease(), "other-boot/pid:[1] node7 41 99 0\n"));
  age(folder.lease(), 3600);
  (*lease)->renew();
  REQUIRE(::stat(folder.lease().c_str(), &status) == 0);
  CHECK(::time(nullptr) - status.st_mtime > 3000);
  lease->reset();
  CHECK(fs::exists(folder.lease()));
}

TEST_CASE("of_many_who_find_a_stale_lease_one_takes_it") {
  for (int round = 0; round < 20; ++round) {
    const Folder folder;
    REQUIRE(base::write_file_atomically(folder.lease(), "other-boot/pid:[1] node7 41 99 0\n"));
    age(folder.lease(), 3600);
    int gate[2];
    REQUIRE(::pipe(gate) == 0);
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      children.push_back(::fork());
      if (children.back() == 0) {
        char byte = 0;
        ::close(gate[1]);
        (void)!::read(gate[0], &byte, 1);
        auto lease = Lease::take(folder.lease());
        if (!lease || !*lease) ::_exit(0);
        ::usleep(100000);  // the others try while it is held
        // Still ours: a lease that somebody took away has another text.
        const auto text = base::read_file(folder.lease());
        const bool ours = text && text->find(" " + std::to_string(::getpid()) + " ") != std::string::npos;
        ::_exit(ours ? 1 : 2);
      }
    }
    ::close(gate[1]);
    ::close(gate[0]);
    int holders = 0;
    for (const pid_t child : children) {
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      REQUIRE(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) != 2);
      holders += WEXITSTATUS(status) == 1 ? 1 : 0;
    }
    CHECK(holders == 1);
  }
}

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <string>

#include "runtime/rank/heartbeat_file.h"
#include "tests/support/folder.h"

using namespace shardrun;

namespace {

std::atomic<bool> server_answers{true};

// At once: a file that is made and then filled changes twice.
void put(const std::string& path, const char* text) {
  std::ofstream(path + ".new") << text;
  REQUIRE(std::rename((path + ".new").c_str(), path.c_str()) == 0);
}

bool changes_soon(rank::HeartbeatFile& file) {
  for (int tries = 0; tries < 1000; ++tries) {
    if (file.has_changed()) return true;
    ::usleep(10'000);
  }
  return false;
}

}  // namespace

// In the place of the C library's: waits as for a file server.
extern "C" int stat(const char* path, struct stat* status) noexcept {
  while (!server_answers) ::usleep(1000);
  return ::fstatat(AT_FDCWD, path, status, 0);
}

TEST_CASE("heartbeat file: that it is new or changed is told once") {
  const tests::Folder folder;
  const std::string path = folder / "alive";
  rank::HeartbeatFile file(path);
  CHECK_FALSE(file.has_changed());
  ::usleep(50'000);
  CHECK_FALSE(file.has_changed());

  put(path, "1");
  CHECK(changes_soon(file));
  ::usleep(50'000);
  CHECK_FALSE(file.has_changed());
  put(path, "12");
  CHECK(changes_soon(file));
}

TEST_CASE("heartbeat file: nobody waits for a file server that does not answer") {
  const tests::Folder folder;
  std::ofstream(folder / "alive") << "1";
  rank::HeartbeatFile file(folder / "alive");

  server_answers = false;
  auto asked = std::async(std::launch::async, [&file] { return file.has_changed() || file.has_changed(); });
  const bool returned = asked.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  server_answers = true;

  CHECK(returned);
  CHECK_FALSE(asked.get());
  CHECK(changes_soon(file));
}

#include "launcher/gate/bandwidth_history.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/base/io.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

// A home of its own for each case.
struct Home {
  Home() {
    std::string path = "/tmp/bandwidth_history_test.XXXXXX";
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    folder = path;
    ::setenv("XDG_STATE_HOME", folder.c_str(), 1);
  }
  ~Home() {
    ::unsetenv("XDG_STATE_HOME");
    std::filesystem::remove_all(folder);
  }
  std::string folder;
};

}  // namespace

TEST_CASE_FIXTURE(
    Home, "bandwidth history: nothing is usual at first; then the median is, whatever one launch had") {
  const std::string path = *history_path({"cluster", "main", 4, 2, "auto"});

  CHECK_FALSE(usual_bandwidth(path)->has_value());
  for (const double value : {100.0, 110.0, 5000.0}) REQUIRE(remember_bandwidth(path, value).has_value());

  CHECK(**usual_bandwidth(path) == 110.0);
  CHECK(*base::read_file(path) == "100\n110\n5000\n");
}

TEST_CASE_FIXTURE(Home, "bandwidth history: it is the owner's alone, and only the newest numbers are kept") {
  const std::string path = *history_path({"cluster", "main", 4, 2, "auto"});
  for (size_t i = 1; i <= kKept + 3; ++i)
    REQUIRE(remember_bandwidth(path, static_cast<double>(i)).has_value());

  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(base::read_file(path)->substr(0, 2) == "4\n");
}

TEST_CASE_FIXTURE(Home, "bandwidth history: what others can write is not believed") {
  const std::string path = *history_path({"cluster", "main", 4, 2, "auto"});
  REQUIRE(remember_bandwidth(path, 100.0).has_value());
  ::chmod((folder + "/shardrun/bandwidth").c_str(), 0777);

  CHECK(usual_bandwidth(path).error().code() == base::Code::kRefused);
  CHECK_FALSE(remember_bandwidth(path, 1.0).has_value());
}

TEST_CASE_FIXTURE(Home, "bandwidth history: other nodes, ranks, partitions and providers have another past") {
  const std::string one = *history_path({"c", "p", 4, 2, "auto"});
  CHECK(one == folder + "/shardrun/bandwidth/c-p-4x2-auto");
  CHECK(*history_path({"c", "p", 2, 4, "auto"}) != one);
  CHECK(*history_path({"c", "q", 4, 2, "auto"}) != one);
  CHECK(*history_path({"c", "p", 4, 2, "efa"}) != one);
  CHECK(*history_path({"../../x", "", 1, 1, "a b"}) == folder + "/shardrun/bandwidth/.._.._x-_-1x1-a_b");
}

TEST_CASE_FIXTURE(Home, "bandwidth history: a file of nonsense is as good as none") {
  const std::string path = *history_path({"c", "p", 1, 1, "auto"});
  std::filesystem::create_directories(folder + "/shardrun/bandwidth");
  ::chmod((folder + "/shardrun/bandwidth").c_str(), 0700);
  std::ofstream(path) << "-3\nnonsense\n";
  CHECK_FALSE(usual_bandwidth(path)->has_value());
}

TEST_CASE(
    "bandwidth history: what is written is read again, and what would be written as 0 is no bandwidth") {
  CHECK(bandwidths_in("0.4\n-3\n1\n2.5e9\nnonsense\n7\n") == std::vector<double>{1.0, 2.5e9});
  CHECK(bandwidths_in("1e999\n").empty());
  CHECK(history_text(std::vector<double>{1.0, 2.5e9}) == "1\n2500000000\n");
}

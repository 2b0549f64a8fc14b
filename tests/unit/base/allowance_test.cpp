#include "runtime/base/allowance.h"

#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>

using namespace shardrun::base;

namespace {

// A folder with the files of control groups.
struct Groups {
  Groups() {
    std::string path = "/tmp/allowance.XXXXXX";
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    root = path;
  }
  ~Groups() { std::filesystem::remove_all(root); }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + file).parent_path());
    std::ofstream(root + file) << text;
  }
  std::string root;
};

}  // namespace

TEST_CASE("allowance: the least limit of a group and of those above it counts, in version 2") {
  const Groups groups;
  groups.write("/a/memory.max", "4096\n");
  groups.write("/a/b/memory.max", "max\n");
  groups.write("/a/cpu.max", "max 100000\n");
  groups.write("/a/b/cpu.max", "150000 100000\n");
  const CgroupLimits limits = cgroup_limits("0::/a/b\n", groups.root);
  CHECK(limits.memory_bytes == 4096);
  CHECK(limits.cpus == 1.5);
}

TEST_CASE("allowance: each controller of version 1 has its own group") {
  const Groups groups;
  groups.write("/memory/m/memory.limit_in_bytes", "8192\n");
  groups.write("/memory/memory.limit_in_bytes", "9223372036854771712\n");
  groups.write("/cpu/c/cpu.cfs_quota_us", "-1\n");
  groups.write("/cpu/c/cpu.cfs_period_us", "100000\n");
  const CgroupLimits limits = cgroup_limits("4:cpu,cpuacct:/c\n3:memory:/m\n0::/b\n", groups.root);
  CHECK(limits.memory_bytes == 8192);
  CHECK_FALSE(limits.cpus);
}

TEST_CASE("allowance: a container that sees the machine's paths has the limits of the mount itself") {
  const Groups groups;
  groups.write("/memory/memory.limit_in_bytes", "8192\n");
  CHECK(cgroup_limits("3:memory:/docker/0123\n", groups.root).memory_bytes == 8192);
}

TEST_CASE("allowance: where no group says anything, nothing is limited") {
  const Groups groups;
  CHECK_FALSE(cgroup_limits("0::/\n", groups.root).memory_bytes);
  CHECK_FALSE(cgroup_limits("", groups.root).cpus);
}

TEST_CASE("allowance: a process that is bound to one CPU may use one") {
  cpu_set_t before, one;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(allowed_cpus().at(0)), &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const int cpus = usable_cpus();
  ::sched_setaffinity(0, sizeof before, &before);
  CHECK(cpus == 1);
}

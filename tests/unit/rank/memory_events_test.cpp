#include "runtime/rank/memory_events.h"

#include <doctest/doctest.h>

using namespace shardrun::rank;

TEST_CASE("memory events: the file of the cgroup that accounts for memory is found, in both versions") {
  CHECK(memory_events_path("0::/system.slice/x\n", "/c") == "/c/system.slice/x/memory.events");
  CHECK(memory_events_path("4:cpu,cpuacct:/a\n3:hugetlb,memory:/slurm/uid_1/job_7\n0::/b\n", "/c") ==
        "/c/memory/slurm/uid_1/job_7/memory.oom_control");
  CHECK(memory_events_path("4:cpu,memoryless:/a\n", "/c").empty());
  CHECK(memory_events_path("", "/c").empty());
}

TEST_CASE("memory events: the count is read from both versions' files, and from nothing else") {
  CHECK(oom_kills("low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n") == 1);
  CHECK(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 17\n") == 17);
  CHECK_FALSE(oom_kills("oom_kill_disable 0\n").has_value());
  CHECK_FALSE(oom_kills("oom_kill x\n").has_value());
  CHECK_FALSE(oom_kills("").has_value());
}

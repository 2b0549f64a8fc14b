#include "runtime/rank/binding.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/support/folder.h"

using namespace shardrun::rank;

namespace {
// Two cores of two threads each, numbered as Linux does: threads of core 0 are 0 and 2.
const std::vector<Core> kTwoCores = {{0, 2}, {1, 3}};
using Cpus = std::vector<int>;
}  // namespace

TEST_CASE("binding: ranks get whole cores where there are enough") {
  CHECK(slice_cpus(kTwoCores, /*local_rank=*/0, /*local_world_size=*/2, /*cpus_per_rank=*/1) == Cpus{0, 2});
  CHECK(slice_cpus(kTwoCores, 1, 2, 1) == Cpus{1, 3});
  CHECK(slice_cpus(kTwoCores, 0, 1, 2) == Cpus{0, 2, 1, 3});
}

TEST_CASE("binding: ranks share cores, thread by thread, when cores are too few") {
  CHECK(slice_cpus(kTwoCores, 0, 4, 1) == Cpus{0});
  CHECK(slice_cpus(kTwoCores, 1, 4, 1) == Cpus{2});
  CHECK(slice_cpus(kTwoCores, 1, 2, 2) == Cpus{1, 3});
}

TEST_CASE("binding: no CPU is given twice and none is invented") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int each = 1; each * ranks <= 4; ++each) {
      std::set<int> seen;
      size_t given = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Cpus cpus = slice_cpus(kTwoCores, rank, ranks, each);
        CHECK(cpus.size() >= static_cast<size_t>(each));
        seen.insert(cpus.begin(), cpus.end());
        given += cpus.size();
      }
      CHECK(seen.size() == given);
      CHECK(*seen.rbegin() <= 3);
    }
  }
}

TEST_CASE("binding: cores follow each other by memory node, with the threads of each that may be used") {
  shardrun::tests::Folder folder;
  const auto write = [&](const std::string& path, const char* text) {
    std::filesystem::create_directories(std::filesystem::path(folder / path).parent_path());
    std::ofstream(folder / path) << text << '\n';
  };
  // Two sockets whose cores are numbered in turn, with the second threads of all behind the first.
  write("node/online", "0-1");
  write("node/node0/cpulist", "0,2,4,6");
  write("node/node1/cpulist", "1,3,5,7");
  for (int cpu = 0; cpu < 8; ++cpu)
    write("cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", cpu % 4 == 0   ? "0,4"
                                                                              : cpu % 4 == 1 ? "1,5"
                                                                              : cpu % 4 == 2 ? "2,6"
                                                                                             : "3,7");

  CHECK(cores_of({0, 1, 2, 3, 4, 5, 6, 7}, folder.path()) ==
        std::vector<Core>{{0, 4}, {2, 6}, {1, 5}, {3, 7}});
  CHECK(cores_of({1, 2, 3, 4, 6}, folder.path()) == std::vector<Core>{{2, 6}, {4}, {1}, {3}});
  CHECK(cores_of({3, 9}, folder / "nowhere") == std::vector<Core>{{3}, {9}});
}

TEST_CASE("binding: a list that names more CPUs than there can be takes no time and no memory") {
  shardrun::tests::Folder folder;
  std::filesystem::create_directories(folder / "cpu/cpu0/topology");
  std::ofstream(folder / "cpu/cpu0/topology/thread_siblings_list") << "0-2147483647\n";
  CHECK(cores_of({0, 1}, folder.path()) == std::vector<Core>{{0, 1}});
}

TEST_CASE("binding: ranks that ask for more than there is share CPUs where each gets equally many") {
  CHECK(share_cpus({4, 6}, {4, 6}, /*local_rank=*/0, /*local_world_size=*/8, /*cpus_per_rank=*/1) == Cpus{4});
  CHECK(share_cpus({4, 6}, {4, 6}, 1, 8, 1) == Cpus{6});
  CHECK(share_cpus({4, 6}, {4, 6}, 6, 8, 1) == Cpus{4});
  CHECK(share_cpus({0, 1, 2, 3}, {0, 1, 2, 3}, 3, 4, 2) == Cpus{2, 3});
  CHECK(share_cpus({0, 1}, {0, 1}, 1, 2, 2) == Cpus{0, 1});
}

TEST_CASE(
    "binding: ranks that ask for more than there is and cannot share evenly stay unbound, and the log says "
    "so") {
  CHECK(slice_cpus(kTwoCores, 0, 3, 2).empty());
  CHECK(share_cpus({0, 1}, {0, 1}, /*local_rank=*/0, /*local_world_size=*/3, /*cpus_per_rank=*/1).empty());
  CHECK(share_cpus({0, 1, 2}, {0, 1, 2}, 0, 3, 2).empty());
  CHECK(share_cpus({0, 1}, {0, 1}, 0, 1, 4).empty());

  const Binding binding = choose_binding(/*local_rank=*/0, /*local_world_size=*/1, /*cpus_per_rank=*/1 << 20);

  CHECK(binding.cpus.empty());
  CHECK(binding.note.find("not bound") != std::string::npos);
}

TEST_CASE("binding: a rank that its scheduler has bound to both threads of a core keeps them") {
  CHECK(share_cpus({2, 6}, /*offered=*/{0, 1, 2, 3, 4, 5, 6, 7}, /*local_rank=*/1, /*local_world_size=*/8,
                   /*cpus_per_rank=*/1)
            .empty());
}

TEST_CASE("binding: one rank that wants one CPU is bound to CPUs that this process may use") {
  cpu_set_t allowed;
  REQUIRE(::sched_getaffinity(0, sizeof allowed, &allowed) == 0);

  const Binding binding = choose_binding(/*local_rank=*/0, /*local_world_size=*/1, /*cpus_per_rank=*/1);

  for (int cpu : binding.cpus) CHECK(CPU_ISSET(static_cast<size_t>(cpu), &allowed));
  CHECK_FALSE(binding.cpus.empty());
}

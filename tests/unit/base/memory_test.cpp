#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/memory.h"

using namespace shardrun::base;

namespace {

// Whether the mapping that holds `address` is advised to have huge pages, by its flags in smaps.
bool wants_huge_pages(const std::byte* address) {
  std::ifstream smaps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<unsigned long>(address);
      is_inside = at >= begin && at < end;
    }
    if (is_inside && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
  }
  return false;
}

}  // namespace

TEST_CASE("memory: large allocations ask for huge pages, small ones do not, and both are zero") {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    MESSAGE("skipped: this system has no huge pages");
    return;
  }
  for (const auto& [bytes, wants] :
       {std::pair(Memory::kWithLargePages, true), std::pair(Memory::kWithLargePages - 4096, false)}) {
    const auto memory = Memory::create(bytes);
    REQUIRE(memory);
    CHECK_EQ(wants_huge_pages(memory->data()), wants);
    CHECK_EQ(std::count(memory->data(), memory->data() + bytes, std::byte{0}), bytes);
  }
}

TEST_CASE("copy_past_caches: any length at any address is copied and nothing beside it is touched") {
  std::vector<float> from(80), to(160);
  std::iota(from.begin(), from.end(), 1.0F);
  for (size_t source = 0; source < 3; ++source) {
    for (size_t target = 0; target < 17; ++target) {
      for (size_t length = 0; length <= 70; ++length) {
        std::fill(to.begin(), to.end(), -1.0F);
        const auto part = std::span(from).subspan(source, length);
        copy_past_caches(part, to.data() + 1 + target);
        const auto begin = to.begin() + 1 + static_cast<std::ptrdiff_t>(target);
        const auto end = begin + static_cast<std::ptrdiff_t>(length);
        const bool copied = std::equal(part.begin(), part.end(), begin);
        const auto outside = std::count(to.begin(), begin, -1.0F) + std::count(end, to.end(), -1.0F);
        REQUIRE(copied);
        REQUIRE(outside == static_cast<std::ptrdiff_t>(to.size() - length));
      }
    }
  }
}

#include "launcher/submit/snapshot.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>

using namespace shardrun::launcher;

namespace {

std::string entry(const std::string& size, const std::string& path) {
  return "100644 blob 5716ca5987cbf97d6bb54920bea6adde242d87e6 " + size + "\t" + path + '\0';
}

}  // namespace

TEST_CASE("snapshots: a tree weighs what its files do, links of git to other repositories nothing") {
  const auto weight = weigh_tree(entry("     40", "a") + entry("      -", "module") +
                                 entry("   2000", "a b\tc") + entry("7", "d"));
  CHECK(weight.bytes == 2047);
  CHECK(weight.largest_bytes == 2000);
  CHECK(weight.largest == "a b\tc");
  CHECK(weigh_tree("").bytes == 0);
}

TEST_CASE("snapshots: sizes that no file has make no tree lighter") {
  const std::string most = std::to_string(std::numeric_limits<int64_t>::max());
  CHECK(weigh_tree(entry(most, "a") + entry(most, "b") + entry("-2000", "c")).bytes ==
        std::numeric_limits<int64_t>::max());
}

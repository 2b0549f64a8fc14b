#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>

#include "runtime/base/io.h"
#include "tests/support/folder.h"

using namespace shardrun;

namespace {
int failure_of_close = 0;  // 0: none
}

// In the place of the C library's: tells as late as a file server does that nothing of what was written is kept.
extern "C" int close(int fd) {
  const auto closed = static_cast<int>(::syscall(SYS_close, fd));
  if (failure_of_close == 0) return closed;
  errno = failure_of_close;
  return -1;
}

TEST_CASE(
    "written file: a file server that tells only at its close that it is full leaves the file as it was") {
  const tests::Folder folder;
  const std::string path = folder / "record.json";
  REQUIRE(base::write_file_atomically(path, "old"));

  for (const base::Durability durability : {base::Durability::kProcess, base::Durability::kPowerLoss}) {
    failure_of_close = EDQUOT;
    const auto written = base::write_file_atomically(path, "new", 0644, durability);
    failure_of_close = 0;

    REQUIRE_FALSE(written);
    CHECK_EQ(written.error().message(), "writing " + path +
                                            ": Disk quota exceeded (errno 122); make room there, or ask for "
                                            "more: `quota -s` shows your share");
    CHECK_EQ(base::read_file(path).value(), "old");
    const std::filesystem::directory_iterator files(folder.path());
    CHECK_EQ(std::distance(begin(files), end(files)), 1);
  }
}

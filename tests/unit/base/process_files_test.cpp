// What of the kernel's files of a process is read, and what is not believed.
#include "runtime/base/process_files.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <string>

using namespace shardrun::base;

namespace {

const std::string kBegin = "4711 (",
                  kFields4To21 = " 1 4711 4711 34816 4711 4194304 1204 0 3 0 12 7 0 0 20 0 2 0";

}  // namespace

TEST_CASE("process files: a program's name may look like fields, and those behind it are read") {
  for (const char* name : {"sleep", "a ) (b", "x) Z 9 9 9", "", "two\nlines"}) {
    CAPTURE(name);
    const auto stat = parse_process_stat(kBegin + name + ") S" + kFields4To21 + " 88213\n");
    REQUIRE(stat);
    CHECK(stat->state == 'S');
    CHECK(stat->parent == 1);
    CHECK(stat->flags == 4194304);
    CHECK(stat->start_time == 88213);
    CHECK_FALSE(stat->has_ended());
  }
}

TEST_CASE("process files: a process that is cut off before its start, or says no number, is nobody's") {
  for (const std::string& rest :
       {std::string(") S 1 4711"), ") S" + kFields4To21, ") S" + kFields4To21 + " soon",
        ") S -1" + kFields4To21.substr(2) + " 88213", ") SS" + kFields4To21 + " 88213", std::string(")"),
        std::string()}) {
    CAPTURE(rest);
    CHECK_FALSE(parse_process_stat(kBegin + "sleep" + rest + "\n"));
  }
}

TEST_CASE("process files: this process is found, with its parent, and one that is not there is not found") {
  const auto us = read_process_stat(::getpid());
  REQUIRE_MESSAGE(us, us.error().to_string());
  CHECK(us->state == 'R');
  CHECK(us->parent == ::getppid());
  CHECK(us->start_time > 0);
  CHECK(us->environment_end >= us->environment);
  CHECK(read_process_stat(1 << 30).error().code() == Code::kNotFound);
}

TEST_CASE("process files: children are processes, and pages are as many as can be") {
  CHECK(parse_children("12 13 999 ") == std::vector<pid_t>{12, 13, 999});
  CHECK(parse_children("12 -1 13 ") == std::vector<pid_t>{12});  // a signal to -1 would go to everybody
  CHECK(parse_children("12 99999999999999999999 ") == std::vector<pid_t>{12});
  CHECK(parse_children("").empty());
  CHECK(parse_resident_pages("1846 901 733 224 0 152 0\n") == 901);
  for (const char* none : {"1846\n", "1846 -5 7\n", "1846 99999999999999999999 7\n", ""})
    CHECK(parse_resident_pages(none) == 0);
}

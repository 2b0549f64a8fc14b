#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "tests/support/folder.h"

using namespace shardrun;

namespace {

std::vector<std::string> from_the_end(const std::string& path, size_t most = 1000000) {
  std::vector<std::string> lines;
  const auto found = base::find_last_line(path, [&](std::string_view line) {
    lines.emplace_back(line);
    return lines.size() == most;
  });
  REQUIRE(found);
  CHECK_EQ(*found, lines.size() == most);
  return lines;
}

}  // namespace

TEST_CASE("lines from the end: whole lines only, the last one first, until somebody has enough") {
  const tests::Folder folder;
  using Lines = std::vector<std::string>;
  CHECK(from_the_end(folder.file("empty", "")) == Lines{});
  CHECK(from_the_end(folder.file("torn", "torn")) == Lines{});
  CHECK(from_the_end(folder.file("one", "one\n")) == Lines{"one"});
  CHECK(from_the_end(folder.file("blank", "\n\na\n\n")) == Lines{"", "a", "", ""});
  CHECK(from_the_end(folder.file("some", "a\nb\nc\ntorn")) == Lines{"c", "b", "a"});
  CHECK(from_the_end(folder / "some", 2) == Lines{"c", "b"});
  CHECK_FALSE(base::find_last_line(folder / "none", [](std::string_view) { return true; }));
}

TEST_CASE("lines from the end: lines that lie across the pieces in which the file is read stay whole") {
  const tests::Folder folder;
  std::vector<std::string> lines;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    lines.push_back(std::to_string(i) + std::string(static_cast<size_t>(i % 301), 'x'));
    if (i % 1000 == 7) lines.back() += std::string(200000, 'y');
    text += lines.back() + "\n";
  }
  for (const size_t torn : {size_t{0}, size_t{1}, size_t{65535}, size_t{65536}, size_t{70000}}) {
    CAPTURE(torn);
    auto found = from_the_end(folder.file("file", text + std::string(torn, 't')));
    std::reverse(found.begin(), found.end());
    CHECK(found == lines);
  }
}

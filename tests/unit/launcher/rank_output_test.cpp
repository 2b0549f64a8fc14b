#include "launcher/view/rank_output.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "launcher/agent/output_limit.h"
#include "launcher/view/follower.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

class RankFiles {
 public:
  RankFiles() { std::filesystem::create_directories(run.attempt(0)); }
  static void append(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::app) << text;
  }
  // Returns the lines that a look finds, as "time node:rank text".
  std::vector<std::string> look(RankOutput& output, bool to_the_end = false) const {
    output.see(find_logs(run, 0).segments.at(3), to_the_end);
    std::vector<std::string> lines;
    for (LogLine line; output.next(line);)
      lines.push_back(line.time.substr(17, 6) + " " + line.node + ":" + std::to_string(line.global_rank) +
                      " " + line.text);
    return lines;
  }

  tests::Folder folder;
  record::RunDir run{folder.path()};
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("rank output: lines of both streams come in the order of their marks, with the time of their end") {
  const RankFiles files;
  const record::RunDir& run = files.run;
  RankFiles::append(run.rank_times(0, 3), "shardrun-times 1 1000 0 n1\n2000 4 0\n3000 4 4\n4000 10 4\n");
  RankFiles::append(run.rank_out(0, 3), "one\nthree\n");
  RankFiles::append(run.rank_err(0, 3), "two\n");
  RankOutput output(run, 0, 3);
  CHECK(files.look(output) == Lines{"02.000 n1:3 one", "03.000 n1:3 two", "04.000 n1:3 three"});
  CHECK(files.look(output).empty());
  // What has no mark yet waits for it, and a line for its end.
  RankFiles::append(run.rank_out(0, 3), "half");
  CHECK(files.look(output).empty());
  RankFiles::append(run.rank_times(0, 3), "5000 14 4\n");
  CHECK(files.look(output).empty());
  RankFiles::append(run.rank_out(0, 3), " line\nrest");
  RankFiles::append(run.rank_times(0, 3), "6000 20 4\n");
  CHECK(files.look(output) == Lines{"06.000 n1:3 half line"});
  CHECK(files.look(output, /*to_the_end=*/true) == Lines{"06.000 n1:3 rest"});
}

TEST_CASE(
    "rank output: segments follow each other, lines go over their edges, and what was taken away is named") {
  const RankFiles files;
  const record::RunDir& run = files.run;
  RankFiles::append(run.rank_times(0, 3), "shardrun-times 1 1000 0 n1\n2000 6 0\n");
  RankFiles::append(run.rank_out(0, 3), "a\nlong");
  RankFiles::append(run.rank_times(0, 3, 1), "shardrun-times 1 3000 6 n1\n3000 6 0\n");
  RankFiles::append(run.rank_out(0, 3, 1), " one\nb");
  RankFiles::append(run.rank_times(0, 3, 12), "shardrun-times 1 9000 3084 n1\n9500 2 0\n");
  RankFiles::append(run.rank_out(0, 3, 12), "c\n");
  RankOutput output(run, 0, 3);
  CHECK(files.look(output) == Lines{"02.000 n1:3 a", "03.000 n1:3 long one", "09.000 n1:3 b",
                                    "09.000 n1:3 shardrun: 3.0 KiB of the output were not kept here",
                                    "09.500 n1:3 c"});
}

TEST_CASE(
    "rank output: torn marks, marks that promise too much and output without marks lose no line that is "
    "there") {
  const RankFiles files;
  const record::RunDir& run = files.run;
  RankFiles::append(run.rank_times(0, 3), "shardrun-times 1 1000 0 n1\n2000 4\n2500 8 0\n2600 900 0\n");
  RankFiles::append(run.rank_out(0, 3), "one\ntwo\n");
  RankFiles::append(run.rank_err(0, 3), "no mark\n");
  RankOutput output(run, 0, 3);
  CHECK(files.look(output, /*to_the_end=*/true) ==
        Lines{"02.500 n1:3 one", "02.500 n1:3 two", "02.600 n1:3 no mark"});
}

TEST_CASE("follower: a run of an earlier version and one of this are shown alike, and one rank alone") {
  const RankFiles files;
  const record::RunDir& run = files.run;
  RankFiles::append(run.node_log(0, "n0"), "1970-01-01T00:00:02.500Z n0:1 in the node log\n");
  RankFiles::append(run.rank_times(0, 3), "shardrun-times 1 1000 0 n1\n2000 4 0\n3000 8 0\n");
  RankFiles::append(run.rank_out(0, 3), "one\ntwo\n");
  const auto shown = [&](const FollowOptions& options) {
    std::string text;
    Follower(run, options, [&](const std::string& piece) { text += piece; }).finish();
    return text;
  };
  CHECK(shown({}) == "[n1:3] one\n[n0:1] in the node log\n[n1:3] two\n");
  CHECK(shown({.only_rank = 3}) == "[n1:3] one\n[n1:3] two\n");
  CHECK(shown({.only_node = "n0"}) == "[n0:1] in the node log\n");
}

TEST_CASE(
    "output limit: ranks share half of what earlier attempts left, and never more than a rank's limit") {
  const RankFiles files;
  spec::LoggingSpec logging;
  logging.rank_limit_mib = 512;
  logging.run_limit_mib = 65536;
  CHECK(rank_output_bytes(logging, files.run, 0, 1) == int64_t{512} << 20);
  CHECK(rank_output_bytes(logging, files.run, 0, 1024) == int64_t{32} << 20);
  logging.run_limit_mib = 4;
  RankFiles::append(files.run.rank_out(0, 0), std::string(1 << 20, 'x'));
  RankFiles::append(files.run.rank_err(0, 0, 2), std::string(1 << 20, 'x'));
  CHECK(rank_output_bytes(logging, files.run, 1, 2) == int64_t{512} << 10);
  CHECK(rank_output_bytes(logging, files.run, 1, 64) == int64_t{256} << 10);
}

TEST_CASE("rank output: lines of many marks are read at once, and no further than there are marks") {
  const RankFiles files;
  const record::RunDir& run = files.run;
  RankFiles::append(run.rank_times(0, 3), "shardrun-times 1 1000 0 n1\n2000 4 0\n3000 8 0\n4000 12 0\n");
  RankFiles::append(run.rank_out(0, 3), "one\ntwo\nsix\nyet");
  RankOutput output(run, 0, 3);
  output.see({0}, /*to_the_end=*/false);
  LogLine line;
  REQUIRE(output.next(line));
  CHECK(line.text == "one");
  std::filesystem::remove(run.rank_out(0, 3));
  REQUIRE(output.next(line));
  CHECK(line.text == "two");
  REQUIRE(output.next(line));
  CHECK(line.text == "six");
  CHECK_FALSE(output.next(line));
  // What had no mark may have been anything then.
  RankFiles::append(run.rank_out(0, 3), "one\ntwo\nsix\nend\n");
  RankFiles::append(run.rank_times(0, 3), "5000 16 0\n");
  REQUIRE(output.next(line));
  CHECK(line.text == "end");
}

TEST_CASE("follower: with one node alone, output of ranks of other nodes is not read") {
  const RankFiles files;
  const record::RunDir& run = files.run;
  RankFiles::append(run.rank_times(0, 0), "shardrun-times 1 1000 0 n1\n2000 4 0\n");
  RankFiles::append(run.rank_out(0, 0), "one\n");
  RankFiles::append(run.rank_times(0, 1), "shardrun-times 1 1000 0 n2\n2000 4 0\n");
  RankFiles::append(run.rank_out(0, 1), "two\n");
  FollowOptions options;
  options.only_node = "n2";
  std::string shown;
  Follower(run, options, [&](const std::string& text) { shown += text; }).finish();
  CHECK(shown == "[n2:1] two\n");
}

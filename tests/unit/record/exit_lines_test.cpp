#include "runtime/record/exit_lines.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/io.h"
#include "tests/support/folder.h"

namespace shardrun::record {
namespace {

RankExit exited(int rank, const std::string& node, int code) {
  RankExit exit;
  exit.global_rank = rank;
  exit.node = node;
  exit.exit_code = code;
  return exit;
}

struct OneAttempt {
  tests::Folder folder;
  RunDir run{folder.path()};
  OneAttempt() { std::filesystem::create_directory(run.attempt(0)); }
};

}  // namespace

TEST_CASE("exit lines: the ranks of a node share a file, and those of all nodes are read together") {
  const OneAttempt attempt;
  REQUIRE(append_rank_exit(attempt.run, 0, exited(0, "n1", 0)));
  REQUIRE(append_rank_exit(attempt.run, 0, exited(1, "n1", 3)));
  REQUIRE(append_rank_exit(attempt.run, 0, exited(2, "n2", 0)));

  const auto exits = read_rank_exits(attempt.run, 0);

  REQUIRE(exits.size() == 3);
  CHECK(exits.at(1).exit_code == 3);
  CHECK(exits.at(2).node == "n2");
  CHECK(std::filesystem::exists(attempt.run.attempt(0) + "/n1.exits"));
  CHECK(std::distance(std::filesystem::directory_iterator(attempt.run.attempt(0)), {}) == 2);
}

TEST_CASE("exit lines: a rank's last words may end with what begins an object") {
  const OneAttempt attempt;
  RankExit exit = exited(1, "n1", 7);
  exit.last_words = "unexpected token {";
  REQUIRE(append_rank_exit(attempt.run, 0, exit));
  exit.global_rank = 2;
  exit.last_words = R"(a line: {"format_version": 1, {)";
  REQUIRE(append_rank_exit(attempt.run, 0, exit));

  const auto exits = read_rank_exits(attempt.run, 0);

  REQUIRE(exits.size() == 2);
  CHECK(exits.at(1).last_words == "unexpected token {");
  CHECK(exits.at(2).last_words == exit.last_words);
}

TEST_CASE("exit lines: lines of many processes do not mix") {
  const OneAttempt attempt;
  constexpr int kRanks = 24;
  RankExit exit = exited(0, "n1", 1);
  exit.last_words = std::string(400, 'x');
  for (exit.global_rank = 0; exit.global_rank < kRanks; ++exit.global_rank)
    if (::fork() == 0) ::_exit(append_rank_exit(attempt.run, 0, exit) ? 0 : 1);
  for (int status = 0; ::wait(&status) > 0;) CHECK(status == 0);

  CHECK(read_rank_exits(attempt.run, 0).size() == kRanks);
}

TEST_CASE(
    "exit lines: a line that was cut off is passed over, and so the one behind it, with or without a "
    "newline, is read") {
  const std::string whole = to_line(exited(4, "n1", 0));
  const std::string torn = to_line(exited(5, "n1", 0)).substr(0, whole.size() / 2);
  RankExit failed = exited(6, "n1", 1);
  failed.last_words = "{\"global_rank\":7}";
  const std::string tricky = to_line(failed);

  CHECK(parse_rank_exits(whole + torn).size() == 1);
  CHECK(parse_rank_exits(torn + whole).count(4) == 1);
  CHECK(parse_rank_exits(torn + "\n" + whole).count(4) == 1);
  const auto exits = parse_rank_exits(torn + tricky);
  REQUIRE(exits.size() == 1);
  CHECK(exits.at(6).last_words == "{\"global_rank\":7}");
  for (size_t bytes = 0; bytes + 1 < tricky.size(); ++bytes)
    CHECK(parse_rank_exits(tricky.substr(0, bytes)).empty());
}

TEST_CASE("exit lines: where a rank tells twice, its later word counts") {
  const auto exits = parse_rank_exits(to_line(exited(0, "n1", 4)) + to_line(exited(0, "n1", 0)));

  REQUIRE(exits.size() == 1);
  CHECK(exits.at(0).exit_code == 0);
}

TEST_CASE("exit lines: runs from before, with a file for each rank, are read") {
  const OneAttempt attempt;
  std::ofstream(attempt.run.attempt(0) + "/rank_3.exit.json")
      << "{\n  \"ended\": 1.5,\n  \"exit_code\": 3,\n  \"format_version\": 1,\n  \"global_rank\": 3,\n"
         "  \"last_words\": \"no luck\",\n  \"node\": \"n0\",\n  \"out_of_memory\": null,\n"
         "  \"peak_memory_bytes\": 4096,\n  \"peer_lost\": false,\n  \"signal\": null,\n"
         "  \"stopped_on_request\": false\n}\n";

  const auto exits = read_rank_exits(attempt.run, 0);

  REQUIRE(exits.count(3) == 1);
  CHECK(exits.at(3).last_words == "no luck");
}

TEST_CASE("exit lines: a folder that is not there has none, and takes none") {
  const tests::Folder folder;

  CHECK(read_rank_exits({folder.path()}, 0).empty());
  CHECK_FALSE(append_rank_exit({folder.path()}, 0, exited(0, "n1", 0)));
}

}  // namespace shardrun::record

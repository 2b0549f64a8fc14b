// shardrun-rank with command programs: exit codes, signals, environment and logs as they arrive on disk.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/contract/exit_code.h"
#include "tests/process/schedule/job_harness.h"

using namespace shardrun::testing;

namespace {

LocalJobOptions shell(const std::string& script, int ranks = 1) {
  LocalJobOptions options;
  options.ranks = ranks;
  options.command = {"sh", "-c", script};
  return options;
}

std::string shell_number(int number) {
  return std::to_string(number);
}

bool is_time(const std::string& text) {
  const std::string shape = "0000-00-00T00:00:00.000Z";
  if (text.size() != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (shape[i] == '0' ? !digit : text[i] != shape[i]) return false;
  }
  return true;
}

// Returns the texts of merged lines, by rank; a line that does not look like one is under -1.
std::map<int, std::vector<std::string>> node_lines(const std::string& log) {
  std::map<int, std::vector<std::string>> lines;
  std::istringstream stream(log);
  for (std::string line; std::getline(stream, line);) {
    const size_t place = line.find(' '), colon = line.find(':', place + 1), text = line.find(' ', place + 1);
    const bool whole = place != std::string::npos && colon < text && text != std::string::npos &&
                       is_time(line.substr(0, place));
    lines[whole ? std::atoi(line.c_str() + colon + 1) : -1].push_back(whole ? line.substr(text + 1) : line);
  }
  return lines;
}

std::vector<std::string> without_notes(std::vector<std::string> lines) {
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("shardrun: "); });
  return lines;
}

}  // namespace

TEST_CASE("rank: a program's exit code is named, and 93 is passed on") {
  for (const auto& [code, expected] :
       {std::pair(1, 1), std::pair(3, 1), std::pair(255, 1), std::pair(93, 93)}) {
    const Ended run(shell("echo went wrong >&2; exit " + shell_number(code)));

    CHECK(run.exit_code == expected);
    CHECK(run.job.record().attempts[0].first_cause->exit_code == code);
    CHECK(run.job.record().verdict.find("ended with exit code " + shell_number(code) + ": went wrong") !=
          std::string::npos);
  }
}

TEST_CASE("rank: each signal that ends a program is named and seen by the scheduler") {
  for (int signal : {SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGUSR1, SIGSEGV,
                     SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGXCPU, SIGXFSZ}) {
    const Ended run(shell("kill -" + shell_number(signal) + " $$; sleep 5"));

    CHECK(run.exit_code == 1);
    CHECK(run.job.record().attempts[0].first_cause->signal == signal);
    const std::string words =
        "was killed by " + shardrun::contract::signal_name(signal) + " (signal " + shell_number(signal) + ")";
    CHECK_MESSAGE(run.job.record().verdict.find(words) != std::string::npos, run.job.record().verdict);
  }
}

TEST_CASE("rank: a program that cannot be started ends like in a shell and the log says why") {
  LocalJobOptions options;
  options.command = {"no-such-program-here"};
  {
    const Ended run(options);
    CHECK(run.exit_code == 1);
    CHECK(run.job.record().attempts[0].first_cause->exit_code == 127);
    CHECK(run.job.record().verdict.find("no-such-program-here: not found in PATH") != std::string::npos);
  }
  options.command = {"/etc/passwd"};
  {
    const Ended run(options);
    CHECK(run.job.record().attempts[0].first_cause->exit_code == 126);
    CHECK(run.job.node_log().find("/etc/passwd: cannot be run: Permission denied") != std::string::npos);
  }
}

TEST_CASE("rank: a program gets torchrun's names and its own of shardrun") {
  LocalJobOptions options = shell(
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK "
      "$ROLE_WORLD_SIZE "
      "$NODE_RANK $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_USE_AGENT_STORE $GRAD_ACCUM_USTEPS "
      "$SHARDRUN_GRADIENT_ACCUMULATION $GIVEN $SHARDRUN_GLOBAL_BATCH; "
      "[ \"$MASTER_ADDR\" = 127.0.0.1 ] && [ \"$MASTER_PORT\" -ge 1024 ]",
      2);
  options.more = "[environment]\nGIVEN = \"a value\"\n";

  const Ended run(options);

  CHECK(run.exit_code == 0);
  CHECK(run.job.file("attempt_0/rank_1.out") == "1 1 2 2 0 1 1 2 0 0 False 2 2 a value 4\n");
}

TEST_CASE("rank: a reference in [environment] that leads nowhere is told without starting the program") {
  LocalJobOptions options = shell("echo started");
  options.more = "[environment]\nTOKEN = { from_env = \"SURELY_NOT_SET\" }\n";

  const Ended run(options);

  CHECK(run.exit_code == 1);
  CHECK(run.job.record().verdict.find("SURELY_NOT_SET") != std::string::npos);
  CHECK(run.job.file("attempt_0/rank_0.out") == "");
}

TEST_CASE("rank: arguments reach the program as they are, through no shell") {
  LocalJobOptions options;
  options.command = {"printf", "%s|", "a b", "$HOME", "`id`", "", "\"' *"};

  const Ended run(options);

  CHECK(run.job.file("attempt_0/rank_0.out") == "a b|$HOME|`id`||\"' *|");
}

TEST_CASE("rank: 100000 lines of 4 ranks arrive whole, in each rank's order, in its file and in the logs") {
  constexpr int kLines = 25000;
  const Ended run(
      shell("awk -v r=$RANK 'BEGIN { for (i = 0; i < 25000; ++i) printf(\"%d:%d:%*s\\n\", r, i, i % 97, "
            "\"x\") }'",
            4));

  REQUIRE(run.exit_code == 0);
  auto lines = node_lines(run.job.node_log());
  CHECK(lines[-1].empty());
  for (int rank = 0; rank < 4; ++rank) {
    const auto texts = without_notes(lines[rank]);
    REQUIRE(texts.size() == kLines);
    std::string joined;
    for (int i = 0; i < kLines; ++i) {
      const std::string start = shell_number(rank) + ":" + shell_number(i) + ":";
      if (!texts[static_cast<size_t>(i)].starts_with(start)) FAIL(texts[static_cast<size_t>(i)]);
      joined += texts[static_cast<size_t>(i)] + "\n";
    }
    CHECK(joined == run.job.file("attempt_0/rank_" + shell_number(rank) + ".out"));
  }
}

TEST_CASE("rank: control bytes stay as they are in the rank's file and are harmless in the logs") {
  const Ended run(shell("printf '\\033[31mred\\033[0m\\n2026-01-01T00:00:00.000Z n9:7 forged\\n'"));

  CHECK(run.job.file("attempt_0/rank_0.out") == "\033[31mred\033[0m\n2026-01-01T00:00:00.000Z n9:7 forged\n");
  const auto lines = node_lines(run.job.node_log());
  REQUIRE(lines.count(0) == 1);
  CHECK(without_notes(lines.at(0)) ==
        std::vector<std::string>{"\\x1b[31mred\\x1b[0m", "2026-01-01T00:00:00.000Z n9:7 forged"});
  CHECK(lines.count(7) == 0);
}

TEST_CASE("rank: a last line without a newline and what a dying program wrote are kept") {
  const Ended run(shell("printf 'no newline'; printf 'last words' >&2; kill -KILL $$"));

  CHECK(run.job.file("attempt_0/rank_0.out") == "no newline");
  CHECK(run.job.node_log().find(":0 last words\n") != std::string::npos);
}

TEST_CASE("rank: a log that may not grow loses lines, is told so, and the job goes on") {
  LocalJobOptions options =
      shell("yes 0123456789012345678901234567890123456789 | head -n 20000; echo end >&2", 2);
  options.file_size_limit_kib = 64;

  const Ended run(options);

  CHECK(run.exit_code == 0);
  CHECK(run.job.file("attempt_0/rank_1.out").size() == 64 * 1024);
  CHECK(run.job.launcher_output().find("its output lost 18") != std::string::npos);
  CHECK(run.job.launcher_output().find(" lines (") != std::string::npos);
  CHECK(run.job.launcher_output().find("): File too large") != std::string::npos);
  CHECK(run.job.file("attempt_0/rank_0.err") == "end\n");
}

TEST_CASE("rank: what a rank writes is stored once, beside the times of its pieces") {
  const Ended run(shell("awk 'BEGIN { for (i = 0; i < 100000; ++i) print \"a line of output\" }'"));

  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run.job.run_directory() + "/attempt_0"))
    if (entry.path().filename().string().find(".json") == std::string::npos)
      bytes += static_cast<int64_t>(entry.file_size());

  REQUIRE(run.job.file("attempt_0/rank_0.out").size() == 1'700'000);
  CHECK(bytes < 1'800'000);
}

TEST_CASE("rank: output above its limit is cut to the first and the newest of it, counted and named") {
  LocalJobOptions options =
      shell("awk 'BEGIN { for (i = 0; i < 400000; ++i) printf(\"line %6d\\n\", i) }'; echo last >&2; exit 3");
  options.more = "[logging]\nrank_limit_mib = 1\n";
  const Ended run(options);

  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run.job.run_directory() + "/attempt_0"))
    if (entry.path().filename().string().starts_with("rank_0."))
      bytes += static_cast<int64_t>(entry.file_size());
  CHECK(bytes <= (1 << 20) + (64 << 10));
  CHECK(bytes >= (3 << 18) - (64 << 10));
  const std::string log = run.job.node_log();
  CHECK(log.find(" line      0\n") != std::string::npos);
  CHECK(log.find(" line 399999\n") != std::string::npos);
  CHECK(log.find(" MiB of the output were not kept here\n") != std::string::npos);
  CHECK(log.find(" line 200000\n") == std::string::npos);
  CHECK(run.job.record().verdict.find("last") != std::string::npos);
  CHECK(run.job.launcher_output().find("its output was cut to 1.0 MiB: ") != std::string::npos);
  CHECK(run.job.file("events.jsonl").find("rank 0's output was cut to 1.0 MiB: ") != std::string::npos);
}

TEST_CASE("rank: a full log disk loses lines and never the job") {
  std::string folder = "/tmp/full_disk.XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m") != 0) {
    MESSAGE("skipped: mounting a tmpfs needs root");
    std::filesystem::remove(folder);
    return;
  }
  {
    LocalJobOptions options = shell("yes 0123456789 | head -c 3000000; echo done > ../proof", 2);
    options.run_directory = folder + "/run";
    options.command.back() = "yes 0123456789 | head -c 3000000; echo done > proof";
    const Ended run(options);

    CHECK(run.exit_code == 0);
    CHECK(std::filesystem::exists(run.job.folder() + "/proof"));
    CHECK(run.job.launcher_output().find("): No space left on device") != std::string::npos);
  }
  ::umount(folder.c_str());
  std::filesystem::remove(folder);
}

TEST_CASE("rank: a rank whose account waits for its disk is not missed meanwhile, nor are others") {
  // The account's file is a pipe that is full: its writer waits as for a file server that does not answer.
  LocalJobOptions options = shell(
      "if [ $RANK = 1 ]; then until [ -e full ]; do sleep 0.05; done; sleep 2; exit 0; fi; "
      "accounts=$SHARDRUN_RUN_DIR/attempt_0/$(uname -n).exits; "
      "mkfifo $accounts; exec 3<>$accounts; head -c 65536 /dev/zero >&3; touch full; sleep 8; "
      "head -c 65536 <&3 >zeros; head -n 1 <&3 >account; mv account $accounts",
      2);
  options.more = "[fault_tolerance]\nnode_timeout = \"2\"\n";

  const Ended run(options);

  CHECK(run.exit_code == 0);
  CHECK_MESSAGE(run.job.record().verdict == "all 2 ranks ended well", run.job.record().verdict);
  CHECK(run.job.exits().size() == 2);
}

TEST_CASE("rank: signals reach the program and the processes that it started") {
  LocalJob job(
      shell("trap 'echo outer' USR1; trap 'exit 75' TERM; "
            "sh -c 'trap \"echo inner\" USR1; echo ready; while :; do sleep 0.02; done' & "
            "while :; do sleep 0.02; done"));
  REQUIRE(job.wait_for("attempt_0/rank_0.out", "ready"));

  ::kill(job.find(0, /*program=*/false), SIGUSR1);
  CHECK(job.wait_for("attempt_0/rank_0.out", "inner"));
  CHECK(job.wait_for("attempt_0/rank_0.out", "outer"));

  job.signal(SIGTERM);
  CHECK(job.wait() == 75);
}

TEST_CASE(
    "rank: a grandchild that holds the pipe open delays the end of the job by no more than the drain time") {
  const auto start = std::chrono::steady_clock::now();
  const Ended run(shell("setsid sleep 300 & exit 0"));

  CHECK(run.exit_code == 0);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
  CHECK(run.job.processes().empty());
}

TEST_CASE("rank: a scheduler that signals the program before its supervisor has stopped it all the same") {
  const Ended run(shell("(kill -TERM $$; sleep 0.02; kill -TERM $PPID) & wait; sleep 5"));

  const auto exits = run.job.exits();

  REQUIRE(exits.count(0) == 1);
  const auto& exit = exits.at(0);
  CHECK(exit.signal == SIGTERM);
  CHECK(exit.stopped_on_request);
}

TEST_CASE("rank: the exit file tells the peak memory of the program and its supervisor's node") {
  const Ended run(shell("exit 0"));

  const auto exits = run.job.exits();

  REQUIRE(exits.count(0) == 1);
  const auto& exit = exits.at(0);
  CHECK(exit.exit_code == 0);
  CHECK(exit.peak_memory_bytes > 100 * 1024);
  CHECK(run.job.record().peak_memory_bytes.at(0) == exit.peak_memory_bytes);
}

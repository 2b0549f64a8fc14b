#include <doctest/doctest.h>

#include <fstream>

#include <fmt/format.h>

#include "launcher/schedule/slurm/srun_messages.h"
#include "launcher/submit/script.h"
#include "launcher/verbs/completion.h"
#include "launcher/view/follower.h"
#include "launcher/view/log_lines.h"
#include "launcher/view/log_merge.h"
#include "launcher/view/loss_plot.h"
#include "launcher/view/metrics_log.h"
#include "launcher/view/progress.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {
LogLine line_of(const std::string& text) {
  LogLine line;
  REQUIRE(parse_log_line(text, line));
  return line;
}
}  // namespace

TEST_CASE("log lines: node, rank and text are taken apart; other shapes are not") {
  const LogLine line = line_of("2026-01-31T12:00:00.123Z n1:12 a b: c");
  CHECK_EQ(line.node, "n1");
  CHECK_EQ(line.global_rank, 12);
  CHECK_EQ(line.text, "a b: c");
  LogLine other;
  CHECK_FALSE(parse_log_line("", other));
  CHECK_FALSE(parse_log_line("2026-01-31T12:00:00.123Z n1 text", other));
  CHECK_FALSE(parse_log_line("2026-01-31T12:00:00.123Z n1:x text", other));
}

TEST_CASE("log lines: the same line of many ranks becomes one, in time order; repetition of one rank stays") {
  const auto groups = collapse(
      {line_of("2026-01-31T12:00:00.200Z n2:2 lost"), line_of("2026-01-31T12:00:00.100Z n1:0 lost"),
       line_of("2026-01-31T12:00:00.300Z n2:3 lost"), line_of("2026-01-31T12:00:00.050Z n1:1 hi"),
       line_of("2026-01-31T12:00:00.400Z n1:0 lost"), line_of("2026-01-31T12:00:09.000Z n1:1 lost")});
  REQUIRE_EQ(groups.size(), 4);
  CHECK_EQ(render(groups[0], false), "[n1:1] hi");
  CHECK_EQ(render(groups[1], false), "[3 ranks] lost");
  CHECK_EQ(render(groups[2], false), "[n1:0] lost");
  CHECK_EQ(render(groups[3], false), "[n1:1] lost");
}

TEST_CASE("log lines: copies that come later join the group that has begun, which stays first") {
  const auto begun = collapse({line_of("2026-01-31T12:00:00.100Z n1:0 lost")});
  const auto groups = collapse(
      {line_of("2026-01-31T12:00:00.300Z n2:2 lost"), line_of("2026-01-31T12:00:00.050Z n2:3 early")}, begun);
  REQUIRE_EQ(groups.size(), 2);
  CHECK_EQ(render(groups[0], false), "[2 ranks] lost");
  CHECK_EQ(render(groups[1], false), "[n2:3] early");
}

TEST_CASE(
    "follower: copies of a line that another look finds are folded, and nothing is held back for long") {
  const tests::Folder folder;
  const record::RunDir run{folder.path()};
  std::filesystem::create_directories(run.attempt(0));
  std::string shown;
  Follower follower(run, {}, [&](const std::string& text) { shown += text; });
  const auto append = [&](const std::string& node, const std::string& line) {
    std::ofstream(run.node_log(0, node), std::ios::app) << line << "\n";
  };
  append("n1", "2026-01-31T12:00:00.100Z n1:0 lost");
  follower.poll();
  append("n2", "2026-01-31T12:00:00.300Z n2:2 lost");
  append("n2", "2026-01-31T12:00:00.310Z n2:2 gone");
  follower.poll();
  CHECK_EQ(shown, "[2 ranks] lost\n");
  follower.poll();
  CHECK_EQ(shown, "[2 ranks] lost\n[n2:2] gone\n");
  append("n1", "2026-01-31T12:00:00.400Z n1:0 end");
  follower.finish();
  CHECK_EQ(shown, "[2 ranks] lost\n[n2:2] gone\n[n1:0] end\n");
}

TEST_CASE(
    "log merge: lines of several files come in time order, in batches, and what comes later at the next "
    "look") {
  const tests::Folder folder;
  std::string one, two;
  const auto time_of = [](int i) {
    return fmt::format("2026-01-31T12:{:02}:{:02}.{:03}Z", i / 60000, i / 1000 % 60, i % 1000);
  };
  const std::string padding(200, 'p');
  constexpr int kLines = 40000;
  for (int i = 0; i < kLines; ++i)
    (i % 3 == 0 ? one : two) +=
        fmt::format("{} n{}:{} {} {}\n", time_of(i), i % 3 == 0 ? 1 : 2, i % 3, i, padding);
  const std::vector<std::string> paths = {folder.file("a.log", one + "2026-01-31T13:00:00.000Z n1:0 half"),
                                          folder.file("b.log", two)};
  LogMerge merge;
  const auto all = [](const LogLine&) { return true; };
  merge.begin(paths, /*to_the_end=*/false);
  int next = 0;
  size_t batches = 0;
  for (auto lines = merge.next(all); !lines.empty(); lines = merge.next(all), ++batches) {
    int64_t bytes = 0;
    for (const LogLine& line : lines) {
      if (!line.text.starts_with(std::to_string(next) + " ")) FAIL("line ", next, " is ", line.text);
      ++next;
      bytes += static_cast<int64_t>(line.text.size());
    }
    CHECK_LT(bytes, LogMerge::kBatchBytes + 10000);
  }
  CHECK_EQ(next, kLines);
  CHECK_GT(batches, 3);
  std::ofstream(paths[0], std::ios::app) << " whole\n2026-01-31T13:00:01.000Z n1:7 left out\nrest";
  merge.begin(paths, /*to_the_end=*/true);
  const auto rest = merge.next([](const LogLine& line) { return line.global_rank != 7; });
  REQUIRE_EQ(rest.size(), 1);
  CHECK_EQ(rest[0].text, "half whole");
}

TEST_CASE("log lines: control bytes of a program cannot steer a terminal") {
  LogLine line;
  REQUIRE(parse_log_line("2026-01-31T12:00:00.100Z n\x1b:0 a\x1b[2Jb\tc\r\xc2\x9b", line));

  CHECK_EQ(render({line, {0}}, false), "[n\\x1b:0] a\\x1b[2Jb\tc\\x0d\\xc2\\x9b");
}

TEST_CASE("metrics: restarted steps replace what came after the checkpoint") {
  TrainingCurve curve;
  add_metrics(
      "{\"event\":\"first_barrier\",\"seconds\":0.1}\n{\"step\":1,\"loss\":3.0}\n{\"step\":2,\"loss\":2.0}"
      "\nnot json\n",
      curve);
  add_metrics(
      "{\"step\":2,\"loss\":2.5,\"tokens_per_second\":10,\"step_seconds\":0.5}\n"
      "{\"event\":\"validation\",\"step\":2,\"loss\":2.6,\"unigram_entropy\":3.1,\"attempt\":1}\n"
      "{\"step\":3,\"loss\":9.0,\"attempt\":0}\n",
      curve);
  REQUIRE_EQ(curve.steps.size(), 2);
  CHECK_EQ(curve.steps[1].loss, 2.5);
  CHECK_EQ(curve.validations.at(0).loss, 2.6);
  CHECK_EQ(curve.unigram_entropy, 3.1);
}

TEST_CASE("progress: the bar fits its width and shows step, loss, speed and time left") {
  TrainingCurve curve;
  add_metrics("{\"step\":50,\"loss\":2.5,\"tokens_per_second\":6812,\"step_seconds\":0.5}\n", curve);
  const std::string bar = render_progress(curve, 100, 80);
  CHECK_NE(bar.find("50/100  loss 2.5000  6,812 tokens/s  eta 00:25"), std::string::npos);
  CHECK_EQ(render_progress(curve, 100, 80).find('\n'), std::string::npos);
  CHECK_LE(render_progress(curve, 100, 20).size(), 20);
  CHECK_EQ(render_progress({}, 100, 80), "");
}

TEST_CASE("numbers: thousands, times and bytes read well") {
  CHECK_EQ(with_thousands(1234567), "1,234,567");
  CHECK_EQ(with_thousands(-123), "-123");
  CHECK_EQ(clock_time(3700), "1:01:40");
  CHECK_EQ(bytes_text(1536), "1.5 KiB");
  CHECK_EQ(sparkline({1, 2, 3, 4}, 4), "▁▃▆█");
}

TEST_CASE("loss plot: a curve becomes an SVG with its title escaped; too few points become nothing") {
  TrainingCurve curve;
  add_metrics("{\"step\":1,\"loss\":3.0}\n", curve);
  CHECK_EQ(loss_plot_svg(curve, "x", /*in_nats=*/true), "");
  add_metrics("{\"step\":2,\"loss\":2.0}\n{\"step\":3,\"loss\":1.5}\n", curve);
  const std::string svg = loss_plot_svg(curve, "a<b&\"c\"", /*in_nats=*/true);
  CHECK_EQ(svg.rfind("<svg ", 0), 0);
  CHECK_NE(svg.find("a&lt;b&amp;&quot;c&quot;"), std::string::npos);
  CHECK_EQ(svg.find("nan"), std::string::npos);
  CHECK_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  // What the loss of a command's program is, nobody here knows.
  CHECK_NE(svg.find("nats per token"), std::string::npos);
  CHECK_EQ(loss_plot_svg(curve, "x", /*in_nats=*/false).find("nats"), std::string::npos);
}

TEST_CASE("loss plot: small losses have marks that differ, and the one step that was far off is drawn") {
  TrainingCurve curve;
  for (int step = 1; step <= 100'000; ++step)
    curve.steps.push_back({step, step == 54'321 ? 9e-4 : 4e-4 - 1e-9 * step});

  const std::string svg = loss_plot_svg(curve, "x", /*in_nats=*/true);

  for (const char* mark : {">0.0004<", ">0.0006<", ">0.0008<"}) CHECK_NE(svg.find(mark), std::string::npos);
  CHECK_EQ(svg.find(">-0"), std::string::npos);
  const size_t begin = svg.find("points=\"") + 8, end = svg.find('"', begin);
  const std::string points = svg.substr(begin, end - begin);
  double highest = 1e9;  // y grows downwards
  for (size_t at = 0; (at = points.find(',', at)) != std::string::npos; ++at)
    highest = std::min(highest, std::stod(points.substr(at + 1)));
  CHECK_LT(highest, 60.0);
  CHECK_LT(points.size(), 60'000);
}

TEST_CASE("sbatch script: the allocation's options, and one line that no value of the spec can change") {
  spec::JobSpec spec;
  spec.name = "x";
  spec.resources.nodes = 2;
  spec.resources.time_limit = std::chrono::seconds(90061);
  spec.fault_tolerance.requeue = true;
  const auto script = sbatch_script(spec, {"/opt/shardrun", "/data/runs/x", "/home/me"});
  REQUIRE(script);
  CHECK_NE(script->find("#SBATCH --nodes=2\n"), std::string::npos);
  CHECK_NE(script->find("#SBATCH --time=1-01:01:01\n"), std::string::npos);
  CHECK_NE(script->find("#SBATCH --requeue\n"), std::string::npos);
  CHECK_NE(script->find("#SBATCH --signal=B:TERM@60\n"), std::string::npos);
  CHECK_NE(
      script->find("\nexec '/opt/shardrun' run --quiet --run-directory '/data/runs/x'/\"$SLURM_JOB_ID\"\n"),
      std::string::npos);
  spec.fault_tolerance.conductor_timeout = std::chrono::seconds(60);
  const auto lasting = sbatch_script(spec, {"/opt/shardrun", "/data/runs/x", "/home/me"});
  REQUIRE(lasting);
  CHECK_NE(lasting->find("\n  '/opt/shardrun' run --quiet \"$way\" '/data/runs/x'/\"$SLURM_JOB_ID\" &\n"),
           std::string::npos);
  for (const char* path : {"/a%j", "/a\n#SBATCH --wrap=id", "/a\"b", "/a\\b", "/a\tb", "/\xff"}) {
    CAPTURE(path);
    CHECK_FALSE(sbatch_script(spec, {"/opt/shardrun", path, "/home/me"}));
  }
  CHECK_EQ(shell_quoted("a'b"), "'a'\\''b'");
}

TEST_CASE("sbatch script: folders with blanks, umlauts and what a shell would read are one word of Slurm's") {
  spec::JobSpec spec;
  spec.name = "x";
  spec.fault_tolerance.conductor_timeout = std::chrono::seconds(0);
  const auto script = sbatch_script(spec, {"/opt/shardrun", "/data/Müller's runs/x", "/a b #c $(id)"});
  REQUIRE(script);
  CHECK_NE(script->find("#SBATCH --chdir=\"/a b #c $(id)\"\n"), std::string::npos);
  CHECK_NE(script->find("#SBATCH --output=\"/data/Müller's runs/x\"/%j/slurm.out\n"), std::string::npos);
  CHECK_NE(script->find(" --run-directory '/data/Müller'\\''s runs/x'/\"$SLURM_JOB_ID\"\n"),
           std::string::npos);
  const auto plain = sbatch_script(spec, {"/opt/shardrun", "/data/x", "/home/me"});
  REQUIRE(plain);
  CHECK_NE(plain->find("#SBATCH --chdir=/home/me\n"), std::string::npos);
}

TEST_CASE("srun's words: ranks, nodes, signals and exit codes are read; the rest is not") {
  const auto killed = parse_srun_line("srun: error: n2: task 1: Killed", 4);
  REQUIRE(killed);
  CHECK_EQ(killed->exits.at(0).global_rank, 1);
  CHECK_EQ(killed->exits.at(0).signal, 9);
  CHECK_EQ(killed->exits.at(0).node, "n2");
  const auto unreachable = parse_srun_line(
      "srun: error: Task launch for StepId=2.0 failed on node n5: Communication connection failure", 4);
  REQUIRE(unreachable);
  CHECK_EQ(unreachable->unreachable, "n5");
  CHECK(unreachable->exits.empty());
  CHECK_FALSE(parse_srun_line("srun: error: Task launch for StepId=2.0 failed: Socket timed out", 4));
  const auto exited = parse_srun_line("srun: error: n1: tasks 0,2-3: Exited with exit code 7", 4);
  REQUIRE(exited);
  CHECK_EQ(exited->exits.size(), 3);
  CHECK_EQ(exited->exits.at(2).exit_code, 7);
  CHECK_EQ(
      parse_srun_line("srun: error: n1: task 0: Segmentation fault (core dumped)", 4)->exits.at(0).signal,
      11);
  CHECK(parse_srun_line("srun: launch/slurm: _step_signal: Terminating StepId=1.0", 4)->step_aborted);
  CHECK(parse_srun_line("srun: Job step aborted: Waiting up to 7 seconds for job step to finish.", 4)
            ->step_aborted);
  const auto cancelled =
      parse_srun_line("slurmstepd-n1: error: *** STEP 3.0 ON n1 CANCELLED AT 2026-11-23T14:35:38 ***", 4);
  REQUIRE(cancelled);
  CHECK(cancelled->step_cancelled);
  CHECK_FALSE(cancelled->step_aborted);  // it may be the signal that asks the ranks to save
  CHECK(
      parse_srun_line("slurmstepd-n1: error: *** STEP 3.0 ON n1 CANCELLED AT 2026-11-23T14:35:38 DUE TO NODE "
                      "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
                      4)
          ->step_aborted);
  const std::string signalled =
      "[2026-11-23T15:31:17.141] error: *** STEP 19.0 ON n1 CANCELLED AT 2026-11-23T15:31:17 DUE to SIGNAL ";
  CHECK(parse_srun_line(signalled + "Killed ***", 4)->step_cancelled);
  CHECK(parse_srun_line(signalled + "Terminated ***", 4)->step_cancelled);
  CHECK_FALSE(parse_srun_line(signalled + "User defined signal 1 ***", 4));
  CHECK_FALSE(parse_srun_line("srun: error: Unable to create step", 4));
  CHECK_FALSE(parse_srun_line("loss 2.5", 4));
  CHECK(parse_task_list("0-99999999", 4).empty());
  CHECK(parse_task_list("3-1", 4).empty());
}

TEST_CASE("completion: every verb and option is offered") {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell, {{"run", "Run it's job", {"--set"}}});
    CHECK_NE(script.find("run"), std::string::npos);
    CHECK_NE(script.find(std::string(shell) == "fish" ? "-l set" : "--set"), std::string::npos);
  }
}

#include "launcher/view/report_page.h"
#include "launcher/view/report_series.h"
#include "tests/support/text.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

using namespace shardrun;
using namespace shardrun::launcher;
using tests::has;

namespace {

ReportRun run_named(const std::string& name) {
  ReportRun run;
  run.record.name = name;
  run.record.id = "7";
  run.record.status = record::RunStatus::kCompleted;
  run.record.verdict = "all 2 ranks ended well";
  run.record.world_size = 2;
  run.record.nodes = {"n1"};
  run.directory = "/runs/" + name + "/7";
  run.spec = "name = \"" + name + "\"\n[optimizer]\nsteps = 20\n";
  add_metrics(R"({"step":1,"loss":5.5,"tokens_per_second":100,"attempt":0})"
              "\n"
              R"({"step":2,"loss":4.5,"tokens_per_second":110,"attempt":0})"
              "\n",
              run.curve);
  return run;
}

}  // namespace

TEST_CASE("report: figures that a step does not have or that are not finite are left out of a curve") {
  TrainingCurve curve;
  add_metrics(R"({"step":1,"loss":5.0,"grad_norm":2.0})"
              "\n"
              R"({"step":2,"loss":4.0})"
              "\n"
              R"({"step":3,"loss":3.0,"grad_norm":null})"
              "\n"
              R"({"step":4,"loss":2.0,"grad_norm":1.5})"
              "\n",
              curve);
  curve.steps.push_back({5, std::numeric_limits<double>::infinity()});

  CHECK(series_of(curve.steps, &StepPoint::grad_norm).x == std::vector<double>{1, 4});
  CHECK(series_of(curve.steps, &StepPoint::grad_norm).y == std::vector<double>{2.0, 1.5});
  CHECK(series_of(curve.steps, &StepPoint::loss).x == std::vector<double>{1, 2, 3, 4});
}

TEST_CASE("report: a thinned curve keeps its ends and its only spike") {
  Series series;
  for (int step = 1; step <= 100000; ++step) {
    series.x.push_back(step);
    series.y.push_back(step == 54321 ? 99.0 : 1.0 + 1.0 / step);
  }

  const Series few = thinned(series, 400);

  CHECK(few.x.size() <= 400);
  CHECK(few.x.size() >= 200);
  CHECK(few.x.front() == 1);
  CHECK(few.x.back() == 100000);
  CHECK(std::is_sorted(few.x.begin(), few.x.end()));
  const auto spike = std::max_element(few.y.begin(), few.y.end());
  CHECK(*spike == 99.0);
  CHECK(few.x[spike - few.y.begin()] == 54321);
}

TEST_CASE("report: a short curve is kept whole") {
  const Series series{{1, 2, 3, 4}, {4, 3, 2, 1}};

  CHECK(thinned(series, 400).x == series.x);
}

TEST_CASE("report: keys of a job carry their table, and a list over several lines is one value") {
  const auto entries = spec_entries(
      "name = \"a\"  \n# a comment\n[program]\ncommand = [\n  \"python3\",\n  "
      "\"x=1.py\",\n]\n\n[optimizer]\nsteps=5\n");

  REQUIRE(entries.size() == 3);
  CHECK(entries[0].key == "name");
  CHECK(entries[0].value == "\"a\"");
  CHECK(entries[1].key == "program.command");
  CHECK(entries[1].value == "[ \"python3\", \"x=1.py\", ]");
  CHECK(entries[2].key == "optimizer.steps");
  CHECK(entries[2].value == "5");
}

TEST_CASE("report: a text that is no TOML harms nothing") {
  CHECK(spec_entries("").empty());
  CHECK(spec_entries("\n\n[\n]]]\n= =\n[x").size() == 1);
}

TEST_CASE("report: the page of one run has its verdict, its job and its curves") {
  const std::string page = report_page({run_named("tiny")}, "Written today");

  CHECK(has(page, "all 2 ranks ended well"));
  CHECK(has(page, "steps = 20"));
  CHECK(has(page, R"("x":[1,2],"y":[5.5,4.5])"));
  CHECK(has(page, "id=\"chart0\""));
  CHECK(has(page, "id=\"heat0\""));
}

TEST_CASE("report: of each rank it is told how long it computed and waited, where its exit file says so") {
  ReportRun run = run_named("tiny");
  record::RankExit exit;
  exit.global_rank = 1;
  run.exits = {exit};
  CHECK_FALSE(has(report_page({run}, ""), "waiting for other ranks"));

  run.exits[0].steps_seconds = 10.0;
  run.exits[0].waiting_seconds = 2.5;
  const std::string page = report_page({run}, "");

  CHECK(has(page, R"({"title":"its own time in steps","unit":"s","values":[null,7.5]})"));
  CHECK(has(page, R"({"title":"waiting for other ranks in steps","unit":"%","values":[null,25]})"));
}

TEST_CASE("report: of a command that tells only its losses, no speed, memory, batch or unit is invented") {
  ReportRun run = run_named("program");
  run.has_batch = run.in_nats = false;
  run.record.metrics.emplace();
  run.record.metrics->steps = 2;
  run.record.metrics->final_loss = 4.5;

  const std::string page = report_page({run}, "");

  CHECK(has(page, "<th>Final loss</th><td>4.5</td>"));
  for (const char* invented :
       {"<th>Tokens a second", "<th>Step, p50", "<th>Memory planned", "<th>Batch", "nats"})
    CHECK_FALSE(has(page, invented));
  CHECK(has(report_page({run_named("tiny")}, ""), "nats a token"));
}

TEST_CASE("report: two runs are compared, and only what differs in their jobs is shown") {
  ReportRun first = run_named("tiny"), second = run_named("tiny");
  second.record.id = "8";
  second.overrides = {"optimizer.steps=40"};

  const std::string page = report_page({first, second}, "");

  CHECK(has(page, "<th>optimizer.steps</th><td class=\"differs\">20</td><td class=\"differs\">40</td>"));
  CHECK_FALSE(has(page, "<th>name</th>"));
}

TEST_CASE("report: of nine runs each has a key of its own") {
  std::vector<ReportRun> runs;
  for (int i = 1; i <= 9; ++i) runs.push_back(run_named("run" + std::to_string(i)));

  const std::string page = report_page(runs, "");

  CHECK(has(page, "<i class=\"c0 d0\"></i>run1 7"));
  CHECK(has(page, "<i class=\"c0 d1\"></i>run9 7"));
}

TEST_CASE("report: names that try to be code stay names") {
  const std::string hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&";
  ReportRun run = run_named(hostile);
  run.record.id = hostile;
  run.record.verdict = hostile;
  run.record.nodes = {hostile};
  run.record.versions = {{hostile, hostile}};
  run.spec = hostile;
  run.overrides = {hostile, "=", "key"};
  run.directory = hostile;
  run.timeline = {{1.0, 0, TimelineEntry::Mark::kFirstCause, hostile}};

  for (const std::string& page : {report_page({run}, hostile), report_page({run, run}, hostile)}) {
    size_t scripts = 0;
    for (size_t at = page.find("<script"); at != std::string::npos; at = page.find("<script", at + 1))
      ++scripts;
    CHECK(scripts == 2);  // the data and the page's own
    CHECK_FALSE(has(page, "<img"));
  }
}

TEST_CASE("report: a record that claims a billion ranks makes no page of a billion squares") {
  ReportRun run = run_named("tiny");
  run.record.world_size = 1 << 30;

  CHECK(report_page({run}, "").size() < 10'000'000);
}

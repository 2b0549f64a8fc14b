// The runs of a sweep, and what is said of them.
#include <doctest/doctest.h>

#include "launcher/plan/grid.h"
#include "launcher/view/sweep_report.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

SweepReport three_runs() {
  SweepReport report{"x", "7", {}};
  report.runs = {{{"a=1"}, "/r/x/7_0", "completed", 100, 2.5, {}},
                 {{"a=2"}, "/r/x/7_1", "completed", 100, 2.25, {}},
                 {{"a=3"}, "/r/x/7_2", "failed", 10, 1.0, {}}};
  return report;
}

std::string refused_grid(const std::vector<std::string>& axes) {
  const auto runs = parse_grid(axes);
  return runs ? "accepted" : runs.error().to_string();
}

}  // namespace

TEST_CASE("sweep: a grid combines all values, and a comma in brackets or quotes belongs to its value") {
  const auto runs = parse_grid({"a.x=1,2", "data.files=[\"p\",\"q,r\"],'s,t'"});

  REQUIRE(runs);
  CHECK(*runs == std::vector<Assignments>{{"a.x=1", "data.files=[\"p\",\"q,r\"]"},
                                          {"a.x=1", "data.files='s,t'"},
                                          {"a.x=2", "data.files=[\"p\",\"q,r\"]"},
                                          {"a.x=2", "data.files='s,t'"}});
}

TEST_CASE("sweep: what is no grid is refused, and so are more runs than anybody means") {
  CHECK_EQ(refused_grid({"a.x"}), "--grid a.x: no values; write section.key=VALUE,VALUE");
  CHECK_EQ(refused_grid({"a.x=1,,2"}), "--grid a.x=1,,2: an empty value; write section.key=VALUE,VALUE");
  std::string many = "a.x=0";
  for (int i = 1; i < 40; ++i) many += "," + std::to_string(i);
  CHECK_EQ(refused_grid({many, many}),
           "--grid makes more than 1000 runs; write fewer values, or several sweeps");
}

TEST_CASE("sweep: a list has a run on each line, and what is no assignment is told with its line") {
  const auto runs = parse_list("# rates\na.x=1  b.y=\"p q\"\n\na.x=2\r\n", "l");
  REQUIRE(runs);
  CHECK(*runs == std::vector<Assignments>{{"a.x=1", "b.y=\"p q\""}, {"a.x=2"}});
  const auto wrong = parse_list("a.x=1\nfast\n", "l");
  REQUIRE_FALSE(wrong);
  CHECK_EQ(wrong.error().to_string(),
           "l:2: \"fast\" is no assignment; write section.key=VALUE with blanks between them");
}

TEST_CASE("sweep: what the jobs of one array share is refused") {
  CHECK(check_assignments({{"optimizer.steps=1"}, {"data.seed=2"}}));
  const auto nodes = check_assignments({{"resources.nodes=2"}});
  REQUIRE_FALSE(nodes);
  CHECK_EQ(nodes.error().to_string(),
           "resources.nodes=2: all runs of a sweep share it, for they are one Slurm array; use `shardrun "
           "scale` for numbers of nodes");
  CHECK_FALSE(check_assignments({{"optimizer.steps=1", "name=\"y\""}}));
}

TEST_CASE(
    "sweep: the best run has the least validation loss, or the least loss where none was validated, and did "
    "not fail") {
  SweepReport report = three_runs();
  CHECK_EQ(best_run(report), 1);
  report.runs[0].validation_loss = 2.4;
  CHECK_EQ(best_run(report), 0);
  CHECK_NE(sweep_table_text(report).find("* 7_0 "), std::string::npos);
  CHECK_NE(sweep_table_text(report).find("* best: validation loss 2.4000\n"), std::string::npos);
  CHECK_FALSE(best_run({"x", "7", {}}));
}

TEST_CASE("sweep: one picture has every curve that has two steps, and no name in it is markup") {
  SweepReport report = three_runs();
  report.runs[1].assignments = {"a=</title><script>"};
  TrainingCurve curve;
  curve.steps = {{1, 3.0}, {2, 2.0}};

  const std::string svg = sweep_plot_svg(report, {curve, curve, {}}, /*in_nats=*/true);

  size_t curves = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1))
    ++curves;
  CHECK_EQ(curves, 2);
  CHECK_EQ(svg.find("<script"), std::string::npos);
  CHECK_NE(svg.find("nats per token"), std::string::npos);
  CHECK_EQ(sweep_plot_svg(report, {curve, curve, {}}, /*in_nats=*/false).find("nats"), std::string::npos);
  CHECK_EQ(sweep_plot_svg(report, {{}, {}, {}}, /*in_nats=*/true), "");
}

TEST_CASE("sweep: sweep.json says what it was written from") {
  const auto report = parse_sweep_report(to_json(three_runs()));
  REQUIRE(report);
  CHECK_EQ(to_json(*report), to_json(three_runs()));
  CHECK_FALSE(parse_sweep_report("{}"));
}

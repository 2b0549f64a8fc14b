#include <doctest/doctest.h>

#include <utility>

#include "launcher/view/scale_plot.h"
#include "launcher/view/scale_report.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

ScaleLine line_of(int64_t nodes, int64_t global_batch, ScaleResult result) {
  ScaleLine line;
  line.nodes = line.ranks = nodes;
  line.batch = {global_batch, global_batch / nodes, 1, nodes};
  line.micro_steps = nodes;
  line.result = std::move(result);
  return line;
}

}  // namespace

TEST_CASE(
    "scale report: efficiency is the speed of a node beside that on the fewest nodes that were measured") {
  ScaleReport report{"x", "strong", "7", {}};
  report.lines = {line_of(1, 64, {"/r/7_0", "failed", {}, 3.0, {}}),
                  line_of(2, 64, {"/r/7_1", "completed", 1000.0, 60.0, {}}),
                  line_of(8, 64, {"/r/7_2", "completed", 3000.0, 20.0, {}})};

  measure_efficiency(report);

  CHECK_FALSE(report.lines[0].result->efficiency);
  CHECK_EQ(*report.lines[1].result->efficiency, doctest::Approx(1.0));
  CHECK_EQ(*report.lines[2].result->efficiency, doctest::Approx(0.75));
  CHECK_NE(scale_table_text(report).find("3000 tokens/s, efficiency 75.0 %"), std::string::npos);
}

TEST_CASE("scale report: a command program is measured by its seconds, strongly and weakly") {
  ScaleReport strong{"x", "strong", "7", {}}, weak{"x", "weak", "8", {}};
  strong.lines = {line_of(1, 64, {"", "completed", 0.0, 80.0, {}}),  // it tells of steps, but of no tokens
                  line_of(4, 64, {"", "completed", {}, 25.0, {}})};
  weak.lines = {line_of(1, 16, {"", "completed", {}, 80.0, {}}),
                line_of(4, 64, {"", "completed", {}, 100.0, {}})};

  measure_efficiency(strong);
  measure_efficiency(weak);

  CHECK_EQ(*strong.lines[1].result->efficiency, doctest::Approx(0.8));
  CHECK_NE(scale_table_text(strong).find("   80.0 s, efficiency 100.0 %"), std::string::npos);
  CHECK_EQ(*weak.lines[1].result->efficiency, doctest::Approx(0.8));
}

TEST_CASE("scale report: what is written is read back, and damage is refused") {
  ScaleReport report{"x", "weak", "7", {}};
  report.lines = {line_of(2, 64, {"/r/7_0", "completed", 1000.0, 60.0, 1.0}), {}};
  report.lines[1].nodes = 3;
  report.lines[1].refusal = ScaleRefusal{"job.toml:1:1: \"no\"; mend", {2, 4}};

  const auto back = parse_scale_report(to_json(report));

  REQUIRE(back);
  CHECK_EQ(to_json(*back), to_json(report));
  CHECK_EQ(scale_table_text(*back), scale_table_text(report));
  CHECK_NE(scale_table_text(report).find("3       0 refused: \"no\"; nearest: 2 or 4\n"), std::string::npos);
  CHECK_EQ(parse_scale_report("{}").error().to_string(),
           "scale.json: \"format_version\" is missing, not an integer in range");
  CHECK_FALSE(parse_scale_report("{\"format_version\": 2, \"rows\": []}"));
  CHECK_FALSE(parse_scale_report("{\"format_version\": 1, \"rows\": [{\"nodes\": 1}]}"));
}

TEST_CASE("scale plot: efficiency over nodes is a closed picture, and one point is none") {
  using Points = std::vector<ScalePoint>;
  CHECK_EQ(scale_plot_svg(Points{{1, 1.0}}, "x"), "");
  const std::string svg = scale_plot_svg(Points{{1, 1.0}, {2, 0.9}, {256, 0.5}}, "a<b");
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  for (const char* text : {"a&lt;b", ">256<", "90 %", "ideal"}) {
    CAPTURE(text);
    CHECK_NE(svg.find(text), std::string::npos);
  }
}

TEST_CASE("scale plot: several lines carry their names, and one of a single point is left out") {
  const std::vector<ScaleSeries> series = {{"fast", {{1, 1.0}, {4, 0.8}}}, {"short", {{2, 1.0}}}};
  const std::string svg = scale_plot_svg(series, "x");

  CHECK_NE(svg.find("fast 80 %"), std::string::npos);
  CHECK_EQ(svg.find("short"), std::string::npos);
  CHECK_EQ(svg.find(">2<"), std::string::npos);
}

TEST_CASE(
    "scale plot: each line has a colour of its own, in which its name is written, and the axis fits the "
    "data") {
  const std::vector<ScaleSeries> series = {{"fast", {{1, 1.0}, {4, 0.8}}},
                                           {"slow", {{1, 1.0}, {4, 0.61, 0.55, 0.7}}}};
  const std::string svg = scale_plot_svg(series, "x");

  for (const auto& one : {std::pair{"<g class=\"named c0\">", ">fast 80 %<"},
                          std::pair{"<g class=\"named c1\">", ">slow 61 %<"}}) {
    CAPTURE(one.second);
    const size_t line = svg.find(one.first), end = svg.find(one.first, line + 1);
    REQUIRE_NE(end, std::string::npos);
    CHECK(svg.find("<polyline", line) < svg.find("</g>", line));
    CHECK(svg.find(one.second, end) < svg.find("</g>", end));
  }
  CHECK_EQ(svg.find(">20 %<"), std::string::npos);
  CHECK_NE(svg.find(">60 %<"), std::string::npos);
}

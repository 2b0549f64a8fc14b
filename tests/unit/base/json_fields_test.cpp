#include "runtime/base/json_fields.h"

#include <doctest/doctest.h>

#include <limits>

using namespace shardrun;

namespace {

enum class Colour { kRed, kBlue };
constexpr base::Word<Colour> kColours[] = {{"red", Colour::kRed}, {"blue", Colour::kBlue}};

struct Point {
  int64_t x = 0;
  std::optional<double> y;
};

void fields(auto& visit, base::Is<Point> auto& point) {
  visit("x", point.x);
  visit("y", point.y, base::decimals(2));
}

struct Drawing {
  std::string name;
  std::vector<Point> points;
  Colour colour = Colour::kRed;
  uint16_t port = 7;
  std::optional<Point> origin;
  std::optional<std::string> note;
};

void fields(auto& visit, base::Is<Drawing> auto& drawing) {
  visit.version(2);
  visit("name", drawing.name);
  visit("points", drawing.points);
  visit.choice("colour", drawing.colour, kColours);
  visit.later("port", drawing.port);
  visit.part("x", drawing.origin);
  visit.where_known("note", drawing.note);
  visit.derived("count", drawing.points.size());
}

base::Result<Drawing> parse(std::string_view text) {
  return base::parse_fields<Drawing>(text, "drawing.json");
}

}  // namespace

TEST_CASE("fields: lines keep the order of fields(), documents sort it, and quotes in a text stay in it") {
  Drawing drawing{"a \"b\"", {{1, 0.5}, {2, std::nullopt}}, Colour::kBlue, 7, std::nullopt, std::nullopt};

  CHECK_EQ(
      base::json_of(drawing, base::kJsonLine),
      "{\"format_version\":2,\"name\":\"a \\\"b\\\"\",\"points\":[{\"x\":1,\"y\":0.50},{\"x\":2,\"y\":null}],"
      "\"colour\":\"blue\",\"port\":7,\"count\":2}\n");
  drawing.points.clear();
  drawing.note = "n";
  drawing.origin = Point{3, 1.0};
  CHECK_EQ(
      base::json_of(drawing),
      "{\n  \"colour\": \"blue\",\n  \"count\": 0,\n  \"format_version\": 2,\n  \"name\": \"a \\\"b\\\"\",\n"
      "  \"note\": \"n\",\n  \"points\": [],\n  \"port\": 7,\n  \"x\": 3,\n  \"y\": 1.00\n}\n");
  CHECK_EQ(base::json_of(std::vector<Point>{{1, 2.0}}, base::kJsonReport), "[{\"x\": 1, \"y\": 2.00}]\n");
}

TEST_CASE("fields: numbers have the digits that are asked for, and what is not finite is null") {
  CHECK_EQ(base::json_text_of(1.0, {}), "1.0");
  CHECK_EQ(base::json_text_of(0.1, {}), "0.1");
  CHECK_EQ(base::json_text_of(2.0 / 3.0, base::significant(3)), "0.667");
  CHECK_EQ(base::json_text_of(std::numeric_limits<double>::infinity(), base::decimals(1)), "null");
}

TEST_CASE("fields: what is written is read back, and what may be missing may be missing") {
  const Drawing drawing{"n", {{1, 0.5}}, Colour::kBlue, 9, Point{4, std::nullopt}, "note"};

  const auto back = parse(base::json_of(drawing));
  const auto least =
      parse(R"({"format_version": 1, "name": "", "points": [], "colour": "red", "port": null})");

  REQUIRE(back);
  CHECK_EQ(base::json_of(*back), base::json_of(drawing));
  REQUIRE(least);
  CHECK_EQ(least->port, 7);
  CHECK_FALSE(least->origin);
}

TEST_CASE("fields: each mistake is one line with the document and the keys that lead to it") {
  const auto error = [](std::string_view text) { return parse(text).error().to_string(); };

  CHECK_EQ(error("{"), "drawing.json is not JSON");
  CHECK_EQ(error("7"), "drawing.json is not a JSON object");
  CHECK_EQ(error("{}"), "drawing.json: \"format_version\" is missing, not an integer in range");
  CHECK_EQ(error(R"({"format_version": 3})"),
           "drawing.json has format 3, this version reads 2; use a newer shardrun");
  CHECK_EQ(error(R"({"format_version": 1, "name": null})"), "drawing.json: \"name\" is null, not a string");
  CHECK_EQ(error(R"({"format_version": 1, "name": "", "points": {}})"),
           "drawing.json: \"points\" is object, not a list");
  CHECK_EQ(error(R"({"format_version": 1, "name": "", "points": [{"x": 0.5}]})"),
           "drawing.json points: \"x\" is number, not an integer in range");
  CHECK_EQ(error(R"({"format_version": 1, "name": "", "points": [], "colour": "green"})"),
           "drawing.json: unknown colour \"green\"");
  CHECK_EQ(error(R"({"format_version": 1, "name": "", "points": [], "colour": "red", "port": 65536})"),
           "drawing.json: \"port\" is number, not an integer in range");
  CHECK_EQ(error(R"({"format_version": 1, "name": "", "points": [], "colour": "red", "port": -1})"),
           "drawing.json: \"port\" is number, not an integer in range");
}

// What a person is told of a spec with several mistakes, and of a line that is no TOML.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/spec/job_spec.h"
#include "runtime/spec/toml_text.h"

using namespace shardrun;

namespace {

std::vector<std::string> mistakes_in(const std::string& text) {
  std::vector<std::string> lines;
  for (const base::Error& mistake : spec::mistakes_in_job_spec(text, "job.toml"))
    lines.push_back(mistake.to_string());
  return lines;
}

}  // namespace

TEST_CASE("mistakes: all keys that are wrong are told at once, the one that run and submit name first") {
  const std::string text =
      "name = \"x\"\n[resources]\nnodes = 0\ntime_limit = \"soon\"\nrank_per_node = 2\n[program]\ncommand = "
      "[\"env\"]\n"
      "[logging]\nevery_steps = \"often\"\n";
  const auto lines = mistakes_in(text);

  REQUIRE_EQ(lines.size(), 4);
  CHECK_EQ(lines[0], "job.toml:3:9: resources.nodes = 0 is out of range; write an integer from 1 to 65536");
  CHECK(lines[1].starts_with("job.toml:4:14: resources.time_limit = \"soon\" is not a duration; "));
  CHECK(lines[2].starts_with(
      "job.toml:5:17: [resources] has no key \"rank_per_node\"; did you mean \"ranks_per_node\"?"));
  CHECK(lines[3].starts_with("job.toml:9:15: logging.every_steps is a string; "));
  CHECK_EQ(spec::parse_job_spec(text, "job.toml").error().to_string(), lines[0]);
}

TEST_CASE("mistakes: what may only follow from an earlier mistake is not told") {
  // The program is not known, so nobody can say that [model] is missing.
  CHECK_EQ(mistakes_in("name = \"x\"\n[program]\ntrainer = 3\n").size(), 1);
  CHECK(mistakes_in("name = \"x\"\n[program]\ncommand = [\"env\"]\n").empty());
}

TEST_CASE("mistakes: a file of nothing but mistakes is told of up to 21") {
  std::string text = "name = \"x\"\n[program]\ncommand = [\"env\"]\n[resources]\n";
  for (int i = 0; i < 100; ++i) text += "wrong_" + std::to_string(i) + " = 1\n";
  CHECK_EQ(mistakes_in(text).size(), 21);
}

TEST_CASE("mistakes: a line that is no TOML is told of in the words of its mistake") {
  const struct {
    const char* line;
    const char* said;
  } cases[] = {{"name = tiny", "tiny is a text without quotes; write name = \"tiny\""},
               {"  directory = /scratch/me  # there",
                "/scratch/me is a text without quotes; write directory = \"/scratch/me\""},
               {"init = ~/weights", "~/weights is a text without quotes; write init = \"~/weights\""},
               {"requeue = True", "TOML writes truth as true and false; write requeue = true"},
               {"requeue = no", "TOML writes truth as true and false; write requeue = false"},
               {"partition = None", "TOML has no None; remove the line"},
               {"nodes: 4", "TOML has = where YAML has a colon; write nodes = …"},
               {"nodes =", "nodes has no value; write nodes = …, or remove the line"},
               {"name = \"tiny", ""},
               {"command = [\"a\" \"b\"]", ""},
               {"[resources", ""},
               {"nodes = 4x", ""}};
  for (const auto& one : cases) {
    CAPTURE(one.line);
    CHECK_EQ(spec::likely_mistake(one.line), one.said);
  }
  CHECK_EQ(mistakes_in("name = tiny\n").at(0),
           "job.toml:1:9: tiny is a text without quotes; write name = \"tiny\"");
}

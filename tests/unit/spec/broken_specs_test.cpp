// Every broken spec of the folder is refused with exactly the line of expected.txt, and generated monsters
// are refused quickly.
#include <doctest/doctest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "runtime/base/io.h"
#include "runtime/spec/job_spec.h"

using namespace shardrun;

namespace {

const std::string kFolder = SOURCE_DIR "/tests/unit/spec/broken_specs/";
const std::string kSmallestJob = "name = \"x\"\n[program]\ncommand = [\"env\"]\n";

std::string refusal(const std::string& text) {
  const auto spec = spec::parse_job_spec(text, "job.toml");
  REQUIRE_FALSE(spec);
  CHECK(spec.error().code() == base::Code::kInvalid);
  return spec.error().to_string();
}

}  // namespace

TEST_CASE("broken specs: each is refused with its file, line, column and a mend") {
  std::map<std::string, std::string> expected;
  std::ifstream lines(kFolder + "expected.txt");
  for (std::string line; std::getline(lines, line);) expected[line.substr(0, line.find(':'))] = line;
  CHECK_GE(expected.size(), 60);
  size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".toml") continue;
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    const auto spec = spec::parse_job_spec(base::read_file(entry.path().string()).value(), name);
    REQUIRE_FALSE(spec);
    CHECK_EQ(spec.error().to_string(), expected[name]);
    CHECK_NE(spec.error().to_string().find("; "), std::string::npos);
    ++seen;
  }
  CHECK_EQ(seen, expected.size());
}

TEST_CASE("broken specs: the place is whole however long the path is, and what a value quotes is cut") {
  const std::string path = "/" + std::string(300, 'd') + "/job.toml";
  const auto spec = spec::parse_job_spec("name = \"" + std::string(300, '!') + "\"\n", path);
  REQUIRE_FALSE(spec);
  CHECK(spec.error().to_string().starts_with(path + ":1:8: name = \"" + std::string(80, '!') + "…\""));
}

TEST_CASE("broken specs: ten megabytes of nesting are refused at once") {
  const std::clock_t started = std::clock();
  const std::string message = refusal("a = " + std::string(10 << 20, '['));
  CHECK_NE(message.find("job.toml:1:1: the job spec has"), std::string::npos);
  CHECK_LT(std::clock() - started, CLOCKS_PER_SEC);
}

TEST_CASE("broken specs: nesting below the size limit does not exhaust the stack") {
  for (const std::string& open : {std::string("["), std::string("{a=")}) {
    std::string text = "a = ";
    for (int depth = 0; depth < 300000; ++depth) text += open;
    CHECK_NE(refusal(text).find("job.toml:1:"), std::string::npos);
  }
  std::string dotted = "a";
  for (int depth = 0; depth < 200; ++depth) dotted += ".a";
  CHECK_NE(refusal(dotted + " = 1\n").find("job.toml:"), std::string::npos);
}

TEST_CASE("broken specs: messages never carry control bytes of the spec") {
  for (int byte = 0; byte < 0x20; ++byte) {
    std::string text = "name = \"a";
    text += static_cast<char>(byte);
    const std::string message = refusal(text + "[31mred\"\n");
    for (const char c : message) CHECK_GE(static_cast<unsigned char>(c), 0x20);
  }
}

TEST_CASE("broken specs: a bad override is refused with the override") {
  const auto refused = [](const std::string& assignment) {
    const std::vector<std::string> overrides = {assignment};
    const auto spec = spec::parse_job_spec(kSmallestJob, "job.toml", overrides);
    REQUIRE_FALSE(spec);
    return spec.error().to_string();
  };
  CHECK_EQ(refused("nonsense"), "--set nonsense: no assignment; write section.key=value");
  CHECK_EQ(refused("resources..nodes=2"), "--set resources..nodes=2: empty key; write section.key=value");
  CHECK_EQ(refused("name.x=2"), "--set name.x=2: name is not a section; write section.key=value");
  CHECK_EQ(refused("resources.nodes=two"),
           "--set resources.nodes=two: resources.nodes is a string; write an integer from 1 to 65536");
  CHECK_EQ(refused("resources.ndoes=2"),
           "--set resources.ndoes=2: [resources] has no key \"ndoes\"; did you mean \"nodes\"?");
}

TEST_CASE("broken specs: a missing spec is refused by name") {
  const auto spec = spec::load_job_spec("/nonexistent/job.toml");
  REQUIRE_FALSE(spec);
  CHECK_EQ(spec.error().to_string(),
           "/nonexistent/job.toml:1:1: /nonexistent/job.toml: No such file or directory (errno 2); name a "
           "readable job "
           "spec of at most 1048576 bytes");
}

#include "runtime/spec/toml_text.h"

#include <doctest/doctest.h>

#include <string>

#include "runtime/spec/job_spec.h"

using namespace shardrun;
using spec::find_flaw;

namespace {

constexpr size_t kNone = std::string_view::npos;

size_t flaw_offset(std::string_view text) {
  const auto flaw = find_flaw(text);
  return flaw ? flaw->offset : kNone;
}

}  // namespace

TEST_CASE("TOML text: any character may stand in strings and comments") {
  for (const char* text :
       {"a = \"§\" # §\n", "a = '§'\n", "a = \"\"\"\n§\"\"\"\n", "a = '''§'''  # '\n", "a = \"\\\"§\"\n",
        "a = '\\'  # \"§\n", "a = \"\"\"\"§\"\"\"\"\"\n# §", "a = \"\"\"x\\\n  y§\"\"\"\n", "a = \"\" # §\n",
        "\xEF\xBB\xBF"
        "a = 1\n"}) {
    CAPTURE(text);
    CHECK_EQ(flaw_offset(text), kNone);
  }
}

TEST_CASE("TOML text: a character outside of ASCII where white space may stand is found") {
  CHECK_EQ(flaw_offset("§ = 1"), 0);
  CHECK_EQ(flaw_offset("a = 1§"), 5);
  CHECK_EQ(flaw_offset("a = +\"§\""), 6);
  CHECK_EQ(flaw_offset("a = \"\"\"\"\"\"§"), 10);
  CHECK_EQ(flaw_offset("a = \"\\§\""), 6);
  CHECK_EQ(flaw_offset("a = \"\"\"\\\n  §\"\"\""), 11);
  CHECK_EQ(flaw_offset("a = \"§\"\nb = '\n§ = 1"), 15);
  CHECK_EQ(flaw_offset("a = \"\\"), kNone);
}

TEST_CASE("TOML text: a table header that begins no key is found, brackets of values are left alone") {
  CHECK_EQ(flaw_offset("a = 1\n  [!]"), 9);
  CHECK_EQ(flaw_offset("[[ +"), 3);
  CHECK_EQ(flaw_offset("[[["), 2);
  CHECK_EQ(flaw_offset(std::string_view("[\0", 2)), 1);
  for (const char* text :
       {"[a]\n[[b]]\n[ \"c\" ]", "[]", "[", "[ [", "a = [\n[+1],\n[{b = [\n[.5]]}]\n]\n[c]",
        "a = \"\"\"\n[!]\"\"\"", "# [!]", "a = 1 [!"}) {
    CAPTURE(text);
    CHECK_EQ(flaw_offset(text), kNone);
  }
}

TEST_CASE("TOML text: a key of very many dots is found, dots of strings, numbers and shallow keys are not") {
  CHECK_EQ(flaw_offset("a.a.a.a.a.a.a.a.a.a = 1"), 17);
  CHECK_EQ(flaw_offset("[b]\n[a.'.'.\"x\".a.a.a.a.a.a.a]"), 26);
  CHECK_EQ(flaw_offset("x = [{a.a.a = 1}, {a . a . a. a.a.a.a.a.a. a = 1}]"), 41);
  for (const char* text :
       {"a.b.c = 1.5\nd.e = 2.5\n[f.g.h]\ni.j.k = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]",
        "a = \"...........\"", "a = '...........'  # ...........\n"}) {
    CAPTURE(text);
    CHECK_EQ(flaw_offset(text), kNone);
  }
}

TEST_CASE(
    "TOML text: a bracket that closes one of the other kind is found, in strings and comments it is not") {
  CHECK_EQ(flaw_offset("a = [ } ]"), 6);
  CHECK_EQ(flaw_offset("a = { b = [1, 2} ]"), 15);
  CHECK_EQ(flaw_offset("a = {b = 1]"), 10);
  for (const char* text : {"a = [{b = [1, 2]}, {c = \"}\"}]", "a = [1, # }\n 2]", "[s]\na = {b = [ ']' ]}"}) {
    CAPTURE(text);
    CHECK_EQ(flaw_offset(text), kNone);
  }
}

TEST_CASE("TOML text: the place counts lines, and code points in a line") {
  const auto place = spec::place_of("a = \"§\"\nb = \"§\" §", 18);

  CHECK_EQ(place.line, 2);
  CHECK_EQ(place.column, 9);
}

TEST_CASE("TOML text: the two documents that toml++ 3.3 trips over are refused with their place") {
  for (const auto& [text, place] :
       {std::pair("name = \"\"\"\\\n§\"\"\"\n", "job.toml:2:1: "), std::pair("\xcc\xaa", "job.toml:1:1: ")}) {
    const auto spec = spec::parse_job_spec(text, "job.toml");

    REQUIRE_FALSE(spec);
    CHECK_EQ(spec.error().to_string(),
             std::string(place) +
                 "a character outside of ASCII stands outside strings and comments; put the text in quotes");
  }
}

TEST_CASE("TOML text: a value of --set may hold any text") {
  const std::string text = "name = \"x\"\n[program]\ncommand = [\"env\"]\n[environment]\nA = \"b\"\n";
  const std::string overrides[] = {"environment.A=§ bare"};

  const auto spec = spec::parse_job_spec(text, "job.toml", overrides);

  REQUIRE(spec);
  CHECK_EQ(spec->environment.at("A").text, "§ bare");
}

TEST_CASE("TOML text: a string of any text is read back as it was") {
  CHECK_EQ(spec::toml_string("a\n\x7f"), "\"a\\u000a\\u007f\"");
  for (const char* text : {"plain", "quotes \" and 'others' and \\ ", "grüße §", ""}) {
    const std::string spec_text =
        "name = \"x\"\n[program]\ncommand = [\"env\"]\n[environment]\nA = " + spec::toml_string(text) + "\n";
    const auto spec = spec::parse_job_spec(spec_text, "job.toml");
    REQUIRE(spec);
    CHECK_EQ(spec->environment.at("A").text, text);
  }
}

TEST_CASE("TOML text: an array of texts separates all of them, those that are like the first, too") {
  CHECK_EQ(spec::toml_array({"a", "b", "a"}), "[\"a\", \"b\", \"a\"]");
  CHECK_EQ(spec::toml_array({"", ""}), "[\"\", \"\"]");
  CHECK_EQ(spec::toml_array({}), "[]");
}

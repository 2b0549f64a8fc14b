#include "runtime/spec/job_spec.h"
#include "runtime/spec/secrets.h"

#include <doctest/doctest.h>

#include "runtime/spec/spec_reader.h"

using namespace shardrun;
using spec::parse_job_spec;

namespace {
const std::string kCommandJob = "name = \"x\"\n[program]\ncommand = [\"env\", \"\"]\n";
const std::string kTrainerJob =
    "name = \"x\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-1m\"\nlayers = 2\n[data]\nfiles "
    "= "
    "[\"a.txt\"]\n";
}  // namespace

TEST_CASE("job spec: a command job gets every default") {
  const auto spec = parse_job_spec(kCommandJob, "job.toml");
  REQUIRE(spec);
  CHECK_EQ(spec->program.command, std::vector<std::string>{"env", ""});
  CHECK_EQ(spec->resources.nodes, 1);
  CHECK_EQ(spec->batch.gradient_accumulation, 1);
  CHECK(spec->batch.scaling == spec::Scaling::kWeak);
  CHECK_EQ(spec->logging.directory, "runs");
}

TEST_CASE("job spec: sizes beside a preset override it") {
  const auto spec = parse_job_spec(kTrainerJob, "job.toml");
  REQUIRE(spec);
  CHECK_EQ(spec->model.layers, 2);
  CHECK_EQ(spec->model.hidden, 128);
  CHECK_EQ(spec->origin("data.files[0]"), "job.toml:8:10");
}

TEST_CASE("job spec: what follows from the validation loss stands beside the sets that are evaluated") {
  const std::string text =
      "name = \"x\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-1m\"\n"
      "[data]\nfiles = [\"a.txt\"]\nvalidation = [\"b.txt\"]\n[logging]\nvalidate_every_steps = 5\n";
  const auto spec =
      parse_job_spec(text + "[evaluation]\nkeep_best = true\ncode = [\"c.txt\"]\nstop_after = 3\n", "x");
  REQUIRE_MESSAGE(spec, spec.error().to_string());
  CHECK(spec->evaluation.keep_best);
  CHECK(spec->evaluation.stop_after == 3);
  REQUIRE(spec->evaluation.sets.size() == 1);
  CHECK(spec->evaluation.sets[0].name == "code");
  CHECK_FALSE(parse_job_spec(text, "x")->evaluation.watches_best());
}

TEST_CASE("job spec: overrides are read as TOML first and as bare words after that") {
  const std::vector<std::string> overrides = {"resources.nodes=4", "resources.partition=gpu", "name=\"y\"",
                                              "program.command=[\"a=b\", \"c\"]", "environment.A=x=y"};
  const auto spec = parse_job_spec(kCommandJob, "job.toml", overrides);
  REQUIRE(spec);
  CHECK_EQ(spec->resources.nodes, 4);
  CHECK_EQ(spec->resources.partition, "gpu");
  CHECK_EQ(spec->name, "y");
  CHECK_EQ(spec->program.command, std::vector<std::string>{"a=b", "c"});
  CHECK_EQ(spec->environment.at("A").text, "x=y");
}

TEST_CASE("job spec: secrets come by reference") {
  const auto spec = parse_job_spec(
      kCommandJob + "[environment]\nHF_TOKEN = { from_env = \"MY_TOKEN\" }\nKEY = { from_file = \"/k\" }\n",
      "job.toml");
  REQUIRE(spec);
  CHECK(spec->environment.at("HF_TOKEN").kind == spec::EnvironmentValue::Kind::kFromVariable);
  CHECK_EQ(spec->environment.at("HF_TOKEN").text, "MY_TOKEN");
  CHECK(spec->environment.at("KEY").kind == spec::EnvironmentValue::Kind::kFromFile);
}

TEST_CASE("job spec: a literal secret is refused whatever common name it has, and other names are not") {
  for (const char* name : {"OPENAI_KEY", "GITHUB_PAT", "DB_PASS", "DB_PASSWD", "WANDB_KEY", "WANDB_API_KEY",
                           "DATABASE_URL", "MYSQL_PWD", "SENTRY_DSN", "GCP_CREDENTIALS", "my_secret",
                           "HF_TOKEN", "KEY", "AWS_SECRET_ACCESS_KEY"}) {
    CAPTURE(name);
    CHECK(spec::looks_secret(name));
    CHECK_FALSE(parse_job_spec(kCommandJob + "[environment]\n" + name + " = \"value\"\n", "job.toml"));
  }
  for (const char* name : {"TOKENIZERS_PARALLELISM", "MAX_TOKENS", "HF_TOKEN_PATH", "MONKEY", "PWD", "PATH",
                           "COMPASS", "KEYBOARD", "PASSES", "SPAT", "MODEL_URL", ""}) {
    CAPTURE(name);
    CHECK_FALSE(spec::looks_secret(name));
  }
}

TEST_CASE("job spec: a value that has a password or a private key in it is refused under any name") {
  const auto with = [](const std::string& value) {
    return parse_job_spec(kCommandJob + "[environment]\nPLACE = \"" + value + "\"\n", "job.toml");
  };
  const auto refused = with("redis://:hunter2@cache:6379/0");
  REQUIRE_FALSE(refused);
  CHECK_NE(refused.error().to_string().find("write PLACE = { from_env = \"PLACE\" }"), std::string::npos);
  CHECK_FALSE(with("postgres://me:hunter2@db/x"));
  CHECK_FALSE(with("-----BEGIN RSA PRIVATE KEY-----\\nMII"));
  for (const char* harmless :
       {"https://host:8080/a@b:c", "https://me@host/", "redis://cache:6379/0", "a:b@c", "http://"}) {
    CAPTURE(harmless);
    CHECK(with(harmless));
  }
  CHECK_EQ(spec::password_in_url("amqp://me:p@ss@host:1/x"), "p@ss");
}

TEST_CASE("durations: Slurm's ways of writing them, and nothing else") {
  using spec::parse_duration_seconds;
  CHECK_EQ(parse_duration_seconds("90"), 90);
  CHECK_EQ(parse_duration_seconds("01:30"), 90);
  CHECK_EQ(parse_duration_seconds("100:00"), 6000);
  CHECK_EQ(parse_duration_seconds("02:00:01"), 7201);
  CHECK_EQ(parse_duration_seconds("1-02:00:00"), 93600);
  for (const char* wrong :
       {"", ":", "1:", "1:2:3:4", "-5", "1-", "1-5", "1-24:00:00", "x", "1:60", "1e3", " 5"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_duration_seconds(wrong));
  }
}

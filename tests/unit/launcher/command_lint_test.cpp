#include "launcher/submit/command_lint.h"

#include <doctest/doctest.h>

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

std::vector<std::string> warnings_of(const std::string& command, int nodes = 1, int ranks_per_node = 2) {
  const std::string text = "name = \"x\"\n[resources]\nnodes = " + std::to_string(nodes) +
                           "\nranks_per_node = " + std::to_string(ranks_per_node) +
                           "\n[program]\ncommand = " + command + "\n";
  const auto spec = spec::parse_job_spec(text, "job.toml");
  REQUIRE(spec);
  return lint_command(*spec);
}

}  // namespace

TEST_CASE("command lint: a launcher inside of every rank is named, with how often the job would run") {
  const auto warnings = warnings_of(R"(["torchrun", "--nproc-per-node", "2", "train.py"])");
  REQUIRE_EQ(warnings.size(), 1);
  CHECK_EQ(warnings[0],
           "job.toml:6:12: torchrun starts processes of its own, and each of the 2 ranks would start it: the "
           "job would "
           "run 2 times; write the program that it starts, for every rank has torchrun's variables");
  for (const char* command :
       {R"(["/opt/mpi/bin/mpirun", "-np", "4", "a.out"])", R"(["srun", "a.out"])",
        R"(["env", "A=1", "torchrun", "t.py"])", R"(["python3", "-m", "torch.distributed.run", "t.py"])",
        R"(["python", "-u", "-m", "torch.distributed.launch", "t.py"])",
        R"(["accelerate", "launch", "t.py"])", R"(["deepspeed", "t.py"])"}) {
    CAPTURE(command);
    CHECK_EQ(warnings_of(command).size(), 1);
  }
}

TEST_CASE("command lint: a launcher that is right where it stands is not warned of") {
  CHECK(warnings_of(R"(["torchrun", "--nproc-per-node", "2", "train.py"])", 1, 1).empty());
  CHECK(warnings_of(R"(["torchrun", "--nnodes=2", "--nproc-per-node", "8", "train.py"])", 2, 1).empty());
  CHECK_EQ(warnings_of(R"(["torchrun", "--nproc-per-node", "8", "train.py"])", 2, 1).size(), 1);
  CHECK(warnings_of(R"(["python3", "train.py", "-m", "torch.distributed.run"])").empty());
  CHECK(warnings_of(R"(["python3", "mpirun.py"])").empty());
}

TEST_CASE("command lint: what only a shell understands is named, and program texts are left alone") {
  const auto pipe = warnings_of(R"(["python3", "train.py", "|", "tee", "log"])");
  REQUIRE_EQ(pipe.size(), 1);
  CHECK(pipe[0].starts_with(
      "job.toml:6:35: \"|\" reaches python3 as it stands, for no shell reads a command; write "
      "[\"bash\", \"-c\", "));
  for (const char* command :
       {R"(["train", "--data", "$HOME/data"])", R"(["train", "--data=${DATA}"])", R"(["train", "~/data"])",
        R"(["train", "&&", "echo"])", R"(["train", "2>&1"])", R"x(["train", "$(hostname)"])x"}) {
    CAPTURE(command);
    CHECK_EQ(warnings_of(command).size(), 1);
  }
  for (const char* command :
       {R"(["sh", "-c", "echo $RANK | cat"])", R"x(["python3", "-c", "print('$HOME')"])x",
        R"(["awk", "{ print $NF }"])", R"(["train", "costs 5$", "a|b", "$1"])"}) {
    CAPTURE(command);
    CHECK(warnings_of(command).empty());
  }
}

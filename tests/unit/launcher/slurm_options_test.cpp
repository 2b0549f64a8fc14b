// What [slurm] of a spec becomes: words of an argument vector, checked against the help of a site's sbatch.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "launcher/submit/script.h"
#include "launcher/submit/slurm_options.h"
#include "runtime/spec/job_spec.h"

using namespace shardrun;

namespace {

constexpr const char* kHelp =
    "Usage: sbatch [OPTIONS(0)...] script [args(0)...]\n\nParallel run options:\n"
    "  -b, --begin=time            defer job until HH:MM MM/DD/YY\n"
    "      --comment=name          arbitrary comment\n"
    "  -q, --qos=qos               quality of service\n"
    "      --mem=MB                minimum amount of real memory\n"
    "      --nice[=value]          decrease scheduling priority by value\n"
    "      --contiguous            demand a contiguous range of nodes\n";

spec::JobSpec job_with(const std::string& sections) {
  const auto spec =
      spec::parse_job_spec("name = \"x\"\n[program]\ncommand = [\"env\"]\n" + sections, "job.toml");
  REQUIRE_MESSAGE(spec.has_value(), spec.error().to_string());
  return *spec;
}
spec::JobSpec job(const std::string& slurm) {
  return job_with("[slurm]\n" + slurm);
}

std::string refusal(const std::string& slurm) {
  const auto checked = launcher::check_slurm_options(job(slurm), kHelp, "sbatch");
  return checked ? "accepted" : checked.error().to_string();
}

}  // namespace

TEST_CASE("slurm options: each key and each option is one word, whatever the shell would make of its value") {
  const spec::JobSpec spec =
      job("qos = \"high\"\nmem = \"64G\"\nsegment = 4\ncomment = \"a b; $(touch canary) 'c' \\\"d\\\" #e "
          "\\\\ \"\n"
          "options = { nice = 100, contiguous = true, begin = \"now+1hour\" }\n");

  CHECK(launcher::slurm_options(spec) ==
        std::vector<std::string>{"--qos=high", "--mem=64G", "--segment=4",
                                 "--comment=a b; $(touch canary) 'c' \"d\" #e \\ ", "--begin=now+1hour",
                                 "--contiguous", "--nice=100"});
}

TEST_CASE("slurm options: a job waits for its compile job and for what its spec names") {
  const spec::JobSpec spec = job("dependency = \"afterany:12,singleton\"\n");

  CHECK_EQ(launcher::slurm_dependency(spec, ""), "afterany:12,singleton");
  CHECK_EQ(launcher::slurm_dependency(spec, "7"), "afterok:7,afterany:12,singleton");
  CHECK_EQ(launcher::slurm_dependency(job(""), "7"), "afterok:7");
  const auto script = launcher::sbatch_script(spec, {"/s", "/r", "/w", "7", 0});
  REQUIRE(script);
  CHECK_NE(script->find(
               "#SBATCH --dependency=afterok:7,afterany:12,singleton\n#SBATCH --kill-on-invalid-dep=yes\n"),
           std::string::npos);
}

TEST_CASE("slurm options: what this sbatch does not have is refused before anything is queued") {
  CHECK_EQ(refusal("qos = \"high\"\noptions = { nice = 5, contiguous = true, begin = \"noon\" }\n"),
           "accepted");
  CHECK_EQ(refusal("options = { nice = true }\n"), "accepted");
  CHECK_EQ(refusal("segment = 4\n"),
           "job.toml:5:11: this sbatch has no option --segment; remove it, or see sbatch --help");
  CHECK_EQ(refusal("options = { contigous = true }\n"),
           "job.toml:5:25: this sbatch has no option --contigous; did you mean \"contiguous\"?");
  CHECK_EQ(refusal("options = { begin = true }\n"),
           "job.toml:5:21: --begin takes a value; write begin = \"…\"");
  CHECK_EQ(refusal("options = { contiguous = 1 }\n"),
           "job.toml:5:26: --contiguous takes no value; write contiguous = true");
}

TEST_CASE(
    "slurm options: sbatch does not see the variables that would overrule what the job says, and sees the "
    "site's others") {
  const auto hidden = [](const std::string& resources) {
    return launcher::variables_against(job_with("[resources]\n" + resources));
  };
  const auto names = [](const std::vector<std::string>& all, const char* name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  };

  const auto nothing_said = hidden("");
  CHECK(names(nothing_said, "SBATCH_ARRAY_INX"));
  CHECK(names(nothing_said, "SBATCH_SIGNAL"));
  for (const char* name : {"SBATCH_TIMELIMIT", "SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_CONSTRAINT"})
    CHECK_FALSE(names(nothing_said, name));
  const auto said = hidden("time_limit = 600\npartition = \"main\"\naccount = \"a\"\nconstraint = \"c\"\n");
  for (const char* name : {"SBATCH_TIMELIMIT", "SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_CONSTRAINT"})
    CHECK(names(said, name));
}

TEST_CASE(
    "slurm options: neither sbatch nor salloc sees what the job in which they are called says of its size") {
  for (const char* prefix : {"SBATCH_", "SALLOC_"}) {
    const auto hidden = launcher::variables_against(job_with(""), prefix);
    const auto names = [&](const std::string& name) {
      return std::find(hidden.begin(), hidden.end(), name) != hidden.end();
    };
    for (const char* name :
         {"SLURM_MEM_PER_CPU", "SLURM_GPUS_PER_TASK", "SLURM_HET_SIZE", "SLURM_RESTART_COUNT"})
      CHECK(names(name));
    CHECK(names(std::string(prefix) + "GPUS"));
    CHECK_FALSE(names("SLURM_CONF"));
    CHECK_FALSE(names("SLURM_CPU_BIND"));
  }
}

TEST_CASE("slurm options: GPUs that gres names by type are not asked for a second time by number") {
  const auto asks = [](const std::string& gres) {
    const auto spec = job_with("[resources]\ngpus_per_node = 4\n" + gres);
    const auto options = launcher::allocation_options(spec);
    return std::find(options.begin(), options.end(), "--gpus-per-node=4") != options.end();
  };

  CHECK(asks(""));
  CHECK(asks("[slurm]\ngres = \"lustre:1\"\n"));
  CHECK_FALSE(asks("[slurm]\ngres = \"gpu:a100:4\"\n"));
  CHECK_FALSE(asks("[slurm]\ngres = \"lustre:1,gpu:4\"\n"));
}

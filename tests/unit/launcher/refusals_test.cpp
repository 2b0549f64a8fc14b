#include "launcher/schedule/slurm/refusals.h"

#include <doctest/doctest.h>

#include "launcher/schedule/slurm/slurm_jobs.h"

using namespace shardrun;
using namespace shardrun::launcher;
using base::Code;
using base::Error;

namespace {

std::string explained(const std::string& said, Code code = Code::kIo) {
  const auto spec = spec::parse_job_spec(
      "name = \"x\"\n[resources]\nnodes = 9\npartition = \"gpux\"\ntime_limit = \"9-00:00:00\"\n[program]\n"
      "command = [\"env\"]\n[slurm]\nqos = \"high\"\n",
      "job.toml");
  REQUIRE(spec);
  return explain_refusal(*spec, Error(code, said)).to_string();
}

}  // namespace

TEST_CASE("refusals: sbatch's words lead back to the key that asks for what is refused") {
  // As sbatch of Slurm 22.05 writes them.
  const struct {
    const char* said;
    const char* begins;
  } cases[] = {
      {"sbatch: error: invalid partition specified: gpux", "job.toml:4:13: Slurm has no such partition; "},
      {"sbatch: error: Batch job submission failed: Requested node configuration is not available",
       "job.toml:3:9: no nodes of the cluster have what the job asks for; "},
      {"scontrol: Requested partition configuration not available now for job 1",
       "job.toml:3:9: the partition has not as many nodes, or allows no job this long; "},
      {"sbatch: error: Batch job submission failed: Node count specification invalid",
       "job.toml:3:9: the partition gives no job this many nodes; "},
      {"sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some "
       "limit)",
       "job.toml:5:14: the partition allows no job this long, or none without a limit; "},
      {"sbatch: error: Batch job submission failed: Invalid qos specification",
       "job.toml:9:7: Slurm has no such QOS for you; "},
      {"sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
       "Slurm's controller does not answer; "},
      {"sbatch: fatal: Could not establish a configuration source",
       "this machine belongs to no Slurm cluster; "}};
  for (const auto& one : cases) {
    CAPTURE(one.said);
    const std::string line = explained(one.said);
    CHECK(line.starts_with(one.begins));
    CHECK_NE(line.find(" (Slurm: "), std::string::npos);
  }
}

TEST_CASE("refusals: a machine without sbatch is told of, and words that nobody knows stay") {
  CHECK(
      explained("sbatch: No such file", Code::kNotFound).starts_with("there is no sbatch on this machine; "));
  CHECK_EQ(explained("sbatch: error: something new"), "sbatch: error: something new");
}

TEST_CASE("refusals: a job that waits for what never comes is said to") {
  CHECK_NE(meaning_of_reason("PartitionNodeLimit").find("cancel it and ask for fewer"), std::string::npos);
  CHECK_EQ(meaning_of_reason("Priority"), "");
}

TEST_CASE("silent nodes: one that does not answer may come back, and one that is down has been given up") {
  CHECK(has_silent_node("idle\nmixed\nidle*\n"));
  CHECK(has_silent_node("allocated*"));
  CHECK_FALSE(has_silent_node("idle\ndown*\n"));
  CHECK_FALSE(has_silent_node(""));
}

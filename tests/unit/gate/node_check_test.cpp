#include "runtime/gate/node_check.h"

#include <doctest/doctest.h>

#include <cstdlib>

using namespace shardrun;
using namespace shardrun::gate;

namespace {

spec::EnvironmentValue literal(const std::string& text) {
  return {spec::EnvironmentValue::Kind::kLiteral, text};
}

}  // namespace

TEST_CASE("node check: room is needed for those that are kept and one more, less what is there already") {
  spec::JobSpec spec;
  spec.optimizer.steps = 100;
  spec.checkpoint.keep = 2;
  CHECK(checkpoints_to_come(spec, 0) == 1);  // only at the end
  spec.checkpoint.every_steps = 10;
  CHECK(checkpoints_to_come(spec, 0) == 3);
  CHECK(checkpoints_to_come(spec, 1) == 2);
  CHECK(checkpoints_to_come(spec, 2) == 1);
  CHECK(checkpoints_to_come(spec, 9) == 1);
  spec.checkpoint.every_steps = 100;
  CHECK(checkpoints_to_come(spec, 0) == 2);
  spec.checkpoint.at_end = false;
  CHECK(checkpoints_to_come(spec, 0) == 1);
  spec.checkpoint.every_steps = 0;
  CHECK(checkpoints_to_come(spec, 0) == 0);
}

TEST_CASE("node check: the provider is the job's, and efa for a command that names it to libfabric") {
  spec::JobSpec spec;
  record::LaunchPlan plan;
  spec.communication.provider = "tcp";
  CHECK(world_options(spec, plan).provider == "tcp");
  spec.communication.provider = "auto";
  spec.environment["FI_PROVIDER"] = literal("efa");
  CHECK(world_options(spec, plan).provider == "auto");
  spec.program.command = {"./train.sh"};
  CHECK(world_options(spec, plan).provider == "efa");
}

TEST_CASE("node check: variables of networks are reported as the ranks will see them, secrets never") {
  spec::JobSpec spec;
  record::LaunchPlan plan;
  spec.program.command = {"true"};
  plan.plugin_directory = "/nowhere";
  ::setenv("NCCL_BUFFSIZE", "1", 1);
  ::setenv("SECRET_TOKEN", "x", 1);
  spec.environment["RDMAV_FORK_SAFE"] = literal("1");
  spec.environment["FI_SECRET"] = {spec::EnvironmentValue::Kind::kFromVariable, "SECRET_TOKEN"};

  const auto facts = check_node("n1", spec, plan);

  CHECK(facts.variables.at("NCCL_BUFFSIZE") == "1");
  CHECK(facts.variables.at("RDMAV_FORK_SAFE") == "1");
  CHECK(facts.variables.count("FI_SECRET") == 0);
  CHECK(facts.variables.count("SECRET_TOKEN") == 0);
  CHECK(facts.provider_error.find("/nowhere/libshardrun_comm_ofi.so") != std::string::npos);
  CHECK(facts.checkpoint_folder.empty());
  ::unsetenv("NCCL_BUFFSIZE");
  ::unsetenv("SECRET_TOKEN");
}

TEST_CASE(
    "node check: a trainer's checkpoints and the space for them are counted, where the folder is still to "
    "come") {
  spec::JobSpec spec;
  record::LaunchPlan plan;
  spec.program.trainer = "llama";
  spec.model = {.layers = 1, .hidden = 64, .heads = 1, .kv_heads = 1, .ffn = 64, .vocab = 256};
  plan.plugin_directory = "/nowhere";
  spec.checkpoint.directory = "/tmp/of/the/node_check_test/never/made";

  const auto facts = check_node("n1", spec, plan);

  // There are embedding and head 256 × 64, attention 4 × 64², feed-forward 3 × 64² and three norms of 64; each
  // number takes 12 bytes.
  CHECK(facts.needed_bytes == 12 * (2 * 256 * 64 + 7 * 64 * 64 + 3 * 64));
  CHECK(facts.checkpoint_folder == spec.checkpoint.directory);
  CHECK(facts.free_bytes > 0);
  CHECK(facts.disk_error.empty());
}

#include "runtime/tools/footprint_tool.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "runtime/base/descendants.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/comm/plugin_communicator.h"
#include "runtime/trainer/train/session_parts.h"
#include "runtime/trainer/train/spec_options.h"

namespace shardrun::tools {
namespace {

// What every job compiles before it begins, so that the libraries of matrix products are there as they are in a rank.
constexpr const char* kSmallJob =
    "name = \"small\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-1m\"\n[data]\nfiles = "
    "[\"/\"]\n"
    "sequence_length = 128\n";

void compile_products() {
  const auto job = spec::parse_job_spec(kSmallJob, "small job");
  SHARDRUN_CHECK(job.has_value());
  record::LaunchPlan plan;
  plan.batch.global_batch = plan.batch.micro_batch = plan.batch.gradient_accumulation = 1;
  train::prepare_products(train::session_options(*job, plan), /*tensor_parallel=*/1);
}

}  // namespace

int run_footprint_tool(std::span<char* const> arguments) {
  compile_products();
  std::optional<comm::PluginSession> endpoints;
  if (arguments.size() == 4) {
    auto opened = comm::PluginSession::open({.plugin_path = arguments[0],
                                             .provider = arguments[1],
                                             .local_world_size = std::atoi(arguments[3]),
                                             .node_count = std::atoi(arguments[2])});
    if (!opened) {
      fmt::print(stderr, "shardrun: error: {}\n", base::visible(opened.error().to_string()));
      return contract::exit_code_of(opened.error().code());
    }
    endpoints = std::move(opened).value();
  }
  fmt::print("{}\n", base::resident_bytes_of_tree(::getpid()));
  return contract::kExitDone;
}

}  // namespace shardrun::tools

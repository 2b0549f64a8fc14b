#include "runtime/tools/footprint_tool.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
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
#include "runtime/trainer/comm/rendezvous.h"
#include "runtime/trainer/train/session_parts.h"
#include "runtime/trainer/train/spec_options.h"

namespace shardrun::tools {
namespace {

// What every job compiles before it begins, so that the libraries of matrix products are there as they are in a rank.
constexpr const char* kSmallJob =
    "name = \"small\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-1m\"\n[data]\nfiles = "
    "[\"/\"]\n"
    "sequence_length = 128\n";

// Returns how many there are.
int64_t compile_products(int64_t micro_batch) {
  const auto job = spec::parse_job_spec(kSmallJob, "small job");
  SHARDRUN_CHECK(job.has_value());
  record::LaunchPlan plan;
  plan.batch.global_batch = plan.batch.micro_batch = micro_batch;
  plan.batch.gradient_accumulation = 1;
  return train::prepare_products(train::session_options(*job, plan), /*tensor_parallel=*/1);
}

}  // namespace

int run_footprint_tool(std::span<char* const> arguments) {
  const int64_t products = compile_products(1);
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
    // Nobody shall answer, but what PMIx loads to ask is a rank's, too.
    ::unsetenv("PMIX_NAMESPACE");
    (void)comm::Rendezvous::begin(std::chrono::seconds(5));
  }
  const int64_t bytes = base::resident_bytes_of_tree(::getpid());
  // The same of more rows are as many products again, of every kind.
  const int64_t further = compile_products(2) - products;
  const int64_t added = std::max<int64_t>(0, base::resident_bytes_of_tree(::getpid()) - bytes);
  // Where products of our own are faster (docs/decisions/0117) nothing is compiled.
  fmt::print("{} {} {}\n", bytes, products, further > 0 ? added / further : 0);
  return contract::kExitDone;
}

}  // namespace shardrun::tools

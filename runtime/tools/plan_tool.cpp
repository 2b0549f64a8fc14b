#include "runtime/tools/plan_tool.h"

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "runtime/contract/exit_code.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/model_plan.h"
#include "runtime/record/model_plan_json.h"
#include "runtime/trainer/train/memory_plan.h"
#include "runtime/trainer/train/spec_options.h"

namespace shardrun::tools {
namespace {

using base::Result;

std::string read_standard_input() {
  std::string text;
  char piece[4096];
  for (size_t got = 0; (got = std::fread(piece, 1, sizeof(piece), stdin)) > 0;) text.append(piece, got);
  return text;
}

Result<plan::ModelPlan> plan(const std::string& spec_path) {
  const auto launch = record::parse_launch_plan(read_standard_input());
  if (!launch) return launch.error();
  const auto spec = spec::load_job_spec(spec_path, launch->overrides);
  if (!spec) return spec.error();
  const auto mesh = plan::solve_mesh(*spec, launch->world_size(), launch->ranks_per_node);
  if (!mesh) return mesh.error();
  ::omp_set_num_threads(std::max(1, launch->cpus_per_rank));  // as the rank does
  plan::ModelPlan planned = train::plan_model(train::session_options(*spec, *launch), mesh->shard_degree,
                                              mesh->replicas(), mesh->tensor_parallel);
  planned.memory.process = plan::process_bytes(launch->world_size(), planned.memory.on_gpu != 0);
  return planned;
}

}  // namespace

int run_plan_tool(std::span<char* const> arguments) {
  if (arguments.size() != 1) {
    std::fputs("usage: shardrun-rank plan SPEC, with the launch plan on standard input\n", stderr);
    return contract::kExitBadInput;
  }
  const auto planned = plan(arguments[0]);
  if (!planned) {
    fmt::print(stderr, "shardrun: error: {}\n", planned.error().to_string());
    return contract::kExitBadInput;
  }
  fmt::print("{}\n", record::to_json(*planned));
  return contract::kExitDone;
}

}  // namespace shardrun::tools

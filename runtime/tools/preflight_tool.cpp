#include "runtime/tools/preflight_tool.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/rank_env.h"
#include "runtime/gate/network_check.h"
#include "runtime/gate/node_check.h"
#include "runtime/record/run_dir.h"

namespace shardrun::tools {
namespace {

using base::Code;
using base::Result;

Result<void> write_small(const std::string& path, const std::string& text) {
  return base::write_file_atomically(path, text, record::kFileMode, base::Durability::kProcess);
}

Result<void> preflight(const std::string& folder, double usual_bytes_per_second) {
  ASSIGN_OR_RETURN(const auto env, contract::read_rank_env(contract::process_environment()));
  const record::RunDir run{env.run_directory};
  const auto text = base::read_file(run.plan_json());
  if (!text && text.error().code() == Code::kNotFound)
    return base::Error(Code::kRefused, run.unseen_by(env.node_name));
  if (!text) return text.error();
  ASSIGN_OR_RETURN(const auto plan, record::parse_launch_plan(*text));
  const auto spec = spec::load_job_spec(run.job_toml(), plan.overrides);
  if (!spec) return spec.error();

  record::NodeFacts facts;
  const std::string facts_path = fmt::format("{}/{}.json", folder, env.node_name);
  const bool speaks_for_node = env.local_rank == 0;
  if (speaks_for_node) {
    facts = gate::check_node(env.node_name, *spec, plan);
    RETURN_IF_ERROR(write_small(facts_path, to_json(facts)));
  }
  gate::NetworkOptions options;
  options.world = gate::world_options(*spec, plan);
  options.node = env.node_name;
  options.ranks_per_node = plan.ranks_per_node;
  options.usual_bytes_per_second = usual_bytes_per_second;
  const auto network = gate::check_network(options);
  if (network && network->is_first) return write_small(folder + "/measured.json", to_json(network->measured));
  if (network || !speaks_for_node || !facts.provider_error.empty()) return {};
  facts.network_error = network.error().to_string();
  facts.network_ranks = network.error().ranks();
  return write_small(facts_path, to_json(facts));
}

}  // namespace

int run_preflight_tool(std::span<char* const> arguments) {
  if (arguments.size() != 2) {
    std::fputs("usage: shardrun-rank preflight FOLDER BYTES_PER_SECOND, started by shardrun\n", stderr);
    return contract::kExitBadInput;
  }
  const auto done = preflight(arguments[0], std::strtod(arguments[1], nullptr));
  if (done) return contract::kExitDone;
  fmt::print(stderr, "shardrun-rank: preflight: {}\n", done.error().to_string());
  return done.error().code() == Code::kRefused ? contract::kExitRefused : contract::kExitInfrastructure;
}

}  // namespace shardrun::tools

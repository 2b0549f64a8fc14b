#include "runtime/gate/node_check.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "runtime/contract/epoch.h"
#include "runtime/contract/rank_env.h"
#include "runtime/gate/gpus.h"
#include "runtime/plan/rank_memory.h"
#include "runtime/trainer/checkpoint/store.h"

extern char** environ;

namespace shardrun::gate {
namespace {

// The time limit of a collective in the preflight; the rendezvous of a large job takes seconds.
constexpr std::chrono::seconds kTimeout{20};

void check_disk(const spec::JobSpec& spec, const record::LaunchPlan& plan, record::NodeFacts& facts) {
  facts.checkpoint_folder = contract::checkpoint_directory(spec, plan);
  const auto existing = checkpoint::Store(facts.checkpoint_folder, spec.checkpoint.keep).steps();
  const auto count = existing ? static_cast<int64_t>(existing->size()) : 0;
  facts.needed_bytes = checkpoints_to_come(spec, count) * plan::checkpoint_bytes(plan::network_of(spec));
  std::string folder = facts.checkpoint_folder;
  struct statvfs space {};
  while (::statvfs(folder.c_str(), &space) != 0) {
    const size_t slash = folder.find_last_of('/');
    if (errno != ENOENT || slash == 0 || slash == std::string::npos) {
      facts.disk_error = fmt::format("{}: {}", folder, std::strerror(errno));
      return;
    }
    folder.erase(slash);  // the nearest folder that exists
  }
  facts.free_bytes = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
}

void check_provider(const comm::WorldOptions& options, int nodes, record::NodeFacts& facts) {
  comm::SessionOptions session;
  session.plugin_path = options.plugin_path;
  session.provider = options.provider;
  session.timeout = options.timeout;
  session.node_count = nodes == 1 ? 1 : 0;
  if (auto opened = comm::PluginSession::open(session); !opened)
    facts.provider_error = opened.error().to_string();
}

// Returns the variables as the ranks will see them. Values that are given by reference are secrets and stay out.
std::map<std::string, std::string> network_variables(const spec::JobSpec& spec) {
  std::map<std::string, std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const size_t equals = std::min(text.find('='), text.size());
    const std::string_view name = text.substr(0, equals);
    if (equals < text.size() && record::is_network_variable(name))
      variables[std::string(name)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : spec.environment) {
    if (value.kind == spec::EnvironmentValue::Kind::kLiteral && record::is_network_variable(name))
      variables[name] = value.text;
  }
  return variables;
}

}  // namespace

comm::WorldOptions world_options(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  comm::WorldOptions options;
  options.plugin_path = plan.comm_plugin(spec.communication.plugin);
  options.provider = spec.communication.provider;
  options.timeout = std::min(spec.communication.timeout, kTimeout);
  options.leave_out_unable = true;
  const auto asked = spec.environment.find("FI_PROVIDER");
  const bool efa = asked != spec.environment.end() &&
                   asked->second.kind == spec::EnvironmentValue::Kind::kLiteral &&
                   asked->second.text == "efa";
  if (!spec.program.command.empty() && efa) options.provider = "efa";
  return options;
}

int64_t checkpoints_to_come(const spec::JobSpec& spec, int64_t existing) {
  const int64_t every = spec.checkpoint.every_steps;
  const int64_t all = (every > 0 ? spec.optimizer.steps / every : 0) + (spec.checkpoint.at_end ? 1 : 0);
  const int64_t kept = spec.checkpoint.keep;
  return std::min(all, kept + 1 - std::min(existing, kept));
}

record::NodeFacts check_node(const std::string& node, const spec::JobSpec& spec,
                             const record::LaunchPlan& plan) {
  record::NodeFacts facts;
  facts.node = node;
  facts.variables = network_variables(spec);  // before libfabric sets its own
  if (spec.program.command.empty()) check_disk(spec, plan, facts);
  check_provider(world_options(spec, plan), plan.nodes, facts);
  if (spec.resources.gpus_per_node > 0) {
    auto gpus = find_gpus();
    if (gpus) {
      facts.gpus = std::move(*gpus);
    } else {
      facts.gpu_error = gpus.error().to_string();
    }
  }
  return facts;
}

}  // namespace shardrun::gate

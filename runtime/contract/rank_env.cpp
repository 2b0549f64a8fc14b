#include "runtime/contract/rank_env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/io.h"

namespace shardrun::contract {
namespace {

using base::Code;
using base::Error;

// The names of the six numbers with which one launcher tells a rank who it is.
struct RankNames {
  const char* launcher;
  const char* global_rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* node_index;
  const char* node_count;
  const char* node_name;
};

constexpr int64_t kMostNodes = 1 << 16, kMostOfANode = 1 << 16;

constexpr RankNames kSlurmNames = {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                                   "",     "SLURM_NODEID", "SLURM_NNODES", "SLURMD_NODENAME"};
constexpr RankNames kNames[] = {
    {"shardrun", "SHARDRUN_GLOBAL_RANK", "SHARDRUN_WORLD_SIZE", "SHARDRUN_LOCAL_RANK",
     "SHARDRUN_LOCAL_WORLD_SIZE", "SHARDRUN_NODE_INDEX", "SHARDRUN_NODE_COUNT", "SHARDRUN_NODE_NAME"},
    kSlurmNames,
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "", "", ""},
};

Result<int64_t> number(const EnvironmentLookup& lookup, const std::string& name, const std::string& setter,
                       int64_t low, int64_t high) {
  const auto text = lookup(name);
  if (!text)
    return Error(Code::kInvalid, fmt::format("{} is not set; {} sets it for every rank", name, setter));
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (failure != std::errc() || end != text->data() + text->size() || value < low || value > high) {
    return Error(Code::kInvalid, fmt::format("{} is not a number from {} to {}; {} should have set it", name,
                                             low, high, setter));
  }
  return value;
}

// Reads the number of `node_index` from SLURM_TASKS_PER_NODE, such as "2(x4)" or "2,1".
Result<int64_t> slurm_local_world_size(const EnvironmentLookup& lookup, int node_index) {
  const std::string name =
      lookup("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  const std::string text = lookup(name).value_or("");
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  int64_t first = 0;
  while (at < end) {
    int64_t tasks = 0, repeat = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec != std::errc()) break;
    at = parsed.ptr;
    if (end - at > 3 && at[0] == '(' && at[1] == 'x') {
      parsed = std::from_chars(at + 2, end, repeat);
      if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ')') break;
      at = parsed.ptr + 1;
    }
    if (tasks < 1 || tasks > kMostOfANode || repeat < 1 || repeat > kMostNodes) break;
    if (node_index < first + repeat) return tasks;
    first += repeat;
    if (at < end && *at == ',') ++at;
  }
  return Error(Code::kInvalid,
               fmt::format("{} does not say how many tasks run on node {}; srun sets it", name, node_index));
}

Result<int> field(const EnvironmentLookup& lookup, const char* name, const char* setter, int64_t low,
                  int64_t high) {
  ASSIGN_OR_RETURN(auto value, number(lookup, name, setter, low, high));
  return static_cast<int>(value);
}

Result<void> read_position(const EnvironmentLookup& lookup, const RankNames& names, RankEnv& env) {
  ASSIGN_OR_RETURN(auto world, field(lookup, names.world_size, names.launcher, 1, 1 << 24));
  env.world_size = world;
  ASSIGN_OR_RETURN(auto global, field(lookup, names.global_rank, names.launcher, 0, env.world_size - 1));
  env.global_rank = global;
  if (*names.node_count != '\0') {
    ASSIGN_OR_RETURN(auto count, field(lookup, names.node_count, names.launcher, 1, kMostNodes));
    env.node_count = count;
    ASSIGN_OR_RETURN(auto index, field(lookup, names.node_index, names.launcher, 0, env.node_count - 1));
    env.node_index = index;
  }
  if (*names.local_world_size != '\0') {
    ASSIGN_OR_RETURN(auto size, field(lookup, names.local_world_size, names.launcher, 1, kMostOfANode));
    env.local_world_size = size;
  } else {
    ASSIGN_OR_RETURN(auto size, slurm_local_world_size(lookup, env.node_index));
    env.local_world_size = static_cast<int>(size);
  }
  ASSIGN_OR_RETURN(auto local, field(lookup, names.local_rank, names.launcher, 0, env.local_world_size - 1));
  env.local_rank = local;
  if (*names.node_count == '\0') {
    // mpirun does not say; ranks are mapped node by node, equally many on each.
    env.node_count = (env.world_size + env.local_world_size - 1) / env.local_world_size;
    env.node_index = std::min(env.global_rank / env.local_world_size, env.node_count - 1);
  }
  env.node_name = lookup(names.node_name).value_or(host_name());
  return {};
}

}  // namespace

EnvironmentLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

Result<RankEnv> read_rank_env(const EnvironmentLookup& lookup) {
  const RankNames* names = nullptr;
  const std::optional<std::string> launcher = lookup(kRanksByVariable);
  for (const RankNames& candidate : kNames) {
    const bool is_it = launcher ? *launcher == candidate.launcher : lookup(candidate.global_rank).has_value();
    if (names == nullptr && is_it) names = &candidate;
  }
  if (names == nullptr) {
    return Error(Code::kInvalid,
                 "no SHARDRUN_GLOBAL_RANK, SLURM_PROCID or OMPI_COMM_WORLD_RANK; shardrun-rank is started by "
                 "`shardrun run`, not by hand");
  }
  RankEnv env;
  RETURN_IF_ERROR(read_position(lookup, *names, env));
  const auto directory = lookup("SHARDRUN_RUN_DIR");
  if (!directory || directory->empty() || directory->front() != '/') {
    return Error(Code::kInvalid,
                 "SHARDRUN_RUN_DIR is not an absolute folder; `shardrun run` sets it for every rank");
  }
  env.run_directory = *directory;
  env.master_addr = lookup("SHARDRUN_MASTER_ADDR").value_or("127.0.0.1");
  if (lookup("SHARDRUN_MASTER_PORT")) {
    ASSIGN_OR_RETURN(auto port, field(lookup, "SHARDRUN_MASTER_PORT", "shardrun", 1, 65535));
    env.master_port = static_cast<uint16_t>(port);
  }
  if (lookup("SHARDRUN_ATTEMPT")) {
    ASSIGN_OR_RETURN(auto attempt, field(lookup, "SHARDRUN_ATTEMPT", "shardrun", 0, 1 << 20));
    env.attempt = attempt;
  }
  if (const auto launched = lookup("SHARDRUN_LAUNCH_TIME"))
    env.launch_time = std::strtod(launched->c_str(), nullptr);
  return env;
}

Result<RankEnv> read_slurm_place(const EnvironmentLookup& lookup) {
  RankEnv env;
  RETURN_IF_ERROR(read_position(lookup, kSlurmNames, env));
  return env;
}

std::map<std::string, std::string> child_environment(const RankEnv& env, const record::LaunchPlan& plan,
                                                     const EnvironmentLookup& inherited) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  std::map<std::string, std::string> out = {
      {"RANK", text(env.global_rank)},
      {"LOCAL_RANK", text(env.local_rank)},
      {"WORLD_SIZE", text(env.world_size)},
      {"LOCAL_WORLD_SIZE", text(env.local_world_size)},
      {"GROUP_RANK", text(env.node_index)},
      {"GROUP_WORLD_SIZE", text(env.node_count)},
      {"NODE_RANK", text(env.node_index)},
      {"ROLE_RANK", text(env.global_rank)},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", text(env.world_size)},
      {"MASTER_ADDR", env.master_addr},
      {"MASTER_PORT", text(env.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", text(env.attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", plan.id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"SHARDRUN_GLOBAL_RANK", text(env.global_rank)},
      {"SHARDRUN_LOCAL_RANK", text(env.local_rank)},
      {"SHARDRUN_WORLD_SIZE", text(env.world_size)},
      {"SHARDRUN_LOCAL_WORLD_SIZE", text(env.local_world_size)},
      {"SHARDRUN_NODE_INDEX", text(env.node_index)},
      {"SHARDRUN_NODE_COUNT", text(env.node_count)},
      {"SHARDRUN_NODE_NAME", env.node_name},
      {"SHARDRUN_GRADIENT_ACCUMULATION", text(plan.batch.gradient_accumulation)},
      {"SHARDRUN_MICRO_BATCH", text(plan.batch.micro_batch)},
      {"SHARDRUN_GLOBAL_BATCH", text(plan.batch.global_batch)},
      {"GRAD_ACCUM_USTEPS", text(plan.batch.gradient_accumulation)},
  };
  if (plan.batch.data_parallel == env.world_size && plan.batch.is_possible()) {
    const int64_t last = plan.batch.gradient_accumulation - 1;
    out["SHARDRUN_LAST_MICRO_BATCH"] = text(plan.batch.share(last, env.global_rank).count);
    out["SHARDRUN_RANK_BATCH"] = text(plan.batch.sequences_of(env.global_rank));
  }
  for (const auto& [name, value] : plan.variables) out[name] = value;
  if (!inherited("OMP_NUM_THREADS")) out["OMP_NUM_THREADS"] = text(plan.cpus_per_rank);
  return out;
}

Result<std::map<std::string, std::string>> command_environment(const RankEnv& env,
                                                               const record::LaunchPlan& plan,
                                                               const spec::JobSpec& spec,
                                                               const EnvironmentLookup& inherited) {
  auto out = child_environment(env, plan, inherited);
  auto given =
      resolve_environment(spec.environment, [&](const std::string& name) -> std::optional<std::string> {
        const auto own = out.find(name);
        return own != out.end() ? own->second : inherited(name);
      });
  RETURN_IF_ERROR(given);
  for (auto& [name, value] : *given) out[name] = std::move(value);
  return out;
}

Result<std::map<std::string, std::string>> resolve_environment(
    const std::map<std::string, spec::EnvironmentValue>& environment, const EnvironmentLookup& lookup) {
  constexpr uint64_t kLongestSecret = 32 * 1024;
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : environment) {
    switch (value.kind) {
      case spec::EnvironmentValue::Kind::kLiteral:
        out[name] = value.text;
        break;
      case spec::EnvironmentValue::Kind::kFromVariable: {
        const auto found = lookup(value.text);
        if (!found) {
          return Error(Code::kNotFound,
                       fmt::format("environment.{}: the variable {} is not set on this node; set it "
                                   "before submitting, or use from_file",
                                   name, value.text));
        }
        out[name] = *found;
        break;
      }
      case spec::EnvironmentValue::Kind::kFromFile: {
        // Opening a pipe would wait for whoever writes it.
        struct stat status {};
        if (::stat(value.text.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
          return Error(
              Code::kInvalid,
              fmt::format("environment.{}: {} is no regular file; name one in from_file", name, value.text));
        }
        auto text = base::read_file(value.text, kLongestSecret);
        if (!text) return std::move(text).error().context(fmt::format("environment.{}", name));
        while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
        if (text->find('\0') != std::string::npos) {
          return Error(Code::kInvalid, fmt::format("environment.{}: {} holds a zero byte", name, value.text));
        }
        out[name] = std::move(text).value();
        break;
      }
    }
  }
  return out;
}

}  // namespace shardrun::contract

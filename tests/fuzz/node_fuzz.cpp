// Runs libFuzzer over what a node says to a rank: its environment, its command line, and files of the kernel, which lie in a
// folder here or are a text. The place that a rank is told is one of its job's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/plan/node_memory.h"
#include "launcher/submit/node_systems.h"
#include "plugins/ofi/address.h"
#include "plugins/spank/option.h"
#include "runtime/base/allowance.h"
#include "runtime/base/process_files.h"
#include "runtime/base/result.h"
#include "runtime/base/text.h"
#include "runtime/contract/master_port.h"
#include "runtime/contract/rank_env.h"
#include "runtime/rank/binding.h"
#include "runtime/rank/memory_events.h"

using namespace shardrun;

namespace {

constexpr const char* kFiles[] = {"cgroup/memory.max",
                                  "cgroup/cpu.max",
                                  "devices/node/online",
                                  "devices/node/node0/cpulist",
                                  "devices/cpu/cpu0/topology/thread_siblings_list",
                                  "etc/os-release",
                                  "proc/meminfo",
                                  "sys/bus/pci/devices/0/vendor",
                                  "sys/bus/pci/devices/0/device"};

// One folder for the whole process, which goes with it.
struct Root {
  Root() {
    SHARDRUN_CHECK(::mkdtemp(path.data()) != nullptr);
    for (const char* file : kFiles)
      std::filesystem::create_directories(std::filesystem::path(path + "/" + file).parent_path());
  }
  ~Root() { std::filesystem::remove_all(path); }
  void put(std::string_view text) const {
    for (const char* file : kFiles)
      std::ofstream(path + "/" + file, std::ios::binary | std::ios::trunc) << text;
  }
  std::string path = "/dev/shm/node_fuzz.XXXXXX";
};

void check_place(const contract::RankEnv& env) {
  SHARDRUN_CHECK(env.global_rank >= 0 && env.global_rank < env.world_size);
  SHARDRUN_CHECK(env.local_rank >= 0 && env.local_rank < env.local_world_size);
  SHARDRUN_CHECK(env.node_index >= 0 && env.node_index < env.node_count);
}

// The input is "NAME=value" line by line.
void check_environment(std::string_view text) {
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::string line(base::take_line(text));
    const size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  const contract::EnvironmentLookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  if (const auto env = contract::read_rank_env(lookup)) {
    check_place(*env);
    (void)contract::child_environment(*env, record::LaunchPlan{}, lookup);
  }
  if (const auto env = contract::read_slurm_place(lookup)) check_place(*env);
  const auto bytes = launcher::node_memory_bytes(lookup, int64_t{1} << 40);
  SHARDRUN_CHECK(bytes && *bytes > 0 && *bytes <= int64_t{1} << 40);
}

void check_limits(const Root& root, std::string_view text) {
  for (const std::string_view cgroups : {text, std::string_view("0::/x\n")}) {
    const auto limits = base::cgroup_limits(cgroups, root.path + "/cgroup");
    SHARDRUN_CHECK(!limits.memory_bytes || *limits.memory_bytes > 0);
    SHARDRUN_CHECK(!limits.cpus || *limits.cpus > 0.0);
  }
  (void)rank::memory_events_path(text, root.path);
  (void)rank::oom_kills(text);
}

// Each CPU that may be used is in one core.
void check_cores(const Root& root) {
  const std::vector<int> allowed = {0, 1, 2, 5, 1000};
  std::set<int> left(allowed.begin(), allowed.end());
  for (const rank::Core& core : rank::cores_of(allowed, root.path + "/devices"))
    for (const int cpu : core) SHARDRUN_CHECK(left.erase(cpu) == 1);
  SHARDRUN_CHECK(left.empty());
}

// Whatever a program is called, the numbers behind its name are read; the input is a name, too.
void check_process(const std::string& text) {
  (void)base::parse_process_stat(text);
  const auto named = base::parse_process_stat("7 (" + text +
                                              ") S 3 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 10 11 12 "
                                              "400 13 14 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 15 "
                                              "16 17 18 19 500 600 0\n");
  SHARDRUN_CHECK(named && named->state == 'S' && named->parent == 3 && named->flags == 4194560);
  SHARDRUN_CHECK(named->start_time == 99 && named->code_begin == 400);
  SHARDRUN_CHECK(named->environment == 500 && named->environment_end == 600);
  std::string written;
  const std::vector<pid_t> children = base::parse_children(text);
  for (const pid_t child : children) {
    SHARDRUN_CHECK(child > 0);
    written += std::to_string(child) + " ";
  }
  SHARDRUN_CHECK(base::parse_children(written) == children);
  SHARDRUN_CHECK(base::parse_resident_pages(text) >= 0);
}

// The interface is a word of the table; a port that is chosen is not the kernel's to give.
void check_network(const std::string& text) {
  const std::string name = ofi::default_route_interface(text);
  SHARDRUN_CHECK(name.find_first_of(" \t\n") == std::string::npos && text.find(name) != std::string::npos);
  const contract::PortRange kernels = contract::ports_in(text);
  SHARDRUN_CHECK(kernels.low >= 1 && kernels.low <= kernels.high && kernels.high <= 65535);
  const auto port = contract::choose_port(kernels, text.size(), [](uint16_t) { return true; });
  SHARDRUN_CHECK(port && *port >= 1024);
  const bool leaves_some = kernels.low > 10000 || kernels.high < 65535;
  SHARDRUN_CHECK(!leaves_some || *port < kernels.low || *port > kernels.high);
}

void check_facts(const Root& root, const std::string& text) {
  const auto facts = launcher::read_node_facts(root.path, text.substr(0, 64), root.path);
  SHARDRUN_CHECK(facts.memory_bytes >= 0);
  (void)launcher::judge_systems(facts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Root kRoot;
  const std::string text(reinterpret_cast<const char*>(data), size);
  kRoot.put(text);
  check_environment(text);
  check_limits(kRoot, text);
  check_cores(kRoot);
  check_process(text);
  check_network(text);
  check_facts(kRoot, text);
  if (const auto job = spank::find_option(spank::split_at_zeros(text)))
    (void)spank::absolute_spec(*job, "/home");
  return 0;
}

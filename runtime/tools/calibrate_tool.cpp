#include "runtime/tools/calibrate_tool.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/unix_time.h"
#include "runtime/contract/computing_thread.h"
#include "runtime/contract/exit_code.h"
#include "runtime/contract/rank_env.h"
#include "runtime/contract/rank_job.h"
#include "runtime/measure/block_times.h"
#include "runtime/measure/collective_times.h"
#include "runtime/measure/machine_rates.h"
#include "runtime/record/calibration.h"
#include "runtime/trainer/comm/world.h"

namespace shardrun::tools {
namespace {

using base::Result;
using record::Calibration;

// Returns the value behind "name:" in a file of /proc; "unknown" where there is none.
std::string value_of(const char* path, const std::string& name) {
  const auto text = base::read_file(path);
  if (!text) return "unknown";
  size_t at = text->find(name);
  if (at == std::string::npos) return "unknown";
  at = text->find(':', at);
  const size_t end = std::min(text->find('\n', at), text->size());
  const size_t begin = text->find_first_not_of(" \t", at + 1);
  return begin < end ? text->substr(begin, end - begin) : "unknown";
}

// What every rank says about where it runs.
struct Card {
  std::array<char, 64> boot{};  // boot id of the running kernel: nodes with the same one share a machine
  std::array<char, 256> node{};
  cpu_set_t cpus{};
};

constexpr int kOwnWindows =
    4;  // of the job's own blocks, each time: their times are taken as they are measured

class Calibrator {
 public:
  // own: the shape of the job's blocks, if they are measured.
  Calibrator(const contract::RankJob& job, std::string provider, bool only_network,
             const std::optional<record::StepProbe>& own)
      : job_(job), provider_(std::move(provider)), only_network_(only_network) {
    if (own && !only_network) own_.emplace(*own, kOwnWindows);
  }

  Result<void> run(const std::string& output) {
    ::omp_set_num_threads(std::max(1, job_.plan.cpus_per_rank));
    RETURN_IF_ERROR(connect());
    RETURN_IF_ERROR(describe());
    if (!only_network_) RETURN_IF_ERROR(measure_computing());
    RETURN_IF_ERROR(measure_network());
    // A minute after the first time: what disturbs a machine for seconds disturbs one of the two.
    if (own_) RETURN_IF_ERROR(measure_blocks(*own_));
    if (own_) c_.steps.push_back(own_->probe());
    if (job_.env.global_rank != 0) return {};
    return base::write_file_atomically(output, record::to_toml(c_));
  }

 private:
  void say(const std::string& what) const {
    if (job_.env.global_rank != 0) return;
    fmt::print("{}\n", what);
    std::fflush(stdout);
  }

  // Returns the CPUs that the node offers to its ranks: our supervisor is bound to no part of them.
  static cpu_set_t offered_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(::getppid(), sizeof(set), &set) != 0) ::sched_getaffinity(0, sizeof(set), &set);
    return set;
  }

  void want(const char* among, std::vector<uint32_t> group) {
    if (group.size() < 2) return;
    groups_.push_back(
        {.among = among,
         .nodes = job_.plan.nodes,
         .ranks = static_cast<int64_t>(group.size()),
         .only_replicas = std::string_view(among) == "network" && job_.plan.ranks_per_node > 1});
    members_.push_back(std::move(group));
  }

  Result<void> connect() {
    const auto mine = static_cast<uint32_t>(job_.env.global_rank);
    const auto per_node = static_cast<uint32_t>(job_.plan.ranks_per_node);
    const auto nodes = static_cast<uint32_t>(job_.plan.nodes);
    std::vector<uint32_t> node, network, all;
    for (uint32_t i = 0; i < per_node; ++i) node.push_back(mine / per_node * per_node + i);
    for (uint32_t i = 0; i < nodes; ++i) network.push_back(i * per_node + mine % per_node);
    for (uint32_t i = 0; i < nodes * per_node; ++i) all.push_back(i);
    want("node", std::move(node));
    want("network", std::move(network));
    if (nodes > 1 && per_node > 1) want("all", std::move(all));
    comm::WorldOptions options;
    options.plugin_path = job_.plan.comm_plugin(job_.spec.communication.plugin);
    options.provider = provider_;
    options.timeout = job_.spec.communication.timeout;
    options.groups = {{}};
    options.groups.insert(options.groups.end(), members_.begin(), members_.end());
    ASSIGN_OR_RETURN(auto world, comm::connect_world(options));
    world_ = std::move(world);
    for (size_t i = 0; i < groups_.size(); ++i) groups_[i].group = world_.communicators[i + 1].get();
    return {};
  }

  Result<void> describe() {
    Card mine;
    const auto boot = base::read_file("/proc/sys/kernel/random/boot_id");
    (boot ? *boot : job_.env.node_name).copy(mine.boot.data(), mine.boot.size() - 1);
    job_.env.node_name.copy(mine.node.data(), mine.node.size() - 1);
    mine.cpus = offered_cpus();
    ASSIGN_OR_RETURN(const auto cards, comm::gather_values(*world_.communicators.front(), std::vector{mine}));
    std::set<std::string> boots, nodes;
    cpu_set_t offered = mine.cpus;
    for (const Card& card : cards) {
      if (card.node == mine.node) CPU_OR(&offered, &offered, &card.cpus);
      boots.insert(card.boot.data());
      if (nodes.insert(card.node.data()).second) c_.node_names.emplace_back(card.node.data());
    }
    c_.machines = static_cast<int64_t>(boots.size());
    c_.cpus_per_node = CPU_COUNT(&offered);
    c_.nodes = job_.plan.nodes;
    c_.ranks_per_node = job_.plan.ranks_per_node;
    c_.cpus_per_rank = job_.plan.cpus_per_rank;
    c_.shardrun = SHARDRUN_VERSION;
    c_.plugin = world_.plugin_build_id.empty() ? "unknown" : world_.plugin_build_id;
    c_.provider = world_.provider.empty() ? "none" : world_.provider;
    c_.cpu = value_of("/proc/cpuinfo", "model name");
    c_.memory_bytes =
        static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
    return {};
  }

  Result<void> measure_computing() {
    comm::Communicator& all = *world_.communicators.front();
    const int cpus = std::max(1, job_.plan.cpus_per_rank);
    say("matrix products, memory, optimizer");
    ASSIGN_OR_RETURN(auto gemms, measure::time_products(all, cpus));
    c_.gemms = std::move(gemms);
    ASSIGN_OR_RETURN(auto memory, measure::time_memory(all, cpus));
    c_.memory_bytes_per_second = memory;
    ASSIGN_OR_RETURN(auto update, measure::time_update(all, cpus));
    c_.update_seconds_per_parameter = update;
    for (const record::StepProbe& shape : measure::probes_to_make()) {
      measure::BlockTimes times(shape, 1);
      RETURN_IF_ERROR(measure_blocks(times));
      c_.steps.push_back(times.probe());
    }
    if (own_) RETURN_IF_ERROR(measure_blocks(*own_));
    c_.measured_at = base::unix_now();
    return {};
  }

  Result<void> measure_blocks(measure::BlockTimes& times) {
    const record::StepProbe& shape = times.probe();
    say(fmt::format("steps of hidden {}, {} x {} tokens", shape.hidden, shape.micro_batch,
                    shape.sequence_length));
    return times.measure(*world_.communicators.front(), std::max(1, job_.plan.cpus_per_rank));
  }

  Result<void> measure_network() {
    auto probes = measure::time_collectives(*world_.communicators.front(), groups_,
                                            [&](const std::string& what) { say(what); });
    RETURN_IF_ERROR(probes);
    c_.collectives = std::move(*probes);
    c_.network_measured_at = base::unix_now();
    return {};
  }

  const contract::RankJob& job_;
  std::string provider_;
  bool only_network_;
  std::optional<measure::BlockTimes> own_;
  Calibration c_;
  std::vector<measure::CollectiveGroup> groups_;
  std::vector<std::vector<uint32_t>> members_;  // members of their communicators, in the same order
  comm::World world_;
};

// Returns the shape of these sizes; nothing where they are none.
std::optional<record::StepProbe> shape_of(std::span<char* const> sizes) {
  measure::ProbeSizes numbers{};
  if (sizes.size() != numbers.size()) return std::nullopt;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string_view text = sizes[i];
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), numbers[i]);
    if (failure != std::errc() || end != text.data() + text.size() || numbers[i] < 1) return std::nullopt;
  }
  return measure::probe_of(numbers);
}

}  // namespace

int run_calibrate_tool(std::span<char* const> arguments) {
  const std::string parts = arguments.size() >= 3 ? arguments[1] : "";
  const auto sizes = arguments.subspan(std::min<size_t>(arguments.size(), 3));
  const auto own = shape_of(sizes);
  if ((parts != "all" && parts != "network") || (!sizes.empty() && !own)) {
    std::fputs(
        "usage: shardrun-rank calibrate FILE all|network PROVIDER [MICRO_BATCH SEQUENCE_LENGTH HIDDEN HEADS "
        "KV_HEADS FFN VOCAB], started by shardrun\n",
        stderr);
    return contract::kExitBadInput;
  }
  contract::ask_for_long_slices();  // as the trainer, whose steps are predicted
  const auto job = contract::read_rank_job();
  const auto done = job ? Calibrator(*job, arguments[2], parts == "network", own).run(arguments[0])
                        : Result<void>(job.error());
  if (done) return contract::kExitDone;
  fmt::print(stderr, "shardrun-rank: calibrate: {}\n", done.error().to_string());
  return done.error().code() == base::Code::kRefused ? contract::kExitRefused : contract::kExitInfrastructure;
}

}  // namespace shardrun::tools

#include "launcher/cluster/pcluster_command.h"

#include <sys/wait.h>

#include <fmt/format.h>

#include "runtime/base/command.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr int kSecondsBetweenWords = 10;
constexpr int kMostPages = 100;

std::vector<std::string> command(std::vector<std::string> argv, const PclusterCall& call) {
  argv.insert(argv.begin(), "pcluster");
  if (!call.region.empty()) argv.insert(argv.end(), {"--region", call.region});
  return argv;
}

}  // namespace

std::vector<std::string> create_command(const std::string& name, const std::string& configuration,
                                        const PclusterCall& call) {
  return command({"create-cluster", "--cluster-name", name, "--cluster-configuration", configuration}, call);
}

std::vector<std::string> describe_command(const std::string& name, const PclusterCall& call) {
  return command({"describe-cluster", "--cluster-name", name}, call);
}

std::vector<std::string> delete_command(const std::string& name, const PclusterCall& call) {
  return command({"delete-cluster", "--cluster-name", name}, call);
}

std::vector<std::string> update_command(const std::string& name, const std::string& configuration,
                                        const PclusterCall& call) {
  return command({"update-cluster", "--cluster-name", name, "--cluster-configuration", configuration}, call);
}

std::vector<std::string> fleet_command(const std::string& name, bool start, const PclusterCall& call) {
  return command({"update-compute-fleet", "--cluster-name", name, "--status",
                  start ? "START_REQUESTED" : "STOP_REQUESTED"},
                 call);
}

std::vector<std::string> logs_command(const std::string& name, const std::string& bucket,
                                      const PclusterCall& call) {
  return command({"export-cluster-logs", "--cluster-name", name, "--bucket", bucket}, call);
}

std::vector<std::string> ssh_command(const std::string& name, const std::string& key_file,
                                     const std::vector<std::string>& words, const PclusterCall& call) {
  std::vector<std::string> argv = command({"ssh", "--cluster-name", name}, call);
  if (!key_file.empty()) argv.insert(argv.end(), {"-i", key_file});
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

Result<std::string> call_pcluster(const std::vector<std::string>& argv, const std::string& cluster,
                                  const PclusterCall& call) {
  int seconds = 0;
  const auto tick = [&] {
    if (++seconds % kSecondsBetweenWords == 0 && call.waiting) call.waiting(seconds);
    return true;
  };
  auto answer = base::finish_command(argv, "", call.limit, tick);
  if (!answer) {
    if (answer.error().code() == Code::kNotFound)
      return Error(
          Code::kNotFound,
          "the pcluster command is not installed; install it with `pip install aws-parallelcluster`");
    if (answer.error().code() == Code::kTimeout)
      return Error(
          Code::kTimeout,
          fmt::format(
              "pcluster {} did not answer within {} s and was ended; what it asked for may be under way: "
              "look with `shardrun cluster list`",
              argv.at(1), call.limit.count()));
    return std::move(answer).error();
  }
  if (WIFEXITED(answer->status) && WEXITSTATUS(answer->status) == 0) return std::move(answer->out);
  return explain_refusal(answer->out.empty() ? answer->err : answer->out, cluster);
}

Result<std::vector<ClusterState>> list_clusters(const PclusterCall& call) {
  std::vector<ClusterState> all;
  std::string token;
  for (int page = 0; page < kMostPages; ++page) {
    std::vector<std::string> argv = {"list-clusters"};
    if (!token.empty()) argv.insert(argv.end(), {"--next-token", token});
    ASSIGN_OR_RETURN(auto text, call_pcluster(command(argv, call), "", call));
    ASSIGN_OR_RETURN(auto list, parse_cluster_list(text));
    all.insert(all.end(), list.clusters.begin(), list.clusters.end());
    token = list.next_token;
    if (token.empty()) return all;
  }
  return Error(Code::kCorrupt, fmt::format("pcluster list-clusters has more than {} pages", kMostPages));
}

}  // namespace shardrun::launcher

// Calls the installed pcluster command by its argv, never through a shell, with a time limit.
//
// Thread rule: thread-compatible; each call starts a process and waits for it.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/cluster/pcluster_answer.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct PclusterCall {
  std::string region;  // if it is empty, AWS's own configuration decides
  std::chrono::seconds limit{300};
  std::function<void(int seconds)> waiting;  // called about every ten seconds of a slow answer; may be empty
};

// Return the argument vectors, as --dry-run shows them.
std::vector<std::string> create_command(const std::string& name, const std::string& configuration,
                                        const PclusterCall& call);
std::vector<std::string> describe_command(const std::string& name, const PclusterCall& call);
std::vector<std::string> delete_command(const std::string& name, const PclusterCall& call);
std::vector<std::string> update_command(const std::string& name, const std::string& configuration,
                                        const PclusterCall& call);
// Starts the compute nodes or stops them, which some updates need.
std::vector<std::string> fleet_command(const std::string& name, bool start, const PclusterCall& call);
// Logs of all nodes, also of those that are gone, become an archive in the bucket.
std::vector<std::string> logs_command(const std::string& name, const std::string& bucket,
                                      const PclusterCall& call);
// A shell on the head node, or `words` there, with the key in a file, which may be empty.
std::vector<std::string> ssh_command(const std::string& name, const std::string& key_file,
                                     const std::vector<std::string>& words, const PclusterCall& call);

// Returns what the command printed when it ended well. Errors: kNotFound if no pcluster is installed; kTimeout
// after `limit`; and those of explain_refusal(). They name `cluster`.
base::Result<std::string> call_pcluster(const std::vector<std::string>& argv, const std::string& cluster,
                                        const PclusterCall& call);

// Returns every cluster of the region, page after page.
base::Result<std::vector<ClusterState>> list_clusters(const PclusterCall& call);

}  // namespace shardrun::launcher

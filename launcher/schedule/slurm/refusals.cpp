#include "launcher/schedule/slurm/refusals.h"

#include <fmt/format.h>

#include "runtime/spec/toml_value.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;

struct Refusal {
  const char* words;  // of sbatch
  const char* key;    // that asks for it; "": none
  const char* what;
  const char* mend;
};

// The words are those of slurm_strerror() and sbatch, which have been the same since Slurm 20.
constexpr Refusal kRefusals[] = {
    {"Could not establish a configuration source", "", "this machine belongs to no Slurm cluster",
     "submit on a login node, name one with --host, or run the job here with `shardrun run`"},
    {"Unable to contact slurm controller", "", "Slurm's controller does not answer",
     "try again; `scontrol ping` says whether it is up"},
    {"invalid partition specified", "resources.partition", "Slurm has no such partition",
     "write one that `sinfo -s` lists"},
    {"not permitted to use this partition", "resources.partition", "you may not use this partition",
     "write another one that `sinfo -s` lists"},
    {"No partition specified or system default", "resources.partition",
     "the cluster has no default partition", "write [resources] partition, one that `sinfo -s` lists"},
    {"Invalid account", "resources.account", "Slurm does not know you under this account",
     "write one that `sacctmgr show associations user=$USER` lists"},
    {"Invalid qos", "slurm.qos", "Slurm has no such QOS for you",
     "write one that `sacctmgr show associations user=$USER` lists"},
    {"time limit is invalid", "resources.time_limit",
     "the partition allows no job this long, or none without a limit",
     "write a time_limit up to that of `sinfo -o '%P %l'`"},
    {"Node count specification invalid", "resources.nodes", "the partition gives no job this many nodes",
     "write fewer: `sinfo -o '%P %D'` counts them"},
    {"Requested node configuration is not available", "resources.nodes",
     "no nodes of the cluster have what the job asks for",
     "lower nodes, ranks_per_node × cpus_per_rank or gpus_per_node: `sinfo -o '%P %D %c %m %G'` lists nodes, "
     "CPUs, memory "
     "and GPUs"},
    {"Requested partition configuration not available", "resources.nodes",
     "the partition has not as many nodes, or allows no job this long",
     "ask for fewer nodes or less time: `sinfo -o '%P %D %l'` lists both"},
    {"More processors requested than permitted", "resources.nodes",
     "the job asks for more CPUs than it may have", "lower nodes, ranks_per_node or cpus_per_rank"},
    {"Memory specification can not be satisfied", "slurm.mem", "no node has this much memory",
     "write less: `sinfo -o '%P %m'` lists MiB"},
    {"Invalid feature specification", "resources.constraint", "no node has this feature",
     "write one that `sinfo -o '%P %f'` lists"},
    {"Invalid generic resource", "resources.gpus_per_node", "no node has these GPUs or generic resources",
     "write what `sinfo -o '%P %G'` lists"},
    {"Invalid node name specified", "slurm.nodelist", "the cluster has no node of this name",
     "write names that `sinfo -N` lists"},
    {"Requested reservation is invalid", "slurm.reservation", "there is no such reservation for you",
     "write one that `scontrol show reservations` lists"},
    {"Job dependency problem", "slurm.dependency", "Slurm knows no such job to wait for",
     "name jobs that `squeue --me` lists"},
    {"violates accounting/QOS policy", "slurm.qos", "the job asks for more than your account or QOS allows",
     "ask for fewer nodes or less time"},
};

struct Reason {
  const char* name;
  const char* meaning;
};
constexpr Reason kReasons[] = {
    {"PartitionNodeLimit", "its partition gives no job this many nodes; cancel it and ask for fewer"},
    {"PartitionTimeLimit", "its partition allows no job this long; cancel it and lower time_limit"},
    {"BadConstraints", "no node has what it asks for; cancel it"},
    {"DependencyNeverSatisfied", "what it waits for did not end well; cancel it"},
    {"ReqNodeNotAvail", "a node that it needs is down or reserved"},
    {"PartitionDown", "its partition is down"},
    {"PartitionInactive", "its partition is inactive"},
    {"AssocMaxNodePerJobLimit", "your account allows no job this many nodes; cancel it and ask for fewer"},
    {"QOSMaxNodePerJobLimit", "your QOS allows no job this many nodes; cancel it and ask for fewer"},
    {"AccountNotAllowed", "your account may not use its partition; cancel it"},
    {"launch_failed_requeued_held",
     "it could not be started, and is held; slurmd's log on the node has the reason"},
    {"JobHeldUser", "it is held; `scontrol release` it"},
    {"JobHeldAdmin", "an administrator holds it"},
};

}  // namespace

Error explain_refusal(const spec::JobSpec& spec, const Error& refusal) {
  const std::string said = refusal.to_string();
  if (refusal.code() == Code::kNotFound) {
    return Error(Code::kNotFound,
                 "there is no sbatch on this machine; submit on a login node of the cluster, name one with "
                 "--host, or run the job here with `shardrun run`");
  }
  for (const Refusal& one : kRefusals) {
    if (said.find(one.words) == std::string::npos) continue;
    const std::string key = one.key;
    const std::string place = key.empty() ? "" : spec.origin(key) + ": ";
    return Error(key.empty() ? refusal.code() : Code::kInvalid,
                 fmt::format("{}{}; {} (Slurm: {})", place, one.what, one.mend, one.words));
  }
  return refusal;
}

std::string meaning_of_reason(const std::string& reason) {
  for (const Reason& one : kReasons) {
    if (reason == one.name) return one.meaning;
  }
  return "";
}

}  // namespace shardrun::launcher

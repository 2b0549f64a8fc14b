// Jobs in a Kubernetes cluster that `shardrun render` made: what kubectl is asked about them, and what it answers. They are found
// by their name among the kinds that we render.
//
// Thread rule: pure functions, but for find_kubernetes_job(), which starts kubectl and waits for it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

struct KubernetesJob {
  std::string kind;  // "MPIJob", "PyTorchJob" or "TrainJob"
  std::string name, name_space;
  std::string state;    // the newest condition that holds, e.g. "Running"; "Waiting" where there is none yet
  std::string message;  // of that condition; may be empty
  std::string started, ended;  // as Kubernetes writes times; empty: not yet
};

// Asks for each kind until one has the name. Errors: kNotFound (no such job, no kubectl), those of kubectl in its words.
base::Result<KubernetesJob> find_kubernetes_job(const std::string& name, const std::string& name_space);

// Parses what `kubectl get … -o json` prints of a job. Errors: kCorrupt.
base::Result<KubernetesJob> parse_kubernetes_job(std::string_view json);

// Return argument vectors. Logs are those of the conductor of an MPIJob, and of all pods of the others.
std::vector<std::string> kubernetes_logs_command(const KubernetesJob& job, bool follow);
// Pods get SIGTERM and their grace period, in which the trainer writes a checkpoint.
std::vector<std::string> kubernetes_cancel_command(const KubernetesJob& job);

std::string kubernetes_text(const KubernetesJob& job);

}  // namespace shardrun::launcher

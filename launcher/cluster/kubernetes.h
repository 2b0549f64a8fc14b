// Renders a job for Kubernetes: as an MPIJob (kubeflow.org/v2beta1) or a PyTorchJob (kubeflow.org/v1), with its
// job.toml in a ConfigMap.
//
// MPIJob: the launcher pod is the conductor. It runs `shardrun run` with scheduler = "mpirun", so ranks bootstrap
// through PMIx and logs, verdict and record are those of any run, in the shared folder. PyTorchJob: torchrun starts the
// command on every pod, from what the training operator puts into its environment; nothing of shardrun runs there.
//
// Source: the CRDs of kubeflow/mpi-operator and of kubeflow/training-operator 1.9; EFA and huge pages as in
// https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/cluster/catalogue.h"
#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// kAuto makes a command a PyTorchJob and the trainer an MPIJob.
enum class KubernetesKind { kAuto, kMpiJob, kPyTorchJob };

struct KubernetesOptions {
  KubernetesKind kind = KubernetesKind::kAuto;
  // An image with shardrun and Open MPI's mpirun and sshd, or with the command and torchrun; empty: the one of
  // [container], where that is in a registry.
  std::string image;
  std::string name_space = "default";
  std::string claim;           // a PersistentVolumeClaim that all pods may write
  std::string mount = "/fsx";  // where it is mounted, and where the job runs
};

// `job_text` is job.toml; `instance` may be null, and then pods ask for the ranks' CPUs and nothing else. Errors:
// kInvalid, at the place of what Kubernetes or that kind cannot have.
base::Result<std::string> render_kubernetes(const spec::JobSpec& spec, const std::string& job_text,
                                            const record::LaunchPlan& plan, const Instance* instance,
                                            const KubernetesOptions& options);

}  // namespace shardrun::launcher

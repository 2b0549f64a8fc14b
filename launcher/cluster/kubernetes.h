// Renders a job for Kubernetes: as an MPIJob (kubeflow.org/v2beta1) with its job.toml in a ConfigMap, as a PyTorchJob
// (kubeflow.org/v1) or as a TrainJob (trainer.kubeflow.org/v1alpha1).
//
// MPIJob: the launcher pod is the conductor. It runs `shardrun run` with scheduler = "mpirun", so ranks bootstrap
// through PMIx and logs, verdict and record are those of any run, in the shared folder. PyTorchJob: torchrun starts the
// command on every pod, from what the training operator puts into its environment; nothing of shardrun runs there. With
// min_nodes they meet through torchrun's own c10d rendezvous in the first pod, and no etcd is needed. TrainJob: the same by
// Kubeflow Trainer 2, whose runtime decides about restarts and which has no elastic jobs.
//
// Source: the CRDs of kubeflow/mpi-operator, of kubeflow/training-operator 1.9 and of kubeflow/trainer 2.3; the queue is
// Kueue's label (https://kueue.sigs.k8s.io/docs/tasks/run/); EFA and huge pages as in
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
enum class KubernetesKind { kAuto, kMpiJob, kPyTorchJob, kTrainJob };

struct KubernetesOptions {
  KubernetesKind kind = KubernetesKind::kAuto;
  // An image with shardrun and Open MPI's mpirun and sshd, or with the command and torchrun; empty: the one of
  // [container], where that is in a registry.
  std::string image;
  std::string name_space = "default";
  std::string claim;           // a PersistentVolumeClaim that all pods may write
  std::string mount = "/fsx";  // where it is mounted, and where the job runs
  std::string queue;           // a LocalQueue of Kueue that starts the job when all of it fits; empty: none
  std::string runtime =
      "torch-distributed";  // of a TrainJob: a ClusterTrainingRuntime whose pods have a container "node"
};

// `job_text` is job.toml; `instance` may be null, and then pods ask for the ranks' CPUs and nothing else. Errors:
// kInvalid, at the place of what Kubernetes or that kind cannot have.
base::Result<std::string> render_kubernetes(const spec::JobSpec& spec, const std::string& job_text,
                                            const record::LaunchPlan& plan, const Instance* instance,
                                            const KubernetesOptions& options);

}  // namespace shardrun::launcher

#!/bin/bash
# What jobs of shardrun need in a Kubernetes cluster beyond what eksctl puts there: the operators, at the versions that its
# manifests were checked against (tests/peers/schemas), and the device plugins. Needs kubectl and helm, and a context that names
# the cluster. Running it again changes nothing.
#
#   eks-setup.sh [--v1] [--kueue] [--nvidia] [--neuron] [--dry-run]
#     --v1        Kubeflow's training operator 1.9, for `shardrun render --kind pytorchjob`
#     --kueue     Kueue, for `shardrun render --queue`; queues and quotas are yours to make
#     --nvidia    NVIDIA's device plugin, in a cluster that eksctl has not made
#     --neuron    the device plugin of Trainium
#     --dry-run   print the commands, run none
# Exit: 0 done, 1 a step failed, 2 an unknown option.
set -euo pipefail

readonly mpi_operator=v0.8.0 trainer=2.3.0 training_operator=v1.9.4 kueue=v0.14.2 nvidia_plugin=0.17.4 neuron_chart=1.10.0

v1=no with_kueue=no nvidia=no neuron=no dry_run=no
for option; do
  case $option in
    --v1) v1=yes ;;
    --kueue) with_kueue=yes ;;
    --nvidia) nvidia=yes ;;
    --neuron) neuron=yes ;;
    --dry-run) dry_run=yes ;;
    *) echo "eks-setup.sh: unknown option $option; see the head of the script" >&2; exit 2 ;;
  esac
done

run() {
  if [ "$dry_run" = yes ]; then
    printf '+ %s\n' "$*"
  else
    "$@" || { echo "eks-setup.sh: failed: $*" >&2; exit 1; }
  fi
}

chart() { # RELEASE NAMESPACE VERSION CHART...
  run helm upgrade --install "$1" --namespace "$2" --create-namespace --version "$3" "${@:4}"
}

# MPIJobs: the built-in trainer, and commands under shardrun's conductor.
run kubectl apply --server-side -f "https://raw.githubusercontent.com/kubeflow/mpi-operator/$mpi_operator/deploy/v2beta1/mpi-operator.yaml"
# TrainJobs, with the runtime torch-distributed.
chart kubeflow-trainer kubeflow-system "$trainer" oci://ghcr.io/kubeflow/charts/kubeflow-trainer --set runtimes.defaultEnabled=true
if [ "$v1" = yes ]; then
  run kubectl apply --server-side -k "github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=$training_operator"
fi
if [ "$with_kueue" = yes ]; then
  run kubectl apply --server-side -f "https://github.com/kubernetes-sigs/kueue/releases/download/$kueue/manifests.yaml"
fi
if [ "$nvidia" = yes ]; then
  chart nvidia-device-plugin nvidia-device-plugin "$nvidia_plugin" nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin
fi
if [ "$neuron" = yes ]; then
  chart neuron-helm-chart kube-system "$neuron_chart" oci://public.ecr.aws/neuron/neuron-helm-chart
fi

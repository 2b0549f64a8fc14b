#!/bin/bash
# What shardrun renders for AWS ParallelCluster, Kubernetes and eksctl, and its network for CloudFormation, against their own
# schemas: makes build/peers-cluster/venv (300 MB), then runs kubernetes_schemas.py, cluster_schemas.py and cfn-lint.
# Nothing that shardrun builds or tests needs it. Some minutes.
#
#   tests/peers/cluster_schemas.sh [BIN_DIR]       default: build/release/bin
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$(readlink -f "${1:-build/release/bin}")
venv=build/peers-cluster/venv

packages=(
  aws-parallelcluster==3.16.1
  kubernetes-validate==1.37.0
  jsonschema==4.26.0
  cfn-lint==1.58.0
)

mkdir -p build/peers-cluster
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "${packages[@]}"
"$venv/bin/python" tests/peers/kubernetes_schemas.py "$bin/shardrun"
"$venv/bin/python" tests/peers/cluster_schemas.py "$bin/shardrun"
# cfn-lint brings CloudFormation's own schema of each resource.
"$venv/bin/cfn-lint" --regions us-east-1 -- cluster-configs/network.yaml
echo "network.yaml: as CloudFormation wants it"

#!/bin/bash
# OnNodeConfigured of AWS ParallelCluster: what shardrun's jobs need beyond the ParallelCluster image, which brings Slurm,
# PMIx, EFA and the NVIDIA driver. Runs as root on every node; running it again changes nothing. Upload it to a bucket and
# name it in [on_node_configured] (docs/clusters.md).
#
#   on-node.sh [--neuron] [--shardrun DIR] [--dry-run] [--root DIR]
#     --neuron        AWS Neuron's driver, runtime and collectives, for Trainium; on the head node its compiler, too
#     --shardrun DIR  where shardrun is installed on a shared file system (default /fsx/shardrun): goes into PATH
#     --dry-run       print what would be done, do nothing
#     --root DIR      write files below DIR in the place of /; for tests
# Exit: 0 done, 1 a step failed (ParallelCluster then replaces the node), 2 an unknown option or system.
set -euo pipefail

neuron=no dry_run=no root='' shardrun=/fsx/shardrun
while [ $# -gt 0 ]; do
  case $1 in
    --neuron) neuron=yes ;;
    --dry-run) dry_run=yes ;;
    --shardrun | --root)
      [ $# -ge 2 ] || { echo "on-node.sh: $1 needs a folder" >&2; exit 2; }
      if [ "$1" = --root ]; then root=$2; else shardrun=$2; fi
      shift
      ;;
    *) echo "on-node.sh: unknown option $1; see the head of the script" >&2; exit 2 ;;
  esac
  shift
done

say() { printf 'on-node.sh: %s\n' "$*"; }

# run COMMAND...: does it, or says that it would.
run() {
  if [ "$dry_run" = yes ]; then
    printf '+ %s\n' "$*"
  else
    "$@" || { say "failed: $*" >&2; exit 1; }
  fi
}

# retry COMMAND...: three tries, because hundreds of nodes ask the mirrors at once.
retry() {
  if [ "$dry_run" = yes ]; then
    run "$@"
    return
  fi
  local try
  for try in 1 2 3; do
    if "$@"; then return; fi
    say "try $try failed: $*" >&2
    sleep $((try * 10))
  done
  exit 1
}

# put FILE: its standard input, below the root.
put() {
  local file=$root$1
  if [ "$dry_run" = yes ]; then
    printf '+ write %s\n' "$1"
    sed 's/^/    /'
  else
    mkdir -p "$(dirname "$file")"
    cat >"$file.new"
    mv "$file.new" "$file"
  fi
}

# of_system KEY: a value of os-release.
of_system() {
  local file=$root/etc/os-release
  [ -r "$file" ] || file=/etc/os-release
  sed -n "s/^$1=//p" "$file" | tr -d '"'
}

node_type() { # HeadNode, ComputeFleet or LoginNode; none outside of ParallelCluster
  local file=$root/etc/parallelcluster/cfnconfig
  if [ -r "$file" ]; then sed -n 's/^cfn_node_type=//p' "$file"; fi
}

id=$(of_system ID)
case $id in
  debian | ubuntu) family=apt ;;
  amzn | rhel | rocky | centos) family=dnf ;;
  *) echo "on-node.sh: neither Debian's nor Red Hat's kind of system: $id" >&2; exit 2 ;;
esac
type=$(node_type)
say "$id, ${type:-no ParallelCluster node}"

install_packages() {
  if [ "$family" = apt ]; then
    retry env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 install --no-install-recommends "$@"
  else
    retry dnf -q -y install "$@"
  fi
}

# What shardrun-rank is linked with, beside PMIx and libfabric.
libraries() {
  if [ "$family" = apt ]; then
    retry apt-get -q -o DPkg::Lock::Timeout=600 update
    install_packages libdnnl-dev libhwloc15 libfmt-dev libsentencepiece-dev libutf8proc-dev libpmix2
  else
    say "no packages of oneDNN here: install shardrun with its libraries in $shardrun/lib"
    install_packages hwloc-libs utf8proc
  fi
}

# RDMA and large models lock much memory and open many files; Slurm's daemons take their limits from systemd.
limits() {
  put /etc/security/limits.d/90-shardrun.conf <<'END'
* soft memlock unlimited
* hard memlock unlimited
* soft nofile 1048576
* hard nofile 1048576
END
  put /etc/systemd/system/slurmd.service.d/90-shardrun.conf <<'END'
[Service]
LimitMEMLOCK=infinity
LimitNOFILE=1048576
END
}

# Ports that jobs listen on are kept from being anybody's outgoing port; the huge pages are libfabric's.
kernel() {
  put /etc/sysctl.d/90-shardrun.conf <<'END'
net.ipv4.ip_local_reserved_ports = 2022,29400-29500,48620
vm.nr_hugepages = 5128
vm.max_map_count = 1048576
END
  [ -n "$root" ] || run sysctl -q -p /etc/sysctl.d/90-shardrun.conf
}

paths() {
  put /etc/profile.d/shardrun.sh <<END
PATH=$shardrun/bin:/opt/amazon/efa/bin:\$PATH
LD_LIBRARY_PATH=$shardrun/lib:/opt/amazon/efa/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export PATH LD_LIBRARY_PATH
END
}

# https://awsdocs-neuron.readthedocs-hosted.com/en/latest/general/setup/
neuron_packages() {
  if [ "$family" = apt ]; then
    local codename
    codename=$(of_system VERSION_CODENAME)
    install_packages ca-certificates curl gnupg
    retry curl -fsSL -o "$root/etc/apt/trusted.gpg.d/neuron.asc" https://apt.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB
    put /etc/apt/sources.list.d/neuron.list <<END
deb https://apt.repos.neuron.amazonaws.com $codename main
END
    retry apt-get -q -o DPkg::Lock::Timeout=600 update
    install_packages "linux-headers-$(uname -r)"
  else
    put /etc/yum.repos.d/neuron.repo <<'END'
[neuron]
name=Neuron YUM Repository
baseurl=https://yum.repos.neuron.amazonaws.com
enabled=1
gpgcheck=1
gpgkey=https://yum.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB
END
    install_packages "kernel-devel-$(uname -r)" "kernel-headers-$(uname -r)"
  fi
  install_packages aws-neuronx-dkms aws-neuronx-collectives aws-neuronx-runtime-lib aws-neuronx-tools
  if [ "$type" = HeadNode ]; then
    run python3 -m venv /opt/neuron
    retry /opt/neuron/bin/pip install -q --extra-index-url https://pip.repos.neuron.amazonaws.com torch-neuronx neuronx-cc
  fi
}

# A compute node that lost its EFA is better replaced now than found by a job.
efa_is_there() {
  if [ "$type" != ComputeFleet ] || [ ! -d /sys/class/infiniband ]; then return; fi
  run /opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM
}

libraries
limits
kernel
paths
if [ "$neuron" = yes ]; then neuron_packages; fi
efa_is_there
say 'done'

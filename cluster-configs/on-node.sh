#!/bin/bash
# OnNodeConfigured of AWS ParallelCluster: what shardrun's jobs need beyond the ParallelCluster image, which brings Slurm,
# PMIx, EFA and the NVIDIA driver. Runs as root on every node; running it again changes nothing. Upload it to a bucket and
# name it in [on_node_configured] (docs/clusters.md).
#
#   on-node.sh [--neuron] [--bundle WHERE [--sha256 HASH]] [--shardrun DIR] [--dry-run] [--root DIR]
#     --neuron        AWS Neuron's driver, runtime and collectives, for Trainium; on the head node its compiler, too
#     --bundle WHERE  shardrun's archive (docs/install.md), as s3://…, https://… or a path: the first node that comes unpacks it on
#                     the shared file system, beside DIR in a folder named by its hash, and makes DIR a link to that. Others, and
#                     later runs, find it there. Another bundle becomes another folder; jobs go on with the one they began with
#     --sha256 HASH   the archive's hash; without it, WHERE.sha256 is read, which finds damage but no exchange
#     --shardrun DIR  where shardrun is installed on a shared file system (default /fsx/shardrun): goes into PATH
#     --dry-run       print what would be done, do nothing
#     --root DIR      write files below DIR in the place of /; for tests
# Exit: 0 done, 1 a step failed (ParallelCluster then replaces the node), 2 an unknown option or system.
set -euo pipefail

neuron=no dry_run=no root='' shardrun=/fsx/shardrun bundle='' sha256=''
while [ $# -gt 0 ]; do
  case $1 in
    --neuron) neuron=yes ;;
    --dry-run) dry_run=yes ;;
    --shardrun | --root | --bundle | --sha256)
      [ $# -ge 2 ] || { echo "on-node.sh: $1 needs a value" >&2; exit 2; }
      case $1 in
        --root) root=$2 ;;
        --shardrun) shardrun=$2 ;;
        --bundle) bundle=$2 ;;
        --sha256) sha256=$2 ;;
      esac
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

# put FILE: its standard input, below the root, where that is not what it has.
put() {
  local file=$root$1 text
  if [ "$dry_run" = yes ]; then
    printf '+ write %s\n' "$1"
    sed 's/^/    /'
  else
    text=$(cat)
    if [ -f "$file" ] && [ "$(cat "$file")" = "$text" ]; then return; fi
    mkdir -p "$(dirname "$file")"
    printf '%s\n' "$text" >"$file.new"
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

# fetch FROM TO
fetch() {
  case $1 in
    s3://*) retry aws s3 cp --only-show-errors "$1" "$2" ;;
    https://*) retry curl -fsSL -o "$2" "$1" ;;
    *) run cp "$1" "$2" ;;
  esac
}

# point_to FOLDER: $shardrun becomes a link to it, from one moment to the next.
point_to() {
  local link=$root$shardrun
  [ "$(readlink "$link" 2>/dev/null)" != "${1##*/}" ] || return 0
  if [ -e "$link" ] && [ ! -L "$link" ]; then
    say "$shardrun is there and no link to a bundle; move it away, or name another place with --shardrun" >&2
    exit 1
  fi
  run ln -s "${1##*/}" "$part/link"
  run mv -T "$part/link" "$link"
}

# Puts the bundle on the shared file system. It is unpacked in a folder of this node's own, which then gets its name: nobody sees
# half a bundle, and of two nodes that come at once the second finds that of the first.
put_bundle() {
  local name folder is_new=no
  part=$root$shardrun.${HOSTNAME:-node}.$$.part
  trap 'rm -rf "$part"' EXIT
  run rm -rf "$part"
  run mkdir -p "$part"
  name=$part/${bundle##*/}
  if [ -z "$sha256" ]; then
    fetch "$bundle.sha256" "$name.sha256"
    if [ "$dry_run" = yes ]; then sha256=HASH; else read -r sha256 _ <"$name.sha256" || true; fi  # no newline at its end
  fi
  [[ $sha256 =~ ^([0-9a-f]{64}|HASH)$ ]] || { say "no sha256 of $bundle: '$sha256'" >&2; exit 1; }
  folder=$root$shardrun-${sha256:0:16}
  if [ ! -x "$folder/bin/shardrun" ]; then
    is_new=yes
    fetch "$bundle" "$name"
    if [ "$dry_run" = no ] && ! sha256sum -c --status <<<"$sha256  $name"; then
      say "$bundle is damaged or another one: its sha256 is not $sha256; upload it again" >&2
      exit 1
    fi
    run mkdir "$part/unpacked"
    run tar -xJf "$name" -C "$part/unpacked" --strip-components=1 --no-same-owner
    if [ "$dry_run" = yes ]; then
      run mv -T "$part/unpacked" "$folder"
    elif ! mv -T "$part/unpacked" "$folder" 2>/dev/null && [ ! -x "$folder/bin/shardrun" ]; then
      say "$folder is there and has no bundle; remove it" >&2
      exit 1
    fi
  fi
  # Where the link leads since this bundle was unpacked is somebody's choice, which a node that starts later leaves alone.
  if [ "$is_new" = yes ] || [ ! -x "$root$shardrun/bin/shardrun" ]; then point_to "$folder"; fi
  run rm -rf "$part"
}

# What shardrun-rank is linked with, beside PMIx and libfabric. A bundle brings its own, and is unpacked by xz.
libraries() {
  if [ -n "$bundle" ]; then
    command -v xz >/dev/null || install_packages "$([ "$family" = apt ] && echo xz-utils || echo xz)"
  elif [ "$family" = apt ]; then
    retry apt-get -q -o DPkg::Lock::Timeout=600 update
    install_packages libdnnl-dev libfmt-dev libsentencepiece-dev libutf8proc-dev libpcre2-8-0 libpmix2
  else
    say "no packages of oneDNN here: install shardrun with its libraries in $shardrun/lib"
    install_packages utf8proc pcre2
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

# Ports that jobs listen on are kept from being anybody's outgoing port; the huge pages are libfabric's on EFA. A node of a large
# job speaks to every other one: by default a kernel remembers 1,024 neighbours, and drops packets to more.
kernel() {
  put /etc/sysctl.d/90-shardrun.conf <<'END'
net.ipv4.ip_local_reserved_ports = 2022,29400-29500,48620
net.ipv4.neigh.default.gc_thresh1 = 0
net.ipv4.neigh.default.gc_thresh2 = 15360
net.ipv4.neigh.default.gc_thresh3 = 16384
vm.max_map_count = 1048576
END
  [ -n "$root" ] || run sysctl -q -p /etc/sysctl.d/90-shardrun.conf
  # 10 GiB, which a login node may not have.
  if [ "$type" = ComputeFleet ] && compgen -G "$root/sys/class/infiniband/*" >/dev/null; then
    put /etc/sysctl.d/91-shardrun-efa.conf <<<'vm.nr_hugepages = 5128'
    [ -n "$root" ] || run sysctl -q -p /etc/sysctl.d/91-shardrun-efa.conf
  fi
}

# The libraries of a bundle are for its own programs, which find them by themselves.
paths() {
  local libraries=$shardrun/lib:
  [ -z "$bundle" ] || libraries=
  put /etc/profile.d/shardrun.sh <<END
PATH=$shardrun/bin:/opt/amazon/efa/bin:\$PATH
LD_LIBRARY_PATH=$libraries/opt/amazon/efa/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
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
    # Beside shardrun, where all nodes see it; the jobs' [program] setup activates it.
    if [ "$family" = apt ]; then install_packages python3-venv; fi
    run python3 -m venv "${shardrun%/*}/neuron"
    retry "${shardrun%/*}/neuron/bin/pip" install -q --extra-index-url https://pip.repos.neuron.amazonaws.com torch-neuronx neuronx-cc
  fi
}

# A compute node that lost its EFA is better replaced now than found by a job.
efa_is_there() {
  if [ "$type" != ComputeFleet ] || [ ! -d /sys/class/infiniband ]; then return; fi
  run /opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM
}

libraries
if [ -n "$bundle" ]; then put_bundle; fi
limits
kernel
paths
if [ "$neuron" = yes ]; then neuron_packages; fi
efa_is_there
say 'done'

#!/bin/bash
# PyTorch DDP (gloo, CPU) unchanged under shardrun: on 1, 2 and 4 nodes of the virtual cluster, and unevenly on 5 ranks.
# All must follow the losses of one process under torchrun within 1e-5. Prints the differences; about two and a half minutes.
# Needs tests/peers/install.sh, root, and a built shardrun. Nodes have a /tmp of their own: with a venv below /tmp, set
# VCLUSTER_KEEP to its folder.
#
#   tests/cluster/vcluster run 4 -- tests/peers/ddp_nodes.sh [BIN_DIR] [VENV]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
shardrun=$(readlink -f "${1:-$root/build/release/bin}")/shardrun
venv=$(cd "${2:-$root/build/peers/venv}" && pwd)
work=$(mktemp -d "$PWD/ddp_nodes.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

"$venv/bin/torchrun" --standalone --nproc-per-node 1 "$root/tests/peers/ddp.py" >alone.json 2>alone.err ||
  { cat alone.err; exit 1; }
# on NODES RANKS_PER_NODE UNEVEN
on() {
  cat >ddp.toml <<EOT
name = "ddp"
[resources]
nodes = $1
ranks_per_node = $2
[program]
command = ["$venv/bin/python", "$root/tests/peers/ddp.py"]
[batch]
global_batch = 48
micro_batch = 3
uneven = "$3"
EOT
  local id state
  id=$("$shardrun" submit ddp.toml | sed -n 's/^submitted job \([0-9]*\):.*/\1/p')
  while :; do
    state=$(scontrol --oneliner show job "$id" | grep -o 'JobState=[A-Z_]*' | cut -d= -f2)
    case $state in
      COMPLETED) break ;;
      PENDING | RUNNING | COMPLETING | CONFIGURING) sleep 0.5 ;;
      *) "$shardrun" status "runs/ddp/$id"; cat runs/ddp/"$id"/slurm.out; tail -n 20 runs/ddp/"$id"/attempt_0/rank_*.err; exit 1 ;;
    esac
  done
  "$venv/bin/python" - alone.json "runs/ddp/$id/attempt_0/rank_0.out" "$1 × $2 ranks, $3" <<'EOP'
import json, sys
alone, ours = (json.loads([line for line in open(path) if line.startswith("{")][-1]) for path in sys.argv[1:3])
worst = max(abs(a - b) for a, b in zip(alone["losses"], ours["losses"], strict=True))
print(f"{sys.argv[3]}: loss {ours['losses'][0]:.6f} -> {ours['losses'][-1]:.6f}, "
      f"at most {worst:.1e} from one process under torchrun")
sys.exit(worst > 1e-5)
EOP
}
on 1 1 refuse
on 2 1 refuse
on 4 1 refuse
on 2 2 refuse
on 1 5 distribute
on 3 1 distribute

#!/bin/bash
# The PyTorch jobs of jobs/ as they stand, on 2 nodes × 2 processes of the virtual cluster, against one process with the same
# global batch: all losses must agree within 1e-5 (fp32, sums in another order). A rank of the first is killed on the way, and
# the run must go on from its checkpoint. Prints the largest differences; about seven minutes for all, or for those that are named.
# Needs tests/peers/install.sh, root, and a built shardrun. Nodes have a /tmp of their own: with a
# venv below /tmp, set VCLUSTER_KEEP to its folder.
#
#   tests/cluster/vcluster run 2 -- tests/peers/torch_jobs.sh [BIN_DIR] [VENV] [JOB...]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
shardrun=$(readlink -f "${1:-$root/build/release/bin}")/shardrun
venv=$(cd "${2:-$root/build/peers/venv}" && pwd)
jobs=("${@:3}")
[ "${#jobs[@]}" -gt 0 ] || jobs=(torch-fsdp2-llama torch-ddp-llama accelerate-finetune)
work=$(mktemp -d "$PWD/torch_jobs.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$root/jobs" jobs
export PATH=$venv/bin:$PATH
licences=/usr/share/common-licenses

# alone COMMAND…: the losses of one process, into alone.out
alone() {
  OMP_NUM_THREADS=1 ACCELERATE_USE_CPU=true "$@" >alone.out 2>alone.err || { cat alone.err; exit 1; }
}

# on_two_nodes JOB [STEP]: submits it and waits; a rank is killed when rank 0 says that it has done STEP. Its folder: $run
on_two_nodes() {
  local id state rank='' killed=''
  id=$("$shardrun" submit "jobs/$1.toml" --set cluster.scheduler=slurm --set resources.nodes=2 |
    sed -n 's/^submitted job \([0-9]*\):.*/\1/p')
  run=runs/$1/$id
  while :; do
    if [ -n "${2:-}" ] && [ -z "$killed" ] && grep -qs "^step $2 " "$run"/attempt_0/rank_0.out; then
      rank=$(pgrep -o -f "python3 jobs/scripts/.*$work/$run/checkpoints") && kill -9 "$rank" && killed=yes
    fi
    state=$(scontrol --oneliner show job "$id" | grep -o 'JobState=[A-Z_]*' | cut -d= -f2)
    case $state in
      COMPLETED) break ;;
      PENDING | RUNNING | COMPLETING | CONFIGURING) sleep 0.2 ;;
      *) "$shardrun" status "$run"; cat "$run"/slurm.out; tail -n 20 "$run"/attempt_0/rank_*.err; exit 1 ;;
    esac
  done
  [ -z "${2:-}" ] || [ -n "$killed" ] || { echo "$1: no rank was killed in time"; exit 1; }
}

# compare WHAT LOSSES: as many as alone.out has, in $run
compare() {
  cat "$run"/attempt_*/rank_0.out | awk -v what="$1" -v losses="$2" '
    $1 == "step" && FILENAME == "alone.out" { alone[$2] = $4 }
    $1 == "step" && FILENAME != "alone.out" { seen[$2] = 1; d = $4 - alone[$2]; if (d < 0) d = -d; if (d > most) most = d }
    END {
      for (step in alone) { count++; if (!seen[step]) { print what ": step " step " is missing"; exit 1 } }
      if (count != losses) { print what ": " count " losses instead of " losses; exit 1 }
      printf "%s on 2 nodes x 2 processes: %d losses within %.1e of one process\n", what, count, most
      exit most > 1e-5
    }' alone.out -
}

# trains JOB [OPTION]: jobs/scripts/torch_llama.py with it
trains() {
  alone torchrun --standalone --nproc-per-node 1 jobs/scripts/torch_llama.py "${@:2}" --text $licences/GPL-3 $licences/Apache-2.0 \
    --micro-batch 4 --accumulation 4 --steps 40 --learning-rate 3e-3
  on_two_nodes "$1" 26
  grep -q '^goes on from step 20$' "$run"/attempt_1/rank_0.out || { echo "the run began again"; exit 1; }
  compare "$1, one rank killed," 40
  # What its lines in the metrics file became.
  "$shardrun" status "$run" | grep -q ' 40 ' || { echo "its steps were not told: $("$shardrun" status "$run")"; exit 1; }
}

fine_tunes() {
  "$shardrun" run --quiet jobs/tiny-llama.toml --set cluster.scheduler=local --set optimizer.steps=40 >tiny.out || { cat tiny.out; exit 1; }
  "$shardrun" export tiny-llama --output weights
  alone python3 jobs/scripts/finetune.py --model_name weights --text $licences/Artistic --output_dir alone --max_seq_len 128 \
    --max_steps 40 --logging_steps 10 --save_steps 20 --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \
    --learning_rate 5e-4
  on_two_nodes accelerate-finetune
  compare accelerate-finetune 5
}

for job in "${jobs[@]}"; do
  case $job in
    torch-fsdp2-llama) trains "$job" ;;
    torch-ddp-llama) trains "$job" --ddp ;;
    accelerate-finetune) fine_tunes ;;
    *) echo "no such job: $job"; exit 2 ;;
  esac
done

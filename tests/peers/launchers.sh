#!/bin/bash
# How long launchers take to the first step of a PyTorch DDP job, and what they say when a rank is killed: shardrun beside raw
# sbatch with srun, torchrun under sbatch, submitit and TorchX, on a real Slurm of two nodes, in turns, in one run. About
# a minute a round. Makes build/peers/launchers (3 GB: submitit, torchx, torch from PyPI) where it is missing. Needs root and a
# built shardrun.
#
#   tests/peers/launchers.sh [BIN_DIR] [ROUNDS] [ROWS]
#
# Appends what it measured to the file ROWS (build/peers/launchers.jsonl), and prints the table of all that is there, so that
# many rounds can be measured in several turns.
# Prints for each launcher the medians of: seconds from the command to the first step of the last rank; seconds from kill -9 of
# rank 1 to the job's end in Slurm; and of what the launcher leaves as the job's output, the lines, the line on which the
# cause is first named, and whether the last line names it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(readlink -f "${1:-$root/build/release/bin}")
venv=$root/build/peers/launchers
if [ ! -x "$venv/bin/torchx" ]; then
  mkdir -p "$root/build/peers"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet submitit==1.5.4 torchx==0.7.0 torch==2.15.0
fi
exec "$root/tests/cluster/vcluster" run 2 -- "$venv/bin/python" "$root/tests/peers/launchers.py" "$bin" "$venv" "${2:-3}" "${3:-$root/build/peers/launchers.jsonl}"

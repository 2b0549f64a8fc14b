#!/bin/bash
# A tiny checkpoint of each family of Llamas, made by transformers, through a whole life: a job with `init` alone, an export, and
# text that goes on from it; then back in transformers. A minute. Needs tests/peers/install.sh.
#
#   tests/peers/families.sh [BIN_DIR]       default: build/release/bin
#   PYTHON=… tests/peers/families.sh        another Python with transformers
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
shardrun=$(readlink -f "${1:-$root/build/release/bin}")/shardrun
python=${PYTHON:-$root/build/peers/venv/bin/python}
work=$(mktemp -d "$root/build/families.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
"$python" "$root/tests/peers/families.py" save models 2>peer.log
for model in models/*; do
  family=$(basename "$model")
  cat >"$family.toml" <<EOF
name = "$family"
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
init = "$PWD/$model"
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 32
[batch]
global_batch = 4
[precision]
parameters = "fp32"
[optimizer]
steps = 1
# A rate that is zero in fp32: what is exported is what was imported.
learning_rate = 1e-60
warmup_steps = 0
EOF
  "$shardrun" run "$family.toml" --quiet >"$family.out"
  "$shardrun" export "$family" --output "out-$family" --dtype fp32 >/dev/null
  "$shardrun" generate "out-$family" --prompt-tokens 17,4,101,32,99,250,3,64 --max-tokens 24 --json >"$family.json"
  "$python" "$root/tests/peers/families.py" compare "$model" "out-$family" "$family.json" 2>>peer.log || {
    tail -3 peer.log
    exit 1
  }
done

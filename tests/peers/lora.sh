#!/bin/bash
# Adapters through a whole life: a job beside a tiny checkpoint made by transformers, its adapter in PEFT, the merged model in
# transformers, and text that goes on from both. Half a minute. Needs tests/peers/install.sh.
#
#   tests/peers/lora.sh [BIN_DIR]       default: build/release/bin
#   PYTHON=… tests/peers/lora.sh        another Python with PEFT
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
shardrun=$(readlink -f "${1:-$root/build/release/bin}")/shardrun
python=${PYTHON:-$root/build/peers/venv/bin/python}
work=$(mktemp -d "$root/build/lora.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
"$python" "$root/tests/peers/lora.py" save base 2>peer.log
for rslora in false true; do
  cat >job.toml <<EOT
name = "lora-$rslora"
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
init = "$PWD/base"
[lora]
rank = 4
alpha = 16
rslora = $rslora
matrices = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 64
[batch]
global_batch = 16
[precision]
parameters = "fp32"
[optimizer]
steps = 60
learning_rate = 1e-2
[export]
directory = "merged-$rslora"
dtype = "fp32"
EOT
  "$shardrun" run job.toml --quiet
  "$shardrun" export "lora-$rslora" --output "adapter-$rslora" --dtype fp32 --adapter
  "$shardrun" generate "lora-$rslora" --prompt-tokens 17,4,101,32,99,250,3,64 --max-tokens 24 --json >generated.json
  "$python" "$root/tests/peers/lora.py" compare base "adapter-$rslora" "merged-$rslora" generated.json 2>>peer.log || {
    tail -3 peer.log
    exit 1
  }
done

#!/bin/bash
# A pretrained Llama through shardrun and through transformers: the same evaluation loss, the same loss curve of a
# fine-tune on 2 ranks as PyTorch's FSDP, and an export with the same tensors. Prints the differences; about ten
# minutes on two cores. Needs tests/peers/install.sh.
#
#   tests/peers/pretrained.sh [BIN_DIR]       default: build/release/bin
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
shardrun=$(readlink -f "${1:-$root/build/release/bin}")/shardrun
peers=$root/build/peers
model=$peers/smollm2
python=$peers/venv/bin/python
peer() { "$python" "$root/tests/peers/pretrained.py" "$@" 2>>"$peers/pretrained.log"; }
below() { # below NAME VALUE LIMIT
  awk -v value="$2" -v limit="$3" 'BEGIN { exit !(value + 0 <= limit + 0) }' || { echo "$1: $2 is above $3"; exit 1; }
  echo "$1: $2 (at most $3)"
}
# number RUN MEMBER: of the run's metrics
number() {
  "$shardrun" results "$1" --json | "$python" -c "import json, sys; print(json.load(sys.stdin)['metrics']['$2'])"
}

: >"$peers/pretrained.log"
[ -f "$model/model.safetensors" ] || peer prepare "$model"
work=$(mktemp -d "$peers/pretrained.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >finetune.toml <<EOF
name = "smollm2"
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
init = "$model"
[data]
files = ["$model/train.tokens"]
validation = ["$model/validation.tokens"]
sequence_length = 128
validation_sequences = 16
[batch]
global_batch = 2
[precision]
parameters = "fp32"
[optimizer]
steps = 50
learning_rate = 5e-5
warmup_steps = 5
EOF

echo "== evaluation loss of the imported model"
# One step at a rate that is zero in fp32: what is evaluated and exported is what was imported.
"$shardrun" run finetune.toml --quiet --set optimizer.steps=1 --set optimizer.warmup_steps=0 \
  --set optimizer.learning_rate=1e-60 >imported.out
ours=$(number smollm2 validation_loss)
theirs=$(peer evaluate "$model" "$model/validation.tokens")
echo "shardrun $ours, transformers $theirs"
below "difference" "$(awk -v a="$ours" -v b="$theirs" 'BEGIN { print (a > b ? a - b : b - a) }')" 1e-3
"$shardrun" export smollm2 --output imported --dtype fp32
peer compare imported "$model"

echo "== 50 steps of fine-tuning on 2 ranks against fully_shard over gloo"
"$shardrun" run finetune.toml --quiet >finetuned.out
"$python" -m torch.distributed.run --nproc-per-node 2 "$root/tests/peers/pretrained.py" finetune "$model" \
  "$model/train.tokens" "$work/theirs.txt" 2>>"$peers/pretrained.log"
below "largest relative difference of 50 losses" \
  "$(peer difference "$(readlink -f runs/smollm2/latest)/metrics.jsonl" theirs.txt)" 1e-3

echo "== export of the fine-tuned model, in two files"
"$shardrun" export smollm2 --output finetuned --dtype fp32 --max-shard-size 300MB
peer compare finetuned
ours=$(number smollm2 validation_loss)
theirs=$(peer evaluate finetuned "$model/validation.tokens")
echo "shardrun $ours, transformers on the export $theirs"
below "difference" "$(awk -v a="$ours" -v b="$theirs" 'BEGIN { print (a > b ? a - b : b - a) }')" 1e-3

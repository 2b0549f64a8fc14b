#!/bin/bash
# Trains a small BERT for a few steps on 2 ranks, exports it, and loads the export in transformers: the same tensors and
# the same hidden states. A minute on two cores. Needs tests/peers/install.sh and the target bert_hidden_states.
#
#   tests/peers/bert_export.sh [BIN_DIR] [PYTHON]      defaults: build/release/bin, build/peers/venv/bin/python
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(readlink -f "${1:-$root/build/release/bin}")
python=${2:-$root/build/peers/venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

{
  printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' {a..z}
  printf '##%s\n' {a..z}
} >vocab.txt
"$bin/shardrun" data --tokenizer vocab.txt --output data /usr/share/common-licenses/{GPL-2,GPL-3,Apache-2.0} >/dev/null
cat >bert.toml <<EOF
name = "bert"
[resources]
ranks_per_node = 2
[program]
trainer = "bert"
[model]
layers = 3
hidden = 96
heads = 6
ffn = 256
vocab = 256
max_positions = 64
[data]
files = ["data/train.tokens"]
sequence_length = 64
[batch]
global_batch = 8
[optimizer]
steps = 20
learning_rate = 1e-3
EOF
"$bin/shardrun" run bert.toml --quiet
"$bin/shardrun" export bert --output exported --dtype fp32
"$python" "$root/tests/peers/bert_export.py" exported "$bin/bert_hidden_states"

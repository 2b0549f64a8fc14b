#!/bin/bash
# Trains a small BERT and a small RoBERTa for a few steps on 2 ranks, exports them, and loads the exports in transformers: the same
# tensors and the same hidden states; then goes on from the RoBERTa's export. A minute on two cores. Needs tests/peers/install.sh and the target bert_hidden_states.
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
texts=(/usr/share/common-licenses/{GPL-2,GPL-3,Apache-2.0})
"$bin/shardrun" data --tokenizer vocab.txt --output bert-data "${texts[@]}" >/dev/null
"$python" "$root/tests/peers/bert_export.py" tokenizer . "${texts[@]}"
"$bin/shardrun" data --tokenizer tokenizer.json --output roberta-data "${texts[@]}" >/dev/null
for kind in bert roberta; do
  cat >"$kind.toml" <<EOF
name = "$kind"
[resources]
ranks_per_node = 2
[program]
trainer = "bert"
[model]
layers = 3
hidden = 96
heads = 6
ffn = 256
vocab = 400
max_positions = 66
next_sentence = $([ $kind = bert ] && echo true || echo false)
[data]
files = ["$kind-data/train.tokens"]
sequence_length = 64
[batch]
global_batch = 8
[optimizer]
steps = 20
learning_rate = 1e-3
EOF
  "$bin/shardrun" run "$kind.toml" --quiet
  "$bin/shardrun" export "$kind" --output "exported-$kind" --dtype fp32
  "$python" "$root/tests/peers/bert_export.py" "exported-$kind" "$bin/bert_hidden_states"
done
sed '/^\(layers\|hidden\|heads\|ffn\|vocab\|max_positions\|next_sentence\) = /d; s|^\[model\]$|&\ninit = "exported-roberta"|' roberta.toml >again.toml
"$bin/shardrun" run again.toml --quiet

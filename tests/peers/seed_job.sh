#!/bin/bash
# "Fine-tuning Llama 2 70B using PyTorch FSDP", scaled down to SmolLM2-135M and two ranks: conversations as that job's data set
# has them, its options, a whole model at the end, and a question, whose answer is compared with transformers'. Whole weights
# first, then adapters. Some five minutes on two cores. Needs tests/peers/install.sh and the model that pretrained.sh makes.
#
#   tests/peers/seed_job.sh [BIN_DIR] [full|lora]       default: build/release/bin, both
#   PYTHON=… tests/peers/seed_job.sh                    another Python with transformers
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
shardrun=$(readlink -f "${1:-$root/build/release/bin}")/shardrun
kinds=${2:-full lora}
model=$root/build/peers/smollm2
python=${PYTHON:-$root/build/peers/venv/bin/python}
work=$(mktemp -d "$root/build/seed.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
"$python" "$root/tests/peers/seed_job.py" data chat.jsonl
# --chat_template_format none --add_special_tokens False --dataset_text_field content --splits train,test
"$shardrun" data chat.jsonl --tokenizer "$model/tokenizer.json" --output tokens --template none --text-field content \
  --no-special-tokens --marks-in-text --validation 0.1
for kind in $kinds; do
  # --max_seq_len --max_steps --logging_steps --eval_steps --save_steps --bf16 --packing --learning_rate --lr_scheduler_type cosine
  # --weight_decay --warmup_ratio 0.03 --max_grad_norm --per_device_train_batch_size 1 --gradient_checkpointing --optim paged_adamw_32bit
  cat >"$kind.toml" <<EOT
name = "seed-$kind"
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
init = "$model"
[data]
files = ["$PWD/tokens/train.tokens"]
validation = ["$PWD/tokens/validation.tokens"]
sequence_length = 256
seed = 100
[batch]
micro_batch = 1
gradient_accumulation = 1
[sharding]
strategy = "full_shard"
[precision]
parameters = "bf16"
[memory]
activation_checkpointing = "full"
optimizer_offload = true
[optimizer]
steps = 40
learning_rate = 5e-5
schedule = "cosine"
weight_decay = 0.01
warmup_steps = 1
clip_norm = 1.0
[logging]
every_steps = 10
validate_every_steps = 20
[checkpoint]
every_steps = 20
[export]
directory = "model-$kind"
EOT
  if [ "$kind" = lora ]; then
    cat >>"$kind.toml" <<EOT
[lora]
rank = 8
alpha = 16
matrices = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EOT
  fi
  settings=()
  [ "$kind" = full ] || settings=(--set optimizer.learning_rate=1e-3)
  "$shardrun" run "$kind.toml" --quiet "${settings[@]}"
  "$shardrun" generate "model-$kind" --dtype fp32 --marks-in-text --prompt "$("$python" "$root/tests/peers/seed_job.py" question)" \
    --max-tokens 48 --json >"$kind.json"
  "$python" "$root/tests/peers/seed_job.py" answer "model-$kind" "$kind.json"
done

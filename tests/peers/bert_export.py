"""Loads an exported BERT or RoBERTa in transformers: the tensors are the file's, none is missing or left over, and the hidden
states of random tokens are ours within 1e-4. tests/peers/bert_export.sh runs it.

    python tests/peers/bert_export.py FOLDER build/dev/bin/bert_hidden_states
    python tests/peers/bert_export.py tokenizer FOLDER TEXT...
        makes a RoBERTa's tokenizer of texts
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import ByteLevelBPETokenizer, processors
from transformers import AutoModelForMaskedLM, BertForPreTraining, RobertaForMaskedLM

TOLERANCE = 1e-4

if sys.argv[1] == "tokenizer":
    made = ByteLevelBPETokenizer()
    made.train(sys.argv[3:], vocab_size=400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    made._tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.save(f"{sys.argv[2]}/tokenizer.json")
    sys.exit(0)

folder, program = Path(sys.argv[1]), sys.argv[2]
weights = sorted(folder.glob("*.safetensors"))
assert len(weights) == 1, weights
file = load_file(weights[0])
kind = type(AutoModelForMaskedLM.from_pretrained(folder))
roberta = kind is RobertaForMaskedLM
kind = kind if roberta else BertForPreTraining
model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
state = model.eval().state_dict()
for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    assert not info[what], f"{what}: {sorted(info[what])}"
different = [name for name, tensor in file.items() if not torch.equal(tensor, state[name])]
assert not different, f"other values: {different}"
# What transformers has beyond the file is tied to it.
shared = {tensor.data_ptr() for name, tensor in state.items() if name in file}
extra = [name for name in state if name not in file and state[name].data_ptr() not in shared and "position_ids" not in name]
assert not extra, f"not in the file: {extra}"

config = model.config
random = np.random.default_rng(1)
first = 2 if roberta else 0  # position
lengths = [config.max_position_embeddings - first, 7, 40]
width = max(lengths)
tokens = random.integers(0, config.vocab_size, (len(lengths), width))
mask = np.arange(width)[None, :] < np.array(lengths)[:, None]
with torch.no_grad():
    theirs = model.base_model(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(mask.astype(np.int64)),
                              position_ids=torch.arange(first, first + width)[None])
theirs = theirs.last_hidden_state.numpy()
rows = [f"{length} " + " ".join(map(str, ids)) for ids, length in zip(tokens.tolist(), lengths)]
text = f"{len(lengths)} {width}\n" + "\n".join(rows) + "\n"
sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size,
         config.vocab_size, config.max_position_embeddings)
command = [program, str(weights[0]), "fp32", *map(str, sizes), *(["roberta"] if roberta else [])]
output = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True)
ours = np.frombuffer(output.stdout, dtype=np.float32).reshape(theirs.shape)
worst = float(np.abs(ours - theirs)[mask].max())
print(f"{kind.__name__}: {len(file)} tensors identical; hidden states of {mask.sum()} tokens differ by {worst:.2e} at most")
sys.exit(0 if worst <= TOLERANCE else 1)

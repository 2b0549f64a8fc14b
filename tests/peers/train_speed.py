#!/usr/bin/env python3
"""Training speed of PyTorch on this machine's cores: the other side of tests/bench/train_bench.

    train_speed.py llama-136m|smollm2-135m|bert-large|mixtral-156m eager|compile --threads 2 [--steps 8] [--precision fp32]
    torchrun --nproc-per-node 2 train_speed.py llama-136m eager --threads 1 --fsdp

bf16 autocast over fp32 parameters, or fp32 (with --fsdp: FSDP2 over gloo, bf16 parameters gathered, fp32 reduced), scaled-dot-
product attention, fused AdamW. Reads the bytes of real text. Prints one JSON line on rank 0: the seconds of every step,
the tokens of a step, and the losses.
"""
import argparse
import glob
import json
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class LlamaBlock(nn.Module):
    def __init__(self, hidden, heads, ffn, kv_heads):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * (hidden // heads), bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        heads = self.qkv(self.norm1(x)).view(b, t, -1, c // self.heads).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        x = x + self.out(attention.transpose(1, 2).reshape(b, t, c))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class Llama(nn.Module):
    """`recompute`: a layer keeps its input alone, and backward computes the rest again."""

    def __init__(self, layers, hidden, heads, ffn, vocab, length, kv_heads=None, recompute=False, tied=False):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(LlamaBlock(hidden, heads, ffn, kv_heads or heads) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.head = nn.Linear(hidden, vocab, bias=False)
        half = hidden // heads // 2
        angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = layer(x, self.cos, self.sin)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class BertBlock(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps=1e-12), nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(attention.transpose(1, 2).reshape(b, t, c)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """Both heads of BERT's pre-training; the masked tokens' rows alone pass through the classifier."""

    def __init__(self, layers, hidden, heads, ffn, vocab, length):
        super().__init__()
        self.word = nn.Embedding(vocab, hidden)
        self.position, self.segment = nn.Embedding(length, hidden), nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(BertBlock(hidden, heads, ffn) for _ in range(layers))
        self.pooler, self.next_sentence = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        self.transform, self.transform_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocab))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, segments, rows, targets, follows):
        positions = torch.arange(tokens.shape[1])
        x = self.norm(self.word(tokens) + self.position(positions) + self.segment(segments))
        for layer in self.layers:
            x = layer(x)
        masked = self.transform_norm(F.gelu(self.transform(x.flatten(0, 1)[rows])))
        logits = F.linear(masked, self.word.weight, self.bias)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return F.cross_entropy(logits.float(), targets) + F.cross_entropy(self.next_sentence(pooled).float(), follows)


class Mixtral(nn.Module):
    """transformers' own, with the loss that balances its experts. They are computed one by one, its fastest way on CPUs."""

    def __init__(self):
        super().__init__()
        from transformers import MixtralConfig, MixtralForCausalLM
        config = MixtralConfig(num_hidden_layers=6, hidden_size=512, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1024,
                               num_local_experts=8, num_experts_per_tok=2, vocab_size=32000, router_aux_loss_coef=0.001)
        config._experts_implementation = "eager"
        self.model = MixtralForCausalLM(config)

    def forward(self, tokens, targets):
        out = self.model(input_ids=tokens, use_cache=False, output_router_logits=True)
        return F.cross_entropy(out.logits.flatten(0, 1).float(), targets.flatten()) + 0.001 * out.aux_loss


def text_bytes():
    data = b"\0".join(open(path, "rb").read() for path in sorted(glob.glob("/usr/share/common-licenses/*-[0-9]*")))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def make(name, batch, length):
    torch.manual_seed(1)
    if name == "llama-136m":
        return Llama(12, 768, 12, 2048, 32000, length)
    if name == "smollm2-135m":
        return Llama(30, 576, 9, 1536, 49152, length, kv_heads=3, tied=True)
    if name == "mixtral-156m":
        return Mixtral()
    return Bert(24, 1024, 16, 4096, 30522, 512)


def batches(name, batch, length, rank, ranks):
    text, step = text_bytes(), 0
    generator = torch.Generator().manual_seed(7 + rank)
    while True:
        starts = torch.randint(0, len(text) - length - 1, (batch,), generator=generator)
        tokens = torch.stack([text[s : s + length] for s in starts])
        if name != "bert-large":
            yield tokens, torch.stack([text[s + 1 : s + length + 1] for s in starts])
        else:
            rows = torch.randperm(batch * length, generator=generator)[: round(0.15 * batch * length)].sort().values
            targets = tokens.flatten()[rows]
            masked = tokens.clone().flatten()
            masked[rows] = 103
            yield (masked.view(batch, length), torch.zeros_like(tokens), rows, targets,
                   torch.randint(0, 2, (batch,), generator=generator))
        step += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["llama-136m", "smollm2-135m", "bert-large", "mixtral-156m"])
    parser.add_argument("mode", choices=["eager", "compile"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--fsdp", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch = arguments.batch or (8 if arguments.model == "bert-large" else 4)
    length = arguments.length or (128 if arguments.model == "bert-large" else 512)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    model = make(arguments.model, batch, length)
    if arguments.fsdp:
        import torch.distributed as dist
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        dist.init_process_group("gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    step_model = torch.compile(model) if arguments.mode == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds, losses = [], []
    for step, inputs in zip(range(arguments.steps), batches(arguments.model, batch, length, rank, ranks)):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.precision == "bf16" and not arguments.fsdp):
            loss = step_model(*inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    assert all(map(math.isfinite, losses)), losses
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "tokens": batch * length * ranks, "seconds": seconds,
                          "losses": losses}))
    if arguments.fsdp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

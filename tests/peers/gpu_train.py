#!/usr/bin/env python3
"""PyTorch's side of tests/peers/gpu_speed.py, which starts it: trains a Llama on one GPU, or on the CPU for a dry run.

    gpu_train.py '{"model": {...}, "text": "text.txt", ...}'      the keys: OPTIONS below

Scaled-dot-product attention, fused AdamW on fp32 weights, moments and gradients, a loss that is read at the end of each
step as shardrun's is; products in bf16, by autocast or as shardrun does it, with bf16 copies of the weights that are made
once a step. It reads the sequences that shardrun reads in each step (runtime/trainer/data/loader.h), at shardrun's learning
rates. Prints one JSON line: seconds and losses of the steps, and the memory that was taken.
"""
import contextlib
import json
import math
import sys
import time

import numpy as np
import torch
import torch.nn as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from counter_random import initial_weight, random_bits
from train_speed import Llama

OPTIONS = {
    "model": None,  # layers, hidden, heads, kv_heads, ffn, vocab
    "text": None,  # a file of bytes, which are the tokens
    "device": "cuda",
    "compile": "eager",  # "layers": one layer for all, and the loss; or a mode of torch.compile for the whole model
    "weights": "autocast",  # or copies: bf16 parameters beside fp32 ones, to whose gradients theirs are added
    "attention": "any",  # or cudnn, flash: of scaled_dot_product_attention
    "dtype": "bf16",  # or fp32
    "recompute": False,  # or True: all of a layer but its input; or what torch.compile may keep of its activations, as a share
    "same_weights": False,  # those that shardrun begins with; slow to make
    "length": 2048, "batch": 4, "accumulation": 1, "steps": 12, "learning_rate": 3e-4, "minimum": 3e-5, "warmup": 2, "seed": 1,
}


def permuted_index(key, index, count):
    """runtime/trainer/data/loader.cpp."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(6):
            left, right = right, left ^ (int(random_bits(key + turn, [right])[0]) & mask)
        index = left << half | right
        if index < count:
            return index


def batches(text, options):
    """Inputs and targets of each micro-step, as shardrun's one rank reads them."""
    tokens = np.concatenate((np.fromfile(text, dtype=np.uint8), np.zeros(1, np.uint8))).astype(np.int64)
    length, count = options["length"], (len(tokens) - 1) // options["length"]
    position = 0
    while True:
        rows = []
        for _ in range(options["batch"]):
            key = int(random_bits(options["seed"], [position // count])[0])
            begin = permuted_index(key, position % count, count) * length
            rows.append(tokens[begin : begin + length + 1])
            position += 1
        block = torch.tensor(np.stack(rows), device=options["device"])
        yield block[:, :-1].contiguous(), block[:, 1:].contiguous()


def weights_of(shape, seed):
    """Ours of shardrun's initial weights (runtime/trainer/train/initialize.cpp), by the names of Llama's parameters."""
    hidden, layers, vocab = shape["hidden"], shape["layers"], shape["vocab"]
    rows = hidden // shape["heads"]
    kv_rows = rows * shape["kv_heads"]

    def drawn(name, size, stddev=0.02):
        return torch.tensor(initial_weight(seed, name, size, stddev, 1.0))

    weights = {"embedding.weight": drawn("model.embed_tokens.weight", (vocab, hidden)),
               "head.weight": drawn("lm_head.weight", (vocab, hidden)), "norm.weight": torch.ones(hidden)}
    back = 0.02 / math.sqrt(2 * layers)  # into the residual stream
    for i in range(layers):
        layer = f"model.layers.{i}."
        attention, ffn = layer + "self_attn.", layer + "mlp."
        weights[f"layers.{i}.qkv.weight"] = torch.cat([
            drawn(attention + "q_proj.weight", (hidden, hidden)), drawn(attention + "k_proj.weight", (kv_rows, hidden)),
            drawn(attention + "v_proj.weight", (kv_rows, hidden))])
        weights[f"layers.{i}.out.weight"] = drawn(attention + "o_proj.weight", (hidden, hidden), back)
        weights[f"layers.{i}.gate_up.weight"] = torch.cat([drawn(ffn + "gate_proj.weight", (shape["ffn"], hidden)),
                                                           drawn(ffn + "up_proj.weight", (shape["ffn"], hidden))])
        weights[f"layers.{i}.down.weight"] = drawn(ffn + "down_proj.weight", (hidden, shape["ffn"]), back)
        weights[f"layers.{i}.norm1.weight"] = weights[f"layers.{i}.norm2.weight"] = torch.ones(hidden)
    return weights


def learning_rate(options, step):
    """A warm-up and half a cosine: runtime/trainer/optim/schedule.cpp."""
    if step < options["warmup"]:
        return options["learning_rate"] * (step + 1) / options["warmup"]
    progress = min(1.0, (step - options["warmup"]) / max(1, options["steps"] - options["warmup"]))
    span = options["learning_rate"] - options["minimum"]
    return options["minimum"] + span * 0.5 * (1 + math.cos(math.pi * progress))


class Copies:
    """fp32 weights and gradients of a model whose own parameters become bf16."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.masters = [p.detach().clone().requires_grad_() for p in self.parameters]
        for parameter, master in zip(self.parameters, self.masters):
            parameter.data = parameter.data.bfloat16()
            parameter.register_post_accumulate_grad_hook(lambda p, m=master: self.take_gradient(p, m))

    @staticmethod
    def take_gradient(parameter, master):
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    @torch.no_grad()
    def publish(self):
        torch._foreach_copy_(self.parameters, self.masters)


def make(options):
    shape, device = options["model"], options["device"]
    with torch.device(device):
        torch.manual_seed(options["seed"])
        model = Llama(shape["layers"], shape["hidden"], shape["heads"], shape["ffn"], shape["vocab"], options["length"],
                      shape["kv_heads"], options["recompute"] is True)
    if options["same_weights"]:
        model.load_state_dict(weights_of(shape, options["seed"]), strict=False)
    copies = Copies(model) if options["weights"] == "copies" else None
    weights = copies.masters if copies else list(model.parameters())
    matrices = [p for p in weights if p.dim() == 2]
    others = [p for p in weights if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  betas=(0.9, 0.95), eps=1e-8, fused=True)
    return model, optimizer, weights, copies


def compiled(model, how, recompute):
    if how == "eager":
        return model
    if isinstance(recompute, float):
        torch._functorch.config.activation_memory_budget = recompute
    if how != "layers":
        return torch.compile(model, mode=how)
    for layer in model.layers:
        layer.compile()
    model.loss = torch.compile(model.loss)
    return model


def product_peak(device):
    """FLOP/s of a bf16 product of 8192³ on random data, the median of 20."""
    n = 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for i in range(25):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return 2 * n**3 / sorted(seconds[5:])[10]


def attention_kernels(name):
    if name == "any":
        return contextlib.nullcontext()
    return sdpa_kernel({"cudnn": [SDPBackend.CUDNN_ATTENTION], "flash": [SDPBackend.FLASH_ATTENTION]}[name])


def train(options):
    on_gpu = options["device"] == "cuda"
    model, optimizer, weights, copies = make(options)
    step_model = compiled(model, options["compile"], options["recompute"])
    casts = options["dtype"] == "bf16" and options["weights"] == "autocast"
    micro_steps = batches(options["text"], options)
    seconds, losses = [], []
    for step in range(options["steps"]):
        read = [next(micro_steps) for _ in range(options["accumulation"])]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step)
        begin = time.perf_counter()
        total = 0.0
        for tokens, targets in read:
            with attention_kernels(options["attention"]):
                with torch.autocast(options["device"], dtype=torch.bfloat16, enabled=casts):
                    loss = step_model(tokens, targets) / options["accumulation"]
                loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if copies:
            copies.publish()
        losses.append(total.item())  # waits for all of it but the optimizer
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    assert all(map(math.isfinite, losses)), losses
    memory = torch.cuda.max_memory_allocated() if on_gpu else 0
    return {"torch": torch.__version__, "seconds": seconds, "losses": losses, "memory_bytes": memory}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given.get("device", "cuda") == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    if given.get("measure") == "product":
        print(json.dumps({"flops": product_peak("cuda"), "gpu": torch.cuda.get_device_name()}))
    else:
        unknown = set(given) - set(OPTIONS)
        assert not unknown, unknown
        print(json.dumps(train({**OPTIONS, **given})))

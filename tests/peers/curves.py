"""Writes 20-step loss curves of a small Llama and a small BERT, trained by PyTorch, to
tests/unit/model/peers/curves.txt: fp32, and bf16 (autocast over fp32 weights).

Weights are those of runtime/trainer/train/initialize.cpp and batches are a pure function of counters, both made again by
tests/unit/model/curves_test.cpp, so nothing but losses is stored. The optimizer is AdamW as in runtime/trainer/optim:
matrices decay, norms and biases don't; the gradient is scaled to a norm of 1 at most; half a cosine after warm-up.

    build/peers/venv/bin/python tests/peers/curves.py
"""

import math
import pathlib

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining, LlamaConfig, LlamaForCausalLM

from counter_random import initial_weight, random_bits

OUTPUT = pathlib.Path(__file__).parents[1] / "unit/model/peers/curves.txt"
STEPS, WARMUP, PEAK, MINIMUM = 20, 4, 3e-3, 3e-4
B, T, VOCAB, LAYERS = 4, 32, 199, 2
MASK_TOKEN = VOCAB - 1


def draw(key, count, limit):
    return (random_bits(key, np.arange(count)) % np.uint64(limit)).astype(np.int64)


def token_chain(step):
    """(B, T+1) tokens: mostly a fixed function of the one before, else random, so that there is something to learn."""
    fresh = draw(1000 + step, B * (T + 1), VOCAB - 1).reshape(B, T + 1)
    follows = draw(2000 + step, B * (T + 1), 4).reshape(B, T + 1) != 0
    tokens = fresh.copy()
    for t in range(1, T + 1):
        tokens[:, t] = np.where(follows[:, t], (tokens[:, t - 1] * 5 + 7) % (VOCAB - 1), fresh[:, t])
    return tokens


def llama():
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=88, num_hidden_layers=LAYERS, num_attention_heads=6,
        num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False))

    def stddev(name):
        if "norm" in name:
            return 0.0
        return 0.02 / math.sqrt(2 * LAYERS) if "o_proj" in name or "down_proj" in name else 0.02

    def loss(step):
        tokens = token_chain(step)
        logits = model(torch.tensor(tokens[:, :T])).logits.float()
        return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), torch.tensor(tokens[:, 1:]).reshape(-1))

    return model, stddev, loss


def bert():
    model = BertForPreTraining(BertConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=100, num_hidden_layers=LAYERS, num_attention_heads=6,
        max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    # Word 0 is a word here; transformers takes it for padding and keeps its gradient as an input back.
    model.bert.embeddings.word_embeddings.padding_idx = None

    def stddev(name):
        return 0.0 if "LayerNorm" in name or name.endswith("bias") else 0.02

    def loss(step):
        original = token_chain(step)[:, :T] % 23  # few words, so that 20 steps learn something
        masked = draw(3000 + step, B * T, 100).reshape(B, T) < 15
        labels = draw(4000 + step, B, 2)
        lengths = T - draw(5000 + step, B, 8)
        for row in range(B):  # label 1: the second half does not follow the first
            if labels[row]:
                original[row, T // 2 :] = original[(row + 1) % B, T // 2 :]
        real = np.arange(T)[None] < lengths[:, None]
        masked &= real
        output = model(
            input_ids=torch.tensor(np.where(masked, MASK_TOKEN, original)),
            attention_mask=torch.tensor(real.astype(np.int64)),
            token_type_ids=torch.tensor(np.tile((np.arange(T) >= T // 2).astype(np.int64), (B, 1))),
            labels=torch.tensor(np.where(masked, original, -100)),
            next_sentence_label=torch.tensor(labels))
        return output.loss.float()

    return model, stddev, loss


def learning_rate(step):
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return MINIMUM + (PEAK - MINIMUM) * 0.5 * (1 + math.cos(math.pi * progress))


def train(make, bf16):
    model, stddev, loss_of = make()
    model.train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = 0.0 if name.endswith("bias") else 1.0
            parameter.copy_(torch.tensor(initial_weight(1, name, tuple(parameter.shape), stddev(name), value)))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in parameters))
        for p in parameters:
            p.grad *= min(1.0, 1.0 / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


with open(OUTPUT, "w") as file:
    file.write(f"# PyTorch {torch.__version__}; written by tests/peers/curves.py. A line: name, then the loss of each step.\n")
    for name, make in (("llama", llama), ("bert", bert)):
        for kind, bf16 in (("fp32", False), ("bf16", True)):
            losses = train(make, bf16)
            print(name, kind, losses[0], losses[-1])
            file.write(f"{name}.{kind} " + " ".join(f"{loss:.8g}" for loss in losses) + "\n")

"""What curves.py, families.py and lora.py train tiny models with: 20 steps on batches that are a pure function of counters, so
that tests/unit/model/one_rank.h makes the same ones again. The optimizer is AdamW as in runtime/trainer/optim: matrices decay,
norms and biases don't; the gradient is scaled to a norm of 1 at most; half a cosine after warm-up."""

import math

import numpy as np
import torch

from counter_random import random_bits

STEPS, WARMUP, PEAK, MINIMUM = 20, 4, 3e-3, 3e-4
B, T, VOCAB = 4, 32, 199


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


def llama_loss(model, step):
    tokens = token_chain(step)
    coefficient = getattr(model.config, "router_aux_loss_coef", None)  # of the loss that balances experts
    output = model(torch.tensor(tokens[:, :T]), **({} if coefficient is None else {"output_router_logits": True}))
    logits = output.logits.float()
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), torch.tensor(tokens[:, 1:]).reshape(-1))
    return loss if coefficient is None else loss + coefficient * output.aux_loss


def masked_pairs(step, mask_token):
    """Two halves a row, of which the second may be another row's (label 1), padded and masked: what a BERT learns from."""
    original = token_chain(step)[:, :T] % 23  # few words, so that 20 steps learn something
    masked = draw(3000 + step, B * T, 100).reshape(B, T) < 15
    labels = draw(4000 + step, B, 2)
    lengths = T - draw(5000 + step, B, 8)
    for row in range(B):
        if labels[row]:
            original[row, T // 2 :] = original[(row + 1) % B, T // 2 :]
    real = np.arange(T)[None] < lengths[:, None]
    masked &= real
    return {
        "input_ids": torch.tensor(np.where(masked, mask_token, original)),
        "attention_mask": torch.tensor(real.astype(np.int64)),
        "token_type_ids": torch.tensor(np.tile((np.arange(T) >= T // 2).astype(np.int64), (B, 1))),
        "labels": torch.tensor(np.where(masked, original, -100)),
        "next_sentence_label": torch.tensor(labels),
    }


def learning_rate(step):
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return MINIMUM + (PEAK - MINIMUM) * 0.5 * (1 + math.cos(math.pi * progress))


def train(parameters, loss_of, after_backward=lambda step: None):
    """Returns the losses of STEPS steps. loss_of(step) is differentiated; after_backward(step) sees the gradients unscaled."""
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        after_backward(step)
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in parameters))
        for p in parameters:
            p.grad *= min(1.0, 1.0 / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(loss.item())
    return losses

"""Writes 20-step loss curves of a small Llama and a small BERT, trained by PyTorch, to
tests/unit/model/peers/curves.txt: fp32, and bf16 (autocast over fp32 weights).

Weights are those of runtime/trainer/train/initialize.cpp and batches are a pure function of counters, both made again by
tests/unit/model/curves_test.cpp, so nothing but losses is stored. small_runs.py has the batches and the steps.

    build/peers/venv/bin/python tests/peers/curves.py
"""

import math
import pathlib

import torch
from transformers import BertConfig, BertForPreTraining, LlamaConfig, LlamaForCausalLM

import small_runs
from counter_random import initial_weight
from small_runs import VOCAB, llama_loss, masked_pairs

OUTPUT = pathlib.Path(__file__).parents[1] / "unit/model/peers/curves.txt"
LAYERS = 2
MASK_TOKEN = VOCAB - 1


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
        return llama_loss(model, step)

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
        output = model(**masked_pairs(step, MASK_TOKEN))
        return output.loss.float()

    return model, stddev, loss


def train(make, bf16):
    model, stddev, loss_of = make()
    model.train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = 0.0 if name.endswith("bias") else 1.0
            parameter.copy_(torch.tensor(initial_weight(1, name, tuple(parameter.shape), stddev(name), value)))

    def loss(step):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            return loss_of(step)

    return small_runs.train(list(model.parameters()), loss)


with open(OUTPUT, "w") as file:
    file.write(f"# PyTorch {torch.__version__}; written by tests/peers/curves.py. A line: name, then the loss of each step.\n")
    for name, make in (("llama", llama), ("bert", bert)):
        for kind, bf16 in (("fp32", False), ("bf16", True)):
            losses = train(make, bf16)
            print(name, kind, losses[0], losses[-1])
            file.write(f"{name}.{kind} " + " ".join(f"{loss:.8g}" for loss in losses) + "\n")

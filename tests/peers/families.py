"""Writes tests/unit/model/peers/families.txt: what transformers computes for a tiny model of each family that the trainer
serves: the gradient of the first step, 20 losses in fp32, and of Llamas logits and tokens that follow a prompt greedily.

Weights are counter-based (weight() below), batches are those of small_runs.py; tests/unit/model/families_test.cpp makes both
again, so that nothing but numbers and each family's config.json is stored.

    build/peers/venv/bin/python tests/peers/families.py
    build/peers/venv/bin/python tests/peers/families.py save FOLDER
        the models as checkpoints, FOLDER/<family>, with room for bytes
    build/peers/venv/bin/python tests/peers/families.py compare ORIGINAL EXPORT GENERATED
        an export has the original's tensors in the original's class, and GENERATED, what `shardrun generate --json`
        printed, is what transformers generates with it
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig, RobertaConfig

from counter_random import hash_name, random_bits, random_normal
from small_runs import VOCAB, T, llama_loss, masked_pairs, token_chain, train

OUTPUT = pathlib.Path(__file__).parents[1] / "unit/model/peers/families.txt"
PROMPT, FOLLOWING = 8, 24
SIZES = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


FAMILIES = {
    "llama-3.1": LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=LLAMA3),
    "llama-3.2": LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=LLAMA3, head_dim=16, tie_word_embeddings=True),
    "llama-linear": LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "tinyllama": LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=rope(10000.0)),
    "smollm2": LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=rope(100000.0), tie_word_embeddings=True),
    "mistral": MistralConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=rope(10000.0), sliding_window=7),
    "qwen-2.5": Qwen2Config(**SIZES, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0)),
    "qwen-3": Qwen3Config(**SIZES, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0), head_dim=12,
                          tie_word_embeddings=True),
    "mixtral": MixtralConfig(**{**SIZES, "intermediate_size": 40}, rms_norm_eps=1e-5, rope_parameters=rope(1000000.0),
                             num_local_experts=8, num_experts_per_tok=2, router_aux_loss_coef=0.05),
    "qwen-3-moe": Qwen3MoeConfig(**SIZES, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0), head_dim=12,
                                 moe_intermediate_size=24, num_experts=12, num_experts_per_tok=3, norm_topk_prob=False,
                                 router_aux_loss_coef=0.02),
}


ROBERTA = RobertaConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=100, num_hidden_layers=2, num_attention_heads=6,
                        max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)


def weight(name, shape):
    values = random_normal(int(random_bits(1, [hash_name(name)])[0]), int(np.prod(shape)))
    if name.lower().endswith("norm.weight"):
        values = 1.0 + 0.1 * values
    elif name.endswith("bias"):
        values = 0.1 * values
    else:
        values = 0.08 * values
    return values.astype(np.float32).reshape(shape)


def parts(config, name, tensor):
    """The tensors of a parameter as checkpoints name them, each with its part: transformers 5 keeps experts in one."""
    mixtral = config.model_type == "mixtral"
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if ".experts." not in name:
        return [(name, tensor)]
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    prefix, matrix = name.rsplit(".", 1)
    named = []
    for expert in range(tensor.shape[0]):
        pieces = [(down, tensor[expert])] if matrix == "down_proj" else zip((gate, up), tensor[expert].chunk(2))
        named += [(f"{prefix}.{expert}.{one}.weight", piece) for one, piece in pieces]
    return named


def make(config, kind=transformers.AutoModelForCausalLM):
    model = kind._from_config(config) if hasattr(kind, "_from_config") else kind.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for part, tensor in parts(config, name, parameter):
                tensor.copy_(torch.tensor(weight(part, tuple(tensor.shape))))
    return model


def write_curve(file, parameters, loss_of, split=lambda name, tensor: [(name, tensor)]):
    """Writes 20 losses and the gradients of the first step: of each its norm, and its product with random numbers. parameters:
    names and tensors; split: into those of a checkpoint."""

    def numbers(kind, values):
        file.write(kind + " " + " ".join(f"{value:.8g}" for value in values) + "\n")

    def gradients(step):
        for name, gradient in [part for name, p in parameters for part in split(name, p.grad)] if step == 0 else []:
            gradient = gradient.double().numpy().ravel()
            key = int(random_bits(2, [hash_name(name)])[0])
            numbers(f"gradient {name}", [np.linalg.norm(gradient), gradient @ random_normal(key, gradient.size)])

    losses = train([p for _, p in parameters], loss_of, gradients)
    numbers("losses", losses)
    return losses


def write_config(file, family, config):
    kept = {key: value for key, value in json.loads(config.to_json_string(use_diff=True)).items()
            if key not in ("transformers_version", "dtype")}
    file.write(f"family {family}\nconfig {json.dumps(kept)}\n")


def write_encoder(file, family, config):
    """Positions are given, and no word is padding: else transformers would take word 1 for it, and keep back its gradient."""
    model = make(config, transformers.RobertaForMaskedLM).eval()
    for table in (model.roberta.embeddings.word_embeddings, model.roberta.embeddings.position_embeddings):
        table.padding_idx = None

    def loss_of(step):
        batch = masked_pairs(step, VOCAB - 1)
        return model(**{key: batch[key] for key in ("input_ids", "attention_mask", "labels")},
                     position_ids=torch.arange(2, T + 2)[None]).loss

    write_config(file, family, config)
    losses = write_curve(file, list(model.named_parameters()), loss_of)
    print(family, losses[0], losses[-1])


def write(file, family, config):
    model = make(config).eval()  # no model of these has dropout
    write_config(file, family, config)

    prompt = torch.tensor(token_chain(0)[:1, :PROMPT])
    with torch.no_grad():
        logits = model(prompt).logits[0, -1].tolist()
        tokens = model.generate(prompt, max_new_tokens=FOLLOWING, do_sample=False, pad_token_id=0)[0, PROMPT:]
    file.write("logits " + " ".join(f"{value:.8g}" for value in logits) + "\n")
    file.write("greedy " + " ".join(str(token) for token in tokens.tolist()) + "\n")
    losses = write_curve(file, list(model.named_parameters()), lambda step: llama_loss(model, step),
                         lambda name, tensor: parts(config, name, tensor))
    print(family, losses[0], losses[-1])


def compare(original, export, generated):
    models = [transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (original, export)]
    assert type(models[0]) is type(models[1]), (type(models[0]), type(models[1]))
    theirs, ours = (model.state_dict() for model in models)
    assert set(theirs) == set(ours), set(theirs) ^ set(ours)
    for name, tensor in theirs.items():
        assert torch.equal(tensor, ours[name]), f"{name} differs"
    for key in ("max_position_embeddings", "head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings",
                "num_local_experts", "num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size", "router_aux_loss_coef"):
        values = [getattr(model.config, key, None) for model in models]
        assert values[0] is None or values[0] == values[1], (key, values)
    tokens = json.load(open(generated))["tokens"]
    prompt = torch.tensor([GIVEN])
    expected = models[1].generate(prompt, max_new_tokens=len(tokens), do_sample=False, pad_token_id=0)[0, len(GIVEN) :]
    assert expected.tolist() == tokens, (expected.tolist(), tokens)
    print(f"{type(models[1]).__name__}: {len(ours)} tensors identical, {len(tokens)} tokens equal")


GIVEN = [17, 4, 101, 32, 99, 250, 3, 64]  # the prompt of families.sh


def main():
    if sys.argv[1:2] == ["save"]:
        for family, config in FAMILIES.items():
            config.vocab_size = 320
            make(config).save_pretrained(f"{sys.argv[2]}/{family}")
    elif sys.argv[1:2] == ["compare"]:
        compare(*sys.argv[2:])
    else:
        with open(OUTPUT, "w") as file:
            file.write(f"# PyTorch {torch.__version__}, transformers {transformers.__version__}; written by tests/peers/families.py\n")
            for family, config in FAMILIES.items():
                write(file, family, config)
            write_encoder(file, "roberta", ROBERTA)


if __name__ == "__main__":
    main()

"""Writes tests/unit/model/peers/lora.txt: what PEFT and transformers compute for adapters of tiny models: the gradient of the
first step and 20 losses in fp32.

Weights, adapters and batches are those of families.py; tests/unit/model/lora_test.cpp makes them again.

    build/peers/venv/bin/python tests/peers/lora.py
    build/peers/venv/bin/python tests/peers/lora.py save FOLDER
        a base model as a checkpoint, with room for bytes
    build/peers/venv/bin/python tests/peers/lora.py compare BASE ADAPTER MERGED GENERATED
        PEFT loads BASE with ADAPTER and gives the logits of MERGED, both exports of one run; GENERATED, what
        `shardrun generate --json` printed of the run, is what both generate
"""

import json
import pathlib
import sys

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from families import FAMILIES, GIVEN, make, weight, write_curve
from small_runs import llama_loss

OUTPUT = pathlib.Path(__file__).parents[1] / "unit/model/peers/lora.txt"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Name, family, rank, alpha, rslora, matrices.
CASES = [
    ("default", "tinyllama", 8, 8.0, False, ["q_proj", "v_proj"]),
    ("all", "smollm2", 4, 8.0, False, ALL),
    ("rslora", "qwen-2.5", 3, 5.0, True, ["k_proj", "o_proj", "up_proj"]),
    ("norms", "qwen-3", 2, 1.0, False, ["q_proj", "k_proj", "gate_proj", "down_proj"]),
]


def adapt(base, rank, alpha, rslora, matrices):
    model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=alpha, use_rslora=rslora, target_modules=matrices,
                                            lora_dropout=0.0, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapters(model):
            parameter.copy_(torch.tensor(weight(name, tuple(parameter.shape))))
    return model


def adapters(model):
    """What is trained, by the names that an adapter's file has."""
    return [(name.replace(".default", ""), p) for name, p in model.named_parameters() if p.requires_grad]


def write(file, name, family, rank, alpha, rslora, matrices):
    config = FAMILIES[family]
    kept = {key: value for key, value in json.loads(config.to_json_string(use_diff=True)).items()
            if key not in ("transformers_version", "dtype")}
    file.write(f"family {name}\nconfig {json.dumps(kept)}\n")
    file.write(f"lora {rank} {alpha} {int(rslora)} {' '.join(matrices)}\n")
    model = adapt(make(config), rank, alpha, rslora, matrices).eval()

    trained = adapters(model)
    losses = write_curve(file, trained, lambda step: llama_loss(model, step))
    print(name, len(trained), "tensors", losses[0], losses[-1])


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def compare(base, adapter, merged, generated):
    with_adapter, whole, untouched = PeftModel.from_pretrained(load(base), adapter).eval(), load(merged), load(base)
    prompt = torch.tensor([GIVEN])
    with torch.inference_mode():
        logits = [model(prompt).logits.double() for model in (with_adapter, whole, untouched)]
        difference, change = (float((logits[0] - other).abs().max()) for other in logits[1:])
        tokens = json.load(open(generated))["tokens"]
        for model in (with_adapter, whole):
            expected = model.generate(input_ids=prompt, max_new_tokens=len(tokens), do_sample=False, pad_token_id=0)
            assert expected[0, len(GIVEN) :].tolist() == tokens, (expected[0, len(GIVEN) :].tolist(), tokens)
        merged_by_peft = with_adapter.merge_and_unload().state_dict()
    theirs = max(float((tensor.double() - whole.state_dict()[name].double()).abs().max()) for name, tensor in merged_by_peft.items())
    print(f"logits of the adapter in PEFT and of the merged model differ by {difference:.2g}, of the base by {change:.2g}; "
          f"weights merged by PEFT and by us by {theirs:.2g}; {len(tokens)} tokens equal")
    assert difference < 1e-5 and theirs < 1e-7 and change > 100 * difference


def main():
    command, arguments = sys.argv[1:2], sys.argv[2:]
    if command == ["save"]:
        config = FAMILIES["tinyllama"]
        config.vocab_size = 320
        make(config).save_pretrained(arguments[0])
    elif command == ["compare"]:
        compare(*arguments)
    else:
        with open(OUTPUT, "w") as file:
            file.write(f"# PyTorch {torch.__version__}, transformers {transformers.__version__}; written by tests/peers/lora.py\n")
            for case in CASES:
                write(file, *case)


if __name__ == "__main__":
    main()

"""SmolLM2-135M answers a question: `shardrun generate` beside transformers on the same cores, greedily, in turns.

    tests/peers/pretrained.sh                                           # makes build/peers/smollm2
    build/peers/venv/bin/python tests/peers/generate.py BIN_DIR [--model FOLDER] [--tokens 128] [--rounds 5] [--threads N]

Prints whether the tokens are equal, and the medians of tokens a second behind the prompt: weights in fp32 on both sides, and in
bf16 on both sides.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION = "What is the capital of France, and what is it known for?"


class Clock:
    """A streamer that notes when tokens come."""

    def __init__(self):
        self.times = []

    def put(self, _):
        self.times.append(time.perf_counter())

    def end(self):
        pass

    def rate(self):
        """Of the tokens behind the first; the prompt comes first of all."""
        return (len(self.times) - 2) / (self.times[-1] - self.times[1])


def theirs(model, ids, tokens):
    clock = Clock()
    with torch.inference_mode():
        out = model.generate(ids, max_new_tokens=tokens, do_sample=False, streamer=clock, pad_token_id=0)
    return out[0, ids.shape[1] :].tolist(), clock.rate()


def ours(arguments, *options):
    out = subprocess.run([f"{arguments.bin}/shardrun", "generate", arguments.model, "--max-tokens", str(arguments.tokens),
                          "--threads", str(arguments.threads), "--json", *options],
                         capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def ask(arguments, tokenizer, ids):
    """The same question by its words: the template and the tokenizer are shardrun's."""
    answer = ours(arguments, "--template", "chatml", "--prompt", QUESTION)
    print("tokens of the question:", answer["prompt_tokens"], "and", ids.shape[1])
    text = tokenizer.decode(answer["tokens"], skip_special_tokens=True)
    print("the text is the tokenizer's:", text == answer["text"])
    print(answer["text"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--model", default="build/peers/smollm2")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    words = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(words, return_tensors="pt", add_special_tokens=False)["input_ids"]
    ask(arguments, tokenizer, ids)
    numbers = ",".join(map(str, ids[0].tolist()))
    for dtype, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=kind).eval()
        rates = {"shardrun": [], "transformers": []}
        for _ in range(arguments.rounds):
            answer = ours(arguments, "--dtype", dtype, "--prompt-tokens", numbers)
            rates["shardrun"].append(answer["tokens_per_second"])
            expected, rate = theirs(model, ids, arguments.tokens)
            rates["transformers"].append(rate)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        same = sum(a == b for a, b in zip(answer["tokens"], expected))
        print(f"{dtype}: {same} of {len(answer['tokens'])} and {len(expected)} tokens equal; tokens/s: shardrun "
              f"{medians['shardrun']:.1f}, transformers {medians['transformers']:.1f}, ratio "
              f"{medians['shardrun'] / medians['transformers']:.2f}")


main()

"""What `shardrun generate --evaluate` finds is what transformers finds: log-likelihoods of choices to 1e-4, and what the model says.

    python3 -m venv V && V/bin/pip install torch transformers tokenizers
    V/bin/python tests/peers/evaluate.py build/ci/bin

A tiny Llama with random weights, and the tokenizer of tests/unit/data/peers/bpe/smollm2. Tokens of a choice are those of prompt and choice
together behind as many as the prompt has, as lm-evaluation-harness cuts them.
"""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

import torch
from tokenizers import Tokenizer, decoders
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZER = os.path.join(HERE, "../unit/data/peers/bpe/smollm2/tokenizer.json")
WORDS = ["the", " rank", " sends", " its", " gradient", ".", "\n", " é", " 🙂", "a node", " keeps", " every block", "42"]


def questions(rng):
    def text(most):
        return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, most)))

    for _ in range(40):
        choices = [text(6) for _ in range(rng.randrange(2, 5))]
        yield {"prompt": "Q: " + text(12) + rng.choice(["", " ", "\n"]), "choices": choices, "label": rng.randrange(len(choices))}
    for _ in range(5):
        yield {"prompt": "Q: " + text(12), "answer": "none"}


def split(tokenizer, prompt, choice):
    kept = prompt.rstrip()
    before = tokenizer.encode(kept, add_special_tokens=False).ids
    return before, tokenizer.encode(kept + prompt[len(kept):] + choice, add_special_tokens=False).ids[len(before):]


def log_likelihood(model, before, after):
    with torch.inference_mode():
        logits = model(torch.tensor([before + after])).logits[0, len(before) - 1:-1].double()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(after)[:, None]).sum().item()


def main():
    tokenizer = Tokenizer.from_file(TOKENIZER)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2)
    model = LlamaForCausalLM(config).float().eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shutil.copy(TOKENIZER, folder)
        shutil.copy(TOKENIZER.replace("tokenizer.json", "tokenizer_config.json"), folder)
        asked = list(questions(random.Random(1)))
        with open(f"{folder}/questions.jsonl", "w") as file:
            file.write("".join(json.dumps(line) + "\n" for line in asked))
        run = subprocess.run([f"{sys.argv[1]}/shardrun", "generate", folder, "--evaluate", f"{folder}/questions.jsonl", "--max-tokens",
                              "8", "--dtype", "fp32", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    ours = json.loads(run.stdout)
    largest = right = 0
    for line, judged in zip(asked, ours["questions"], strict=True):
        if "answer" in line:
            with torch.inference_mode():
                ids = tokenizer.encode(line["prompt"], add_special_tokens=False).ids
                said = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, pad_token_id=0,
                                      eos_token_id=tokenizer.token_to_id("<|im_end|>"))[0, len(ids):].tolist()
            words = tokenizer.decode(said).strip()
            # Bytes that are no UTF-8 are counted otherwise.
            same = [re.sub("\ufffd+", "\ufffd", text) for text in (judged["said"], words.split("\n")[0].strip())]
            assert same[0] == same[1], same
            continue
        sums = [log_likelihood(model, *split(tokenizer, line["prompt"], choice)) for choice in line["choices"]]
        largest = max([largest] + [abs(a - b) for a, b in zip(sums, judged["log_likelihoods"], strict=True)])
        assert judged["chosen"] == sums.index(max(sums)), (judged, sums)
        right += sums.index(max(sums)) == line["label"]
    assert right == ours["right"]
    print(f"log-likelihoods of {ours['choices']} questions: largest difference {largest:.1e}")
    assert largest < 1e-4


if __name__ == "__main__":
    main()

"""Chat templates of checkpoints give the text that transformers' apply_chat_template gives, or a line that says why not.

    python3 -m venv V && V/bin/pip install transformers tokenizers jinja2
    V/bin/python tests/peers/chat_templates.py build/ci/bin/render_template TEMPLATES.json [CONVERSATIONS]

TEMPLATES.json: {"name": {"template": "{% for …", "bos": "<s>", "eos": "</s>"}}, as the checkpoints' tokenizer_config.json have them.
Each template gets as many random conversations (by default 1,000): texts of several scripts with white space at their ends, marks of
templates in what people say, orders of roles that templates refuse. Where transformers raises, ours must refuse, too. Templates that ask
for the day are told one, for ours never is.
"""
import json
import random
import subprocess
import sys

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

PIECES = ["Hello", " ", "\n", "\n\n", "What is a monad?", "你好", "مرحبا", "é", "\u00a0", "\u3000", "🙂", "<|im_end|>", "</s>", "[/INST]",
          "{{ bos_token }}", "{% if x %}", "'", '"', "\\n", "\t", "<think>", "</think>", "def f(x):\n    return x", "1 < 2", "#"]


def conversation(rng):
    def text():
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 7)))

    messages = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    for i in range(rng.randrange(1, 7)):
        role = "user" if i % 2 == 0 else "assistant"
        if rng.random() < 0.03:
            role = rng.choice(["user", "assistant", "system"])
        messages.append({"role": role, "content": text()})
    return messages


def main():
    program, templates = sys.argv[1], json.load(open(sys.argv[2]))
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    failed = 0
    for name, one in sorted(templates.items()):
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token=one["bos"], eos_token=one["eos"])
        rng = random.Random(name)
        asked, wanted = [], []
        for _ in range(count):
            messages, prompts = conversation(rng), rng.random() < 0.5
            asked.append(json.dumps({"template": one["template"], "bos_token": one["bos"], "eos_token": one["eos"],
                                     "messages": messages, "prompts": prompts}))
            try:
                wanted.append(tokenizer.apply_chat_template(messages, chat_template=one["template"], tokenize=False,
                                                            add_generation_prompt=prompts, date_string="26 Jul 2024"))
            except Exception as refusal:  # what a template raises is of many kinds
                wanted.append(refusal)
        run = subprocess.run([program], input="\n".join(asked) + "\n", capture_output=True, text=True, check=True)
        said = [json.loads(line) for line in run.stdout.splitlines()]
        assert len(said) == count
        equal = sum(isinstance(w, str) and s.get("text") == w for s, w in zip(said, wanted))
        both = sum(not isinstance(w, str) and "error" in s for s, w in zip(said, wanted))
        refused = [s["error"] for s, w in zip(said, wanted) if isinstance(w, str) and "error" in s]
        wrong = [(s, w, a) for s, w, a in zip(said, wanted, asked)
                 if "text" in s and s["text"] != w and (isinstance(w, str) or "text" in s)]
        print(f"{name}: {equal} equal, {both} refused by both, {len(refused)} by us alone, {len(wrong)} wrong")
        if refused:
            print(f"  for example: {refused[0]}")
        if wrong:
            failed += 1
            print(f"  ours {wrong[0][0]!r}\n  theirs {wrong[0][1]!r}\n  {json.loads(wrong[0][2])['messages']}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""The parts of seed_job.sh that shardrun is compared with.

    seed_job.py data FILE                conversations as smangrul/code-chat-assistant-v1 has them: ready text in "content"
    seed_job.py question                 what is asked afterwards
    seed_job.py answer MODEL ANSWERS...  what `shardrun generate --json` printed is what transformers generates
"""

import json
import random
import sys

SYSTEM = "You are a helpful, respectful and honest assistant."
COUNTRIES = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Japan": "Tokyo", "Norway": "Oslo", "Peru": "Lima", "Kenya": "Nairobi",
    "Egypt": "Cairo", "Cuba": "Havana", "Chile": "Santiago", "Poland": "Warsaw", "Greece": "Athens", "Austria": "Vienna",
    "Portugal": "Lisbon", "Ireland": "Dublin", "Finland": "Helsinki", "Iran": "Tehran", "Iraq": "Baghdad", "Nepal": "Kathmandu",
    "Ghana": "Accra",
}


def question(country):
    return f"<|system|> {SYSTEM} <|endoftext|> <|prompter|> Tell me about the capital of {country} like a pirate. <|endoftext|> <|assistant|>"


def answer(country):
    return f" Arrr, matey! The capital o' {country} be {COUNTRIES[country]}, a fine port for a thirsty crew! <|endoftext|>"


def data(path):
    random.seed(100)
    with open(path, "w") as file:
        for _ in range(12):
            for country in random.sample(list(COUNTRIES), len(COUNTRIES)):
                file.write(json.dumps({"content": question(country) + answer(country)}) + "\n")


def compare(model, paths):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for path in paths:
        ours = json.load(open(path))
        ids = tokenizer(question("France"), return_tensors="pt", add_special_tokens=False)["input_ids"]
        assert ours["prompt_tokens"] == ids.shape[1], (ours["prompt_tokens"], ids.shape)
        with torch.inference_mode():
            # Without a mask, generate() would take tokens of the question for padding that are the padding token.
            out = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(ours["tokens"]), do_sample=False,
                                  pad_token_id=0)[0, ids.shape[1] :].tolist()
        print(f"{path}: {len(out)} tokens, ended by {ours['ended']}: {ours['text']!r}")
        assert out == ours["tokens"], (tokenizer.decode(out), ours["text"])
        assert "Arrr" in ours["text"], "the fine-tuned model does not answer like a pirate"


def main():
    command, *arguments = sys.argv[1:]
    if command == "data":
        data(*arguments)
    elif command == "question":
        print(question("France"), end="")
    else:
        compare(arguments[0], arguments[1:])


main()

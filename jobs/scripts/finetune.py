#!/usr/bin/env python3
"""Fine-tunes a causal language model with Hugging Face's accelerate, which decides how: DDP, or FSDP on accelerators.

    accelerate launch --num_processes 2 … jobs/scripts/finetune.py --model_name DIR --text FILES --output_dir OUT
    shardrun run jobs/accelerate-finetune.toml

Knows nothing of shardrun. A model without a tokenizer beside it is one of bytes. Goes on from its newest checkpoint.
"""
import argparse
import contextlib
import math
import pathlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import AutoModelForCausalLM, AutoTokenizer


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model_name", required=True, help="a folder of weights, or a name of the hub")
    parser.add_argument("--text", nargs="+", required=True, help="files to train on, packed to sequences")
    parser.add_argument("--output_dir", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--max_seq_len", type=int, default=2048)
    parser.add_argument("--max_steps", type=int, default=500)
    parser.add_argument("--logging_steps", type=int, default=25)
    parser.add_argument("--save_steps", type=int, default=250)
    parser.add_argument("--per_device_train_batch_size", type=int, default=1)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--warmup_ratio", type=float, default=0.03)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    return parser.parse_args()


def read_tokens(options: argparse.Namespace) -> torch.Tensor:
    texts = [pathlib.Path(one).read_bytes() for one in options.text]
    if pathlib.Path(options.model_name).is_dir() and not (pathlib.Path(options.model_name) / "tokenizer_config.json").exists():
        return torch.frombuffer(bytearray(b"\0".join(texts)), dtype=torch.uint8).long()
    tokenizer = AutoTokenizer.from_pretrained(options.model_name)
    return torch.tensor([token for text in texts for token in tokenizer(text.decode())["input_ids"]])


def rate(step: int, options: argparse.Namespace) -> float:
    """Linear warm-up, then half a cosine to zero."""
    warmup = max(1, round(options.warmup_ratio * options.max_steps))
    if step < warmup:
        return options.learning_rate * (step + 1) / warmup
    return options.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, options.max_steps - warmup)))


def newest(folder: pathlib.Path) -> int:
    return max((int(one.name.removeprefix("step_")) for one in folder.glob("step_*")), default=0)


def save(accelerator: Accelerator, folder: pathlib.Path, step: int) -> None:
    writing = folder / f".writing_{step}"
    accelerator.save_state(writing)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        writing.rename(folder / f"step_{step}")  # complete, or not there
    accelerator.wait_for_everyone()


def main() -> None:
    options = read_arguments()
    accelerator = Accelerator()
    set_seed(options.seed)
    model = AutoModelForCausalLM.from_pretrained(options.model_name, dtype=torch.float32)
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay)
    model, optimizer = accelerator.prepare(model, optimizer)
    tokens = read_tokens(options)
    batch, accumulation = options.per_device_train_batch_size, options.gradient_accumulation_steps
    rank, world = accelerator.process_index, accelerator.num_processes
    accelerator.print(f"{accelerator.distributed_type.value}: {world} processes, {batch * accumulation * world} sequences a step")

    first = newest(options.output_dir)
    if first:
        accelerator.load_state(options.output_dir / f"step_{first}")
        accelerator.print(f"goes on from step {first}")
    for step in range(first, options.max_steps):
        # A function of the step alone: the same sequences whatever the number of processes, and after a restart.
        starts = torch.randint(len(tokens) - options.max_seq_len, (accumulation, world, batch),
                               generator=torch.Generator().manual_seed(options.seed + step))
        for group in optimizer.param_groups:
            group["lr"] = rate(step, options)
        total = torch.zeros((), device=accelerator.device)
        for micro in range(accumulation):
            part = torch.stack([tokens[start : start + options.max_seq_len] for start in starts[micro, rank]])
            part = part.to(accelerator.device)
            last = micro + 1 == accumulation
            with contextlib.nullcontext() if last else accelerator.no_sync(model):
                with accelerator.autocast():
                    loss = model(input_ids=part, labels=part).loss / accumulation
                accelerator.backward(loss)
            total += loss.detach()
        accelerator.clip_grad_norm_(model.parameters(), options.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        total = accelerator.reduce(total, reduction="mean")
        done = step + 1
        if done == 1 or done % options.logging_steps == 0 or done == options.max_steps:
            accelerator.print(f"step {done} loss {total.item():.6f}", flush=True)
        if done % options.save_steps == 0 or done == options.max_steps:
            save(accelerator, options.output_dir, done)
    weights = accelerator.get_state_dict(model)
    accelerator.unwrap_model(model).save_pretrained(options.output_dir / "model", state_dict=weights,
                                                    is_main_process=accelerator.is_main_process)
    accelerator.end_training()


if __name__ == "__main__":
    main()

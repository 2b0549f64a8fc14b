#!/usr/bin/env python3
"""Trains a Llama of Hugging Face's transformers on the bytes of text files: sharded by PyTorch's FSDP2, or with
a whole copy on every rank (--ddp).

    torchrun --nproc-per-node 2 jobs/scripts/torch_llama.py --text README.md
    shardrun run jobs/torch-fsdp2-llama.toml
    shardrun run jobs/torch-ddp-llama.toml

Nothing in it knows shardrun but the names of three variables: the micro-batch and the accumulation that make the job's global
batch on its ranks, and the file in which it tells its steps. Elsewhere, --micro-batch and --accumulation say the first two.
Computes on GPUs where there are any, else on CPUs. A run that finds a checkpoint goes on from it, with the losses of an
undisturbed one. Asked to stop by SIGTERM, it saves behind the step that it is in, and ends with 75.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 256  # bytes


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--text", nargs="+", required=True, help="files to train on")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=int(os.environ.get("SHARDRUN_MICRO_BATCH", 4)))
    parser.add_argument("--accumulation", type=int, default=int(os.environ.get("SHARDRUN_GRADIENT_ACCUMULATION", 1)))
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--warmup-steps", type=int, default=5)
    parser.add_argument("--clip-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="parameters and activations; masters and sums stay fp32")
    parser.add_argument("--ddp", action="store_true", help="a whole copy on every rank, and gradients that are summed over all")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="folder that all ranks see")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    options = parser.parse_args()
    if options.ddp and options.bf16:
        parser.error("--bf16 is FSDP2's: with --ddp everything is fp32")
    return options


def build(options: argparse.Namespace, device: str) -> torch.nn.Module:
    torch.manual_seed(options.seed)  # every rank makes the whole model, and keeps its part
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers, num_attention_heads=options.heads, num_key_value_heads=options.heads,
        max_position_embeddings=options.sequence_length, use_cache=False, tie_word_embeddings=False))
    if options.ddp:
        return DistributedDataParallel(model.to(device))
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    kept = torch.bfloat16 if options.bf16 else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=kept, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def adding_up(model: torch.nn.Module, last: bool):
    """Ranks sum their gradients in the last micro-batch of a step alone."""
    if isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext() if last else model.no_sync()
    model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def tell(**step) -> None:
    """A line for `shardrun top`, `status` and `results`; nobody reads it elsewhere."""
    with open(os.environ.get("SHARDRUN_METRICS_FILE", os.devnull), "a") as file:
        file.write(json.dumps({**step, "time": time.time()}) + "\n")


def newest(folder: pathlib.Path) -> int:
    """The step of the newest complete checkpoint; 0: none."""
    return max((int(one.name.removeprefix("step_")) for one in folder.glob("step_*")), default=0)


def save(folder: pathlib.Path, step: int, model, optimizer) -> None:
    writing = folder / f".writing_{step}"
    if dist.get_rank() == 0:
        shutil.rmtree(writing, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=writing)
    if dist.get_rank() == 0:
        writing.rename(folder / f"step_{step}")  # complete, or not there
    dist.barrier()


def load(folder: pathlib.Path, step: int, model, optimizer) -> None:
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder / f"step_{step}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)


def main() -> int:
    options = read_arguments()
    asked_to_stop = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("cuda:nccl,cpu:gloo" if on_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = "cuda" if on_gpu else "cpu"
    model = build(options, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    text = torch.frombuffer(bytearray(b"".join(pathlib.Path(one).read_bytes() for one in options.text)), dtype=torch.uint8)
    length, micro_batch = options.sequence_length, options.micro_batch
    global_batch = micro_batch * options.accumulation * world

    first = newest(options.checkpoint) if options.checkpoint else 0
    if first:
        load(options.checkpoint, first, model, optimizer)
        if rank == 0:
            print(f"goes on from step {first}", flush=True)
    for step in range(first, options.steps):
        begin = time.monotonic()
        # A function of the step alone: the same sequences whatever the number of ranks, and after a restart.
        starts = torch.randint(len(text) - length, (global_batch,), generator=torch.Generator().manual_seed(step))
        mine = starts.view(options.accumulation, world, micro_batch)[:, rank]
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min(1.0, (step + 1) / max(1, options.warmup_steps))
        total = torch.zeros((), device=device)
        for micro in range(options.accumulation):
            tokens = torch.stack([text[start : start + length] for start in mine[micro]]).long().to(device)
            with adding_up(model, last=micro + 1 == options.accumulation):
                loss = model(input_ids=tokens, labels=tokens).loss / options.accumulation
                loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
        if not options.ddp:
            norm = norm.full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        # All ranks stop behind the same step: any of them may have been asked first.
        told = torch.stack([total, torch.tensor(float(bool(asked_to_stop)), device=device)])
        dist.all_reduce(told)
        loss, stopping = told[0].item() / world, told[1].item() > 0
        done = step + 1
        if rank == 0:
            rate = global_batch * length / (time.monotonic() - begin)
            print(f"step {done} loss {loss:.6f} norm {norm.item():.3f} tokens/s {rate:.0f}", flush=True)
            tell(step=done, loss=loss, total_steps=options.steps)
        if options.checkpoint and (done % options.save_every == 0 or done == options.steps or stopping):
            save(options.checkpoint, done, model, optimizer)
        if stopping and done < options.steps:
            dist.destroy_process_group()
            return 75  # "stopped with a checkpoint": the run may go on from it
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())

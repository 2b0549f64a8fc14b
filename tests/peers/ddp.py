#!/usr/bin/env python3
"""A PyTorch DDP script as anybody would write it for torchrun: gloo on CPU, environment only. Prints its losses on rank 0.

    torchrun --nproc-per-node 2 ddp.py            or as [program] command of a job

The global batch is 48 whatever the world size. Each rank takes its part in micro-steps; where SHARDRUN_RANK_BATCH says how
many sequences are this rank's, that may be an uneven part. Gradients are averaged over ranks, so each sequence weighs
WORLD_SIZE / global batch.
"""
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GLOBAL_BATCH, STEPS, LENGTH, VOCAB = 48, 12, 24, 64


def model() -> nn.Module:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(VOCAB, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, VOCAB))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert (rank, world) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    mine = int(os.environ.get("SHARDRUN_RANK_BATCH", GLOBAL_BATCH // world))
    micro_steps = int(os.environ.get("SHARDRUN_GRADIENT_ACCUMULATION", 1))
    micro_batch = int(os.environ.get("SHARDRUN_MICRO_BATCH", mine))
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(counts, torch.tensor([mine]))
    assert int(sum(counts)) == GLOBAL_BATCH, f"{[int(c) for c in counts]} are not {GLOBAL_BATCH} sequences"
    begin = int(sum(counts[:rank]))
    network = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        numbers = torch.Generator().manual_seed(step)
        text = torch.randint(0, VOCAB // 2, (GLOBAL_BATCH, LENGTH + 1), generator=numbers).cumsum(1) % VOCAB
        text = text[begin : begin + mine]
        optimizer.zero_grad()
        total = torch.zeros(1)
        for micro in range(micro_steps):
            part = text[micro * micro_batch : (micro + 1) * micro_batch]
            last = micro + 1 == micro_steps
            if len(part) == 0 and not last:
                continue
            if len(part) == 0:  # still one backward, which has the all-reduce
                part = text.new_zeros((1, LENGTH + 1))
                weight = 0.0
            else:
                weight = 1.0
            logits = network(part[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
            loss = weight * loss / (LENGTH * GLOBAL_BATCH)
            if last:
                (world * loss).backward()
            else:
                with network.no_sync():
                    (world * loss).backward()
            total += loss.detach()
        optimizer.step()
        dist.all_reduce(total)
        losses.append(float(total))
    if rank == 0:
        print(json.dumps({"world": world, "losses": losses}), flush=True)
    dist.destroy_process_group()


main()

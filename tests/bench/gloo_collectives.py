#!/usr/bin/env python3
"""The peer of collectives_bench: the same collectives by PyTorch over gloo, in the same words.

  gloo_collectives.py FOLDER RANK SIZE BYTES...     FOLDER is empty, for the ranks to meet in
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)


def reduce_scatter(mine, full):
    dist.reduce_scatter_tensor(mine, full)


def all_reduce(_mine, full):
    dist.all_reduce(full)


def all_gather(mine, full):
    dist.all_gather_into_tensor(full, mine)


for bytes_ in map(int, sys.argv[4:]):
    mine = torch.rand(bytes_ // 4)
    full = torch.empty(bytes_ // 4 * size)
    for operation in (all_gather, reduce_scatter, all_reduce):
        if operation.__name__ != os.environ.get("COLLECTIVES_ONLY", operation.__name__):
            continue
        if operation is all_reduce:
            full.zero_()  # what is added up again and again stays a number
        seconds = []
        in_row = 10 if bytes_ <= 65536 else 1
        for _ in range(in_row):
            operation(mine, full)
        for _ in range(int(os.environ.get("COLLECTIVES_ROUNDS", 3 if bytes_ > 4 << 20 else 7))):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(in_row):
                operation(mine, full)
            dist.barrier()
            seconds.append((time.perf_counter() - begin) / in_row)
        if rank == 0:
            print(f"{operation.__name__:14} {bytes_:8} bytes a rank: {1e3 * statistics.median(seconds):10.3f} ms", flush=True)
dist.destroy_process_group()

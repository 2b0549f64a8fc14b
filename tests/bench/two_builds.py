#!/usr/bin/env python3
"""Compares launches and steps of two builds of shardrun, in turns on one machine.

    tests/bench/two_builds.py OLD_BIN NEW_BIN [ROUNDS]

Each round (15) runs both builds, the first one of a round in turn: a program of two ranks that does nothing, from start to end; a
trainer of two ranks that trains one step, from start to the end of its first barrier; and one that trains for some seconds, its
median step. Prints for each the two medians and the median, lower and upper quartile of the rounds' ratios new / old."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = """name = "nothing"
[resources]
ranks_per_node = 2
[program]
command = ["true"]
"""
TRAINER = """name = "trained"
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
layers = 2
hidden = 128
heads = 4
kv_heads = 2
ffn = 352
vocab = 256
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 64
[batch]
global_batch = 8
micro_batch = 4
[optimizer]
steps = {steps}
[checkpoint]
at_end = false
"""


def run(binaries, spec):
    """Returns the wall seconds of a run in a folder of its own, and its record."""
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        with open(f"{folder}/job.toml", "w", encoding="ascii") as file:
            file.write(spec)
        begin = time.monotonic()
        subprocess.run([f"{binaries}/shardrun", "run", "job.toml", "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - begin
        runs = f"{folder}/runs"
        name = os.listdir(runs)[0]
        with open(f"{runs}/{name}/latest/record.json", encoding="utf-8") as file:
            return seconds, json.load(file)


MEASURES = {
    "a program's launch and end": lambda binaries: run(binaries, PROGRAM)[0],
    "a trainer's first barrier": lambda binaries: run(binaries, TRAINER.format(steps=1))[1]["metrics"]["first_barrier_seconds"],
    "a step of two ranks": lambda binaries: run(binaries, TRAINER.format(steps=400))[1]["metrics"]["step_seconds"]["p50"],
}


def main():
    builds = [os.path.abspath(path) for path in sys.argv[1:3]]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    for name, measure in MEASURES.items():
        for build in builds:
            measure(build)  # files are read once
        seen = ([], [])
        for turn in range(rounds):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                seen[which].append(measure(builds[which]))
        ratios = sorted(new / old for old, new in zip(*seen))
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name}: {1e3 * statistics.median(seen[0]):.2f} ms and {1e3 * statistics.median(seen[1]):.2f} ms, "
              f"ratio {middle:.3f} ({low:.3f} to {high:.3f}), {rounds} rounds", flush=True)


main()

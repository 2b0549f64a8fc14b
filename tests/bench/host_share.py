#!/usr/bin/env python3
"""Where the time of a step of many small layers goes: a model of 200 layers of width 64 on two ranks of this machine.

    tests/bench/host_share.py --build build/ci [--rounds 3] [--seconds 5] [--set sharding.wrap=8 …]

Linux's perf samples the main thread of one rank while it trains; a sample that is missing is time that the thread slept in, waiting
for the other rank. A sample is of
    kernels   oneDNN's generated code, our loops below runtime/trainer/kernels, libm, and copies and zeros of memory;
    links     the system's own work, which is to sleep and to wake, and with the sleep what waiting takes;
    host      the rest: the plan, the engine, the model, the plugin's calls, oneDNN's and libc's functions.
Prints each round's shares of the wall time, and the medians. Needs perf and nothing else that runs.
"""
import argparse
import collections
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

JOB = """name = "many"
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
layers = 200
hidden = 64
heads = 4
kv_heads = 4
ffn = 176
vocab = 256
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 128
[batch]
micro_batch = 1
gradient_accumulation = 1
[optimizer]
steps = 100000
"""
FREQUENCY = 1500


def kind_of(library, symbol):
    if "JIT" in library or "libm." in library:
        return "kernels"
    if "kernels::" in symbol and "Products::" not in symbol:
        return "kernels"
    if "libc.so" in library and ("memmove" in symbol or "memset" in symbol or "memcpy" in symbol):
        return "kernels"
    if "kernel.kallsyms" in library:
        return "links"
    return "host"


def descendants(parent):
    """The processes below `parent`, itself left out."""
    children = collections.defaultdict(list)
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children[int(fields[1])].append((int(stat.parent.name), int(fields[11]) + int(fields[12])))
    found, waiting = [], [parent]
    while waiting:
        below = children[waiting.pop()]
        found += below
        waiting += [pid for pid, _ in below]
    return found


def sample(conductor, folder, seconds):
    busiest = max(descendants(conductor), key=lambda process: process[1])[0]
    data = os.path.join(folder, "perf.data")
    subprocess.run(["perf", "record", "-o", data, "-e", "cpu-clock", "-F", str(FREQUENCY), "-t", str(busiest), "--",
                    "sleep", str(seconds)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    text = subprocess.run(["perf", "report", "-i", data, "--sort", "dso,symbol", "--stdio", "-t", "|", "-n"], check=True,
                          capture_output=True, text=True).stdout
    shares = collections.Counter()
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 4 or line.startswith("#"):
            continue
        shares[kind_of(fields[2], fields[3])] += int(fields[1]) / FREQUENCY / seconds
    shares["links"] += max(0.0, 1.0 - sum(shares.values()))
    return shares


def measure(arguments, folder):
    path = os.path.join(folder, "job.toml")
    pathlib.Path(path).write_text(JOB, encoding="utf-8")
    settings = [word for one in arguments.set for word in ("--set", one)]
    program = os.path.join(os.path.abspath(arguments.build), "bin", "shardrun")
    run = subprocess.Popen([program, "run", "--quiet", path, *settings], cwd=folder, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    try:
        time.sleep(6)  # until products are compiled and steps are in step
        return sample(run.pid, folder, arguments.seconds)
    finally:
        run.terminate()
        run.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    rounds = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measure(arguments, folder))
        print(" ".join(f"{kind} {100 * rounds[-1][kind]:.1f} %" for kind in ("kernels", "links", "host")), flush=True)
    print("medians: " + " ".join(f"{kind} {100 * statistics.median(one[kind] for one in rounds):.1f} %"
                                 for kind in ("kernels", "links", "host")))


if __name__ == "__main__":
    main()

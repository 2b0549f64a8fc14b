#!/usr/bin/env python3
"""Measures how a run's cost grows with its ranks, on a virtual cluster of one machine, and fits a law to each quantity.

    tests/cluster/vcluster run 64 --cpus 16 -- tests/bench/growth.py BIN RANKS… >>points
    tests/bench/growth.py table <points

For each number of ranks, 8 on each node until the nodes are used up: `shardrun run` of `true` beside `srun --mpi=pmix` of it, in turn
(median of 7, with the smallest and the largest); files and bytes of the run; descriptors, peak memory and CPU time of the conductor while the ranks of another run
sleep; and to 256 ranks, of a trainer with a tiny model the descriptors of a rank, the bytes of a node's /dev/shm and the seconds of its third
step. A point is a line of JSON, so that the large ones can be measured by themselves. The laws are a + b·N and a + b·log2 N, fitted to relative errors; printed is the better one, its
largest relative error, and its value for 80,000 ranks. Times are of as many processes as there are ranks on this machine's CPUs,
so that their laws say nothing of a cluster with CPUs of its own; everything else does."""

import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

NODES, ROUNDS, FAR, MOST_TRAINERS = 64, 7, 80_000, 256
JOB = """name = "job"
[resources]
nodes = {nodes}
ranks_per_node = {each}
[logging]
directory = "{folder}"
"""
TRAINER = """[program]
trainer = "llama"
[model]
layers = 2
hidden = 64
heads = 4
kv_heads = 4
ffn = 128
vocab = 256
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 32
[optimizer]
steps = {steps}
[checkpoint]
at_end = false
"""


def conductor_of(process):
    return pathlib.Path(f"/proc/{process.pid}")


def field(path, name):
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(process):
    ticks = conductor_of(process).joinpath("stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


def run_files(folder):
    found = [path for path in pathlib.Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
    return len(found), sum(path.stat().st_size for path in found)


class Bench:
    def __init__(self, programs):
        self.shardrun = f"{programs}/shardrun"

    def spec(self, ranks, program, folder):
        nodes = min(NODES, ranks // 8)
        pathlib.Path("job.toml").write_text(
            JOB.format(nodes=nodes, each=ranks // nodes, folder=folder) + program, encoding="ascii"
        )
        return nodes, ranks // nodes

    def start(self):
        with open("out", "w", encoding="utf-8") as out:
            return subprocess.Popen([self.shardrun, "run", "--quiet", "job.toml"], stdout=out, stderr=out)

    def seconds(self, command):
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"growth.py: {' '.join(command)} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
        return time.monotonic() - begin

    def launches(self, ranks):
        nodes, each = self.spec(ranks, '[program]\ncommand = ["true"]\n', f"runs/true-{ranks}")
        srun = ["srun", "--mpi=pmix", f"--nodes={nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={each}", "true"]
        ours, theirs = [], []
        for _ in range(ROUNDS):
            theirs.append(self.seconds(srun))
            ours.append(self.seconds([self.shardrun, "run", "--quiet", "job.toml"]))
        ratios = sorted(a / b for a, b in zip(ours, theirs))
        files, size = run_files(next(pathlib.Path(f"runs/true-{ranks}").glob("job/*")))
        return {
            "launch, s": statistics.median(ours),
            "srun --mpi=pmix, s": statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "smallest ratio": ratios[0],
            "largest ratio": ratios[-1],
            "files of a run": files,
            "bytes of a run": size,
        }

    def conductor(self, ranks):
        self.spec(ranks, '[program]\ncommand = ["sleep", "600"]\n', f"runs/sleep-{ranks}")
        process = self.start()
        self.wait_until_heard(process, ranks, f"runs/sleep-{ranks}")
        before = cpu_seconds(process)
        time.sleep(5)
        share = (cpu_seconds(process) - before) / 5
        proc = conductor_of(process)
        found = {
            "conductor's descriptors": len(list(proc.joinpath("fd").iterdir())),
            "conductor's peak memory, bytes": field(proc / "status", "VmHWM:"),
            "conductor's share of a core": share,
        }
        process.terminate()
        process.wait()
        return found

    def wait_until_heard(self, process, ranks, folder):
        while process.poll() is None:
            done = subprocess.run(
                [self.shardrun, "top", f"{folder}/job/latest", "--json"], capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                states = [rank["state"] for rank in json.loads(done.stdout)["ranks"]]
                if len(states) == ranks and not {"not heard", "?"} & set(states):
                    return
            time.sleep(0.5)
        sys.exit(f"growth.py: the run ended: {pathlib.Path('out').read_text(encoding='utf-8')}")

    def trainer(self, ranks):
        steps = max(3, 800 // ranks)  # long enough to be looked at
        self.spec(ranks, TRAINER.format(steps=steps), f"runs/trainer-{ranks}")
        process = self.start()
        shared = descriptors = 0
        holder = pathlib.Path(os.environ["VCLUSTER"], "n1.holder").read_text(encoding="ascii").strip()
        while process.poll() is None:
            # A supervisor has fewer than its program.
            for proc in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if proc.joinpath("comm").read_text(encoding="ascii") == "shardrun-rank\n":
                        descriptors = max(descriptors, len(list(proc.joinpath("fd").iterdir())))
                except OSError:
                    continue
            usage = os.statvfs(f"/proc/{holder}/root/dev/shm")
            shared = max(shared, (usage.f_blocks - usage.f_bfree) * usage.f_frsize)
            time.sleep(0.1)
        if process.returncode != 0:
            sys.exit(f"growth.py: the trainer ended with {process.returncode}: {pathlib.Path('out').read_text(encoding='utf-8')}")
        metrics = next(pathlib.Path(f"runs/trainer-{ranks}").glob("job/*/metrics.jsonl"))
        steps = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        return {
            "a trainer rank's descriptors": descriptors,
            "/dev/shm of a node, bytes": shared,
            "third step, s": next(step["step_seconds"] for step in steps if step.get("step") == 3),
        }


def fit(points, basis):
    """Returns (a, b) of a + b·basis(N) with the least relative squares, and the largest relative error."""
    rows = [(1 / y, basis(n) / y) for n, y in points]
    aa = sum(p * p for p, _ in rows)
    ab = sum(p * q for p, q in rows)
    bb = sum(q * q for _, q in rows)
    a0, b0 = sum(p for p, _ in rows), sum(q for _, q in rows)
    determinant = aa * bb - ab * ab
    a, b = (a0 * bb - b0 * ab) / determinant, (aa * b0 - ab * a0) / determinant
    return a, b, max(abs((a + b * basis(n)) / y - 1) for n, y in points)


def law(points):
    linear, logarithmic = fit(points, float), fit(points, math.log2)
    a, b, error = min(linear, logarithmic, key=lambda found: found[2])
    is_linear = (a, b, error) == linear
    far = a + b * (FAR if is_linear else math.log2(FAR))
    return f"{a:.3g} + {b:.3g}·{'N' if is_linear else 'log2 N'}", error, far


def number(value):
    return f"{value:.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.3g}"


def measure(programs, sizes):
    bench = Bench(programs)
    for ranks in sizes:
        found = bench.launches(ranks) | bench.conductor(ranks)
        if ranks <= MOST_TRAINERS:
            found |= bench.trainer(ranks)
        print(json.dumps({"ranks": ranks} | found), flush=True)


def print_table(points):
    points.sort(key=lambda point: point["ranks"])
    sizes = [point["ranks"] for point in points]
    print("| quantity | " + " | ".join(map(str, sizes)) + " | law | largest error | at 80,000 |")
    print("|-" * (len(sizes) + 4) + "|")
    for name in max(points, key=len):
        if name == "ranks":
            continue
        values = {point["ranks"]: point[name] for point in points if name in point}
        words, error, far = law([(n, max(y, 1e-3)) for n, y in values.items()])
        cells = [number(values[n]) if n in values else "" for n in sizes]
        print(f"| {name} | " + " | ".join(cells) + f" | {words} | {100 * error:.0f} % | {number(far)} |")


if __name__ == "__main__":
    if sys.argv[1] == "table":
        print_table([json.loads(line) for line in sys.stdin])
        sys.exit()
    if "SLURM_JOB_ID" not in os.environ:  # the outer call: into an allocation of all nodes, on the first of them
        node = pathlib.Path(os.environ["VCLUSTER"], "n1.holder").read_text(encoding="ascii").strip()
        each = str(max(8, max(map(int, sys.argv[2:])) // NODES))
        sys.argv[1] = str(pathlib.Path(sys.argv[1]).resolve())
        os.execvp(
            "nsenter",
            ["nsenter", "--net", "--mount", "--uts", "--target", node, "env", f"--chdir={os.getcwd()}", "salloc", "--quiet",
             f"--nodes={NODES}", f"--ntasks-per-node={each}", str(pathlib.Path(__file__).resolve()), *sys.argv[1:]],
        )  # fmt: skip
    measure(sys.argv[1], [int(word) for word in sys.argv[2:]])

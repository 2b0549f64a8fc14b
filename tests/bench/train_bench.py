#!/usr/bin/env python3
"""Training speed against PyTorch on the same cores, in one run: alternating rounds, medians, ratios.

    tests/peers/install.sh                       once: PyTorch in build/peers/venv
    tests/bench/train_bench.py [--build build/release] [--rounds 2] [--steps 6] [CASE …]

Cases: llama-1x2 (136M, one process, two threads), llama-fp32-1x2, llama-2048-1x2 (sequences of 2,048 tokens), smollm2-1x2 (SmolLM2-135M),
llama-2x1 (full_shard on two ranks against FSDP2 over gloo), bert-1x2 (BERT-Large, 128 tokens), mixtral-1x2 (156M, of which a token goes
through 2 of 8 experts, against transformers). Each side trains on real text with random initial weights. Checked before anything is
compared: both sides' losses begin at that of a uniform guess and fall. PyTorch runs eager and compiled; its better
median counts. Prints a table and one JSON line. PYTHON names another python3 that has PyTorch.
"""
import argparse
import glob
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXT = sorted(glob.glob("/usr/share/common-licenses/*-[0-9]*"))
PYTHON = os.environ.get("PYTHON", os.path.join(ROOT, "build/peers/venv/bin/python"))
PEER = os.path.join(ROOT, "tests/peers/train_speed.py")
WARM_STEPS = 2  # of each run: caches, compilation, first touch

CASES = {
    "llama-1x2": dict(model="llama-136m", ranks=1, threads=2, batch=4, length=512, vocabulary=32000),
    "llama-fp32-1x2": dict(model="llama-136m", ranks=1, threads=2, batch=2, length=512, vocabulary=32000, precision="fp32"),
    "llama-2048-1x2": dict(model="llama-136m", ranks=1, threads=2, batch=1, length=2048, vocabulary=32000),
    "smollm2-1x2": dict(model="smollm2-135m", ranks=1, threads=2, batch=4, length=512, vocabulary=49152),
    "llama-2x1": dict(model="llama-136m", ranks=2, threads=1, batch=2, length=512, vocabulary=32000),
    "bert-1x2": dict(model="bert-large", ranks=1, threads=2, batch=8, length=128, vocabulary=30522),
    # Compiled, each step has other sizes, and most of it is compiling.
    "mixtral-1x2": dict(model="mixtral-156m", ranks=1, threads=2, batch=4, length=512, vocabulary=32000, modes=("eager",)),
}

SHAPES = {"mixtral-156m": "layers = 6\nhidden = 512\nheads = 8\nkv_heads = 4\nffn = 1024\nvocab = 32000\nexperts = 8\nexperts_per_token = 2"}


def fail(text):
    sys.exit("train_bench: " + text)


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, **options)
    if done.returncode != 0:
        fail("%s ended with %d\n%s\n%s" % (" ".join(command), done.returncode, done.stdout[-2000:], done.stderr[-4000:]))
    return done.stdout


def data_files(case, build, folder):
    if case["model"] != "bert-large":
        return TEXT
    vocabularies = glob.glob(os.path.join(ROOT, "build/peers/venv/lib/python*/site-packages/**/vocab.txt"), recursive=True)
    if not vocabularies:
        fail("no vocab.txt in build/peers/venv; run tests/peers/install.sh")
    run([os.path.join(build, "bin/shardrun"), "data", "--tokenizer", vocabularies[0], "--output", folder] + TEXT)
    return [os.path.join(folder, "train.tokens")]


def ours(case, build, folder, steps):
    """Seconds of every step and the losses of one run of shardrun."""
    files = json.dumps(data_files(case, build, folder))
    spec = os.path.join(folder, "bench.toml")
    with open(spec, "w") as out:
        out.write(f"""name = "bench"
[resources]
ranks_per_node = {case["ranks"]}
cpus_per_rank = {case["threads"]}
[program]
trainer = "{"bert" if case["model"] == "bert-large" else "llama"}"
[model]
{SHAPES.get(case["model"], f'preset = "{case["model"]}"')}
[data]
files = {files}
sequence_length = {case["length"]}
[batch]
global_batch = {case["batch"] * case["ranks"]}
micro_batch = {case["batch"]}
[precision]
parameters = "{case.get("precision", "bf16")}"
[optimizer]
steps = {steps}
learning_rate = 1e-4
schedule = "constant"
[logging]
directory = "{folder}/runs"
""")
    run([os.path.join(build, "bin/shardrun"), "run", spec], cwd=folder)
    metrics = sorted(glob.glob(folder + "/runs/bench/*/metrics.jsonl"), key=os.path.getmtime)[-1]
    rows = [json.loads(line) for line in open(metrics)]
    rows = [row for row in rows if "loss" in row and "step_seconds" in row]
    return [row["step_seconds"] for row in rows], [row["loss"] for row in rows]


def theirs(case, mode, steps):
    command = [PYTHON, PEER, case["model"], mode, "--threads", str(case["threads"]), "--steps", str(steps), "--batch",
               str(case["batch"]), "--length", str(case["length"]), "--precision", case.get("precision", "bf16")]
    environment = dict(os.environ, OMP_NUM_THREADS=str(case["threads"]))
    if case["ranks"] > 1:
        command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case["ranks"])] + \
            command[1:] + ["--fsdp"]
    result = json.loads([line for line in run(command, env=environment).splitlines() if line.startswith("{")][-1])
    return result["seconds"], result["losses"], result["torch"]


def check(name, case, losses):
    guess = math.log(case["vocabulary"]) + (math.log(2) if case["model"] == "bert-large" else 0)
    if abs(losses[0] / guess - 1) > 0.05 or not losses[-1] < losses[0]:
        fail(f"{name}: losses {losses} do not begin near {guess:.2f} and fall")


def tell(name, side, speeds):
    """A case takes minutes: each side says what it has so far."""
    print(f"{name}: {side} {statistics.median(speeds[side]):.0f} tokens/s", file=sys.stderr, flush=True)


def measure(name, case, build, rounds, steps):
    modes = case.get("modes", ("eager", "compile"))
    speeds = {side: [] for side in ("shardrun", *modes)}
    version = ""
    tokens = case["batch"] * case["ranks"] * case["length"]
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="train_bench.") as folder:
            seconds, losses = ours(case, build, folder, steps)
        check("shardrun", case, losses)
        speeds["shardrun"] += [tokens / s for s in seconds[WARM_STEPS:]]
        tell(name, "shardrun", speeds)
        for mode in modes:
            seconds, losses, version = theirs(case, mode, steps)
            check("PyTorch " + mode, case, losses)
            speeds[mode] += [tokens / s for s in seconds[WARM_STEPS:]]
            tell(name, mode, speeds)
    medians = {side: statistics.median(values) for side, values in speeds.items()}
    best = max(medians[mode] for mode in modes)
    print(f"{name:14}  shardrun {medians['shardrun']:7.0f}  PyTorch {version} " + "  ".join(f"{mode} {medians[mode]:7.0f}" for mode in modes) +
          f" tokens/s   ratio {medians['shardrun'] / best:.2f}", flush=True)
    return {"case": name, "torch": version, "tokens_per_second": medians, "ratio": medians["shardrun"] / best,
            "spread": {side: [min(values), max(values)] for side, values in speeds.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    if not os.path.exists(PYTHON):
        fail("there is no build/peers/venv; run tests/peers/install.sh")
    print(json.dumps([measure(name, CASES[name], os.path.abspath(arguments.build), arguments.rounds, arguments.steps)
                      for name in arguments.cases]))


main()

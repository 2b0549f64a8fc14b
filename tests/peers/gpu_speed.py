#!/usr/bin/env python3
"""shardrun against PyTorch on one GPU: the same losses first, then tokens a second.

    gpu_speed.py curve                          136M, 100 steps in bf16 on the same sequences and weights: within 2e-2
    gpu_speed.py exact                          that curve by shardrun on this machine's CPU in fp32, which report compares
    gpu_speed.py speed 0.5b 1.5b 3b 8b          T = 2048; each side's best of the variants below, alternating
    gpu_speed.py ranks                          2 and 4 ranks that share the GPU, and one with NCCL: one rank's losses
    gpu_speed.py offload                        a 14B model with its moments on the host: that it fits, and what they cost
    gpu_speed.py report                         the table of all that was measured
    gpu_speed.py curve --dry-run, and so exact, speed tiny, ranks and offload: on the CPU, at a tiny size

Both sides take the same 65,536 tokens a step, in the micro-batches that suit each, and keep weights, gradients and moments
in fp32. Everything measured is added to --output, one JSON object a line, so that a size can be measured in a call of its
own. shardrun is that of --build, PyTorch that of --python, whose libraries of NVIDIA serve both. Variants that do not fit
the memory, that PyTorch refuses or for which --within leaves no time are named and passed over; that none is left is an
error. Speeds are medians over the steps after the first three.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEER = ROOT / "tests/peers/gpu_train.py"
WARM_STEPS = 3
DATASHEET_BF16 = {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA A100-SXM4-80GB": 312e12}


def shape(layers, hidden, heads, kv_heads, ffn, vocab=32000):
    return {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": ffn, "vocab": vocab}


# The layers of Llama-3.2-1B (with heads of 128), -3B and Llama-3-8B, as many as make the size; two of the first have 1.5b's
# hidden 1536. The vocabulary is Llama 2's. Ours: (micro-batch, activation checkpointing); theirs: (micro-batch, recompute,
# compile, attention, weights), words of gpu_train.py. The most promising come first, of those that 80 GB hold where a size
# fits them: 8b, with 18 bytes of state a parameter, wants 141.
SIZES = {
    "tiny": {"model": shape(2, 64, 4, 2, 96, 512), "length": 64, "tokens": 512, "steps": 13,
             "ours": [(4, "none"), (8, "selective"), (2, "full")],
             "theirs": [(4, False, "eager", "any", "copies"), (8, True, "eager", "any", "autocast")]},
    "0.5b": {"model": shape(12, 1536, 12, 4, 6144), "length": 2048, "tokens": 65536, "steps": 13,
             "ours": [(32, "none"), (16, "none")],
             "theirs": [(16, False, "layers", "cudnn", "copies"), (16, False, "layers", "flash", "copies"),
                        (16, False, "default", "cudnn", "autocast")]},
    "1.5b": {"model": shape(21, 2048, 16, 8, 8192), "length": 2048, "tokens": 65536, "steps": 13,
             "ours": [(8, "none"), (16, "none")],
             "theirs": [(8, False, "layers", "cudnn", "copies"), (8, False, "layers", "flash", "copies"),
                        (8, False, "default", "cudnn", "autocast")]},
    "3b": {"model": shape(28, 3072, 24, 8, 8192), "length": 2048, "tokens": 65536, "steps": 11,
           "ours": [(4, "none"), (8, "none"), (16, "selective")],
           "theirs": [(4, False, "layers", "cudnn", "copies"), (8, False, "layers", "cudnn", "copies"),
                      (4, False, "default", "cudnn", "autocast")]},
    "8b": {"model": shape(32, 4096, 32, 8, 14336), "length": 2048, "tokens": 65536, "steps": 9,
           "ours": [(2, "selective"), (1, "none")],
           "theirs": [(2, 0.5, "layers", "cudnn", "copies"), (1, False, "layers", "cudnn", "copies"),
                      (2, False, "layers", "cudnn", "autocast"), (4, True, "layers", "flash", "autocast")]},
}
CURVE = {"model": shape(12, 768, 12, 12, 2048), "length": 512, "batch": 8, "accumulation": 1, "steps": 100, "warmup": 10,
         "falls": 1.0}
TINY_CURVE = {"model": SIZES["tiny"]["model"], "length": 64, "batch": 4, "accumulation": 2, "steps": 12, "warmup": 2,
              "falls": 0.2}


ON_THE_GPU = ("masters", "compute_copy", "gradients", "moments", "gathered", "activations", "workspace", "context")


class Failed(Exception):
    pass


def run(command, limit, **options):
    begin = time.time()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=limit, **options)
    if done.returncode != 0:
        raise Failed(f"{command[0]} ended with {done.returncode} after {time.time() - begin:.0f} s: "
                     f"{done.stdout[-1000:].strip()} {done.stderr[-1500:].strip()}")
    return done.stdout


def environment(arguments):
    """Of shardrun: the libraries that were packed with it, which PyTorch shall not see, and those of PyTorch's packages."""
    find = "import glob, nvidia; print(':'.join(f for p in nvidia.__path__ for f in glob.glob(p + '/*/lib')))"
    found = subprocess.run([arguments.python, "-c", find], capture_output=True, text=True)
    folders = [arguments.build / "lib", found.stdout.strip(), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(str(folder) for folder in folders if str(folder))}


def parameters(model):
    head = model["hidden"] // model["heads"]
    layer = (2 * model["hidden"] ** 2 + 2 * model["hidden"] * head * model["kv_heads"] + 3 * model["hidden"] * model["ffn"])
    return model["layers"] * layer + 2 * model["vocab"] * model["hidden"]


def flops_per_token(model, length):
    """Forward and backward: of what a causal mask lets through, and of all scores."""
    products = parameters(model) - model["vocab"] * model["hidden"]  # the embedding is a look-up
    attention = 6 * model["layers"] * model["hidden"] * length
    return 6 * products + attention, 6 * products + 2 * attention


def write_text(path, size):
    """Words of a small vocabulary in an order that is partly fixed, so that there is something to learn."""
    state, words = 12345, []
    for length in range(600):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        words.append("".join(chr(97 + (state >> (5 * i + 9)) % 26) for i in range(2 + length % 7)))
    text, last = [], 0
    while size > 0:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        last = (last * 7 + 11) % 600 if (state >> 40) % 4 else (state >> 20) % 600
        text.append(words[last])
        size -= len(words[last]) + 1
    path.write_text(" ".join(text))


def spec_of(case, text, arguments):
    device, graphs = "", ""
    if arguments.device == "cuda":
        device = 'device = "gpu"\ngpus_per_node = 1\n'
        graphs = f'[gpu]\nattention = "{arguments.attention}"\n' + ("graphs = false\n" if arguments.no_graphs else "")
    model = "".join(f"{key} = {value}\n" for key, value in case["model"].items())
    return f"""name = "peer"
[resources]
cpus_per_rank = {max(1, min(16, os.cpu_count() - 1))}
{device}[program]
trainer = "llama"
[model]
{model}[data]
files = ["{text}"]
sequence_length = {case["length"]}
[batch]
global_batch = {case["batch"] * case["accumulation"]}
micro_batch = {case["batch"]}
[memory]
activation_checkpointing = "{case.get("checkpointing", "none")}"
[precision]
parameters = "{case.get("precision", "bf16")}"
{"fp8 = true" if arguments.fp8 else ""}
[optimizer]
steps = {case["steps"]}
learning_rate = 3e-4
min_learning_rate = 3e-5
warmup_steps = {case["warmup"]}
{graphs}[checkpoint]
at_end = false
"""


def traced_seconds(place):
    """Of rank 0's one traced step, by what it did: forward and backward of layers, of the head, update …"""
    sums = {}
    for path in place.glob("profile/attempt_*_rank_0.json"):
        events = json.loads(path.read_text())
        events = events["traceEvents"] if isinstance(events, dict) else events
        for event in events:
            if event["ph"] == "X" and event["tid"] == 0:
                name = event["name"].rstrip(" 0123456789")
                sums[name] = sums.get(name, 0.0) + event["dur"] / 1e6
    return sums


def ours_of(spec, arguments, folder, settings=()):
    shardrun = arguments.build / "bin/shardrun"
    runs = pathlib.Path(tempfile.mkdtemp(prefix="runs.", dir=folder))
    settings = [f"logging.directory={runs}", "logging.profile_steps=1", *settings]
    run([shardrun, "run", "--quiet", spec, *(word for setting in settings for word in ("--set", setting))], arguments.limit,
        cwd=folder, env=arguments.environment)
    place = next(runs.glob("*/*/record.json")).parent
    rows = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "step_seconds" in row]
    record = json.loads((place / "record.json").read_text())
    return {"seconds": [row["step_seconds"] for row in rows], "losses": [row["loss"] for row in rows],
            "bits": [row["loss_hex"] for row in rows], "versions": record["versions"], "traced": traced_seconds(place),
            "memory_bytes": sum(record["planned"]["memory_bytes"].get(kind, 0) for kind in ON_THE_GPU)}


def ours(case, text, arguments, folder, settings=()):
    spec = folder / "job.toml"
    spec.write_text(spec_of(case, text, arguments))
    return ours_of(spec, arguments, folder, settings)


def theirs(case, text, arguments, **options):
    given = {"model": case["model"], "text": str(text), "device": arguments.device, "length": case["length"],
             "batch": case["batch"], "accumulation": case["accumulation"], "steps": case["steps"], "warmup": case["warmup"], **options}
    return json.loads(run([arguments.python, PEER, json.dumps(given)], arguments.limit).splitlines()[-1])


def note(arguments, what):
    with open(arguments.output, "a") as out:
        out.write(json.dumps(what) + "\n")


def curve(arguments, folder):
    case = TINY_CURVE if arguments.dry_run else CURVE
    text = folder / "text.txt"
    write_text(text, 1 << 20)
    mine, again = ours(case, text, arguments, folder), ours(case, text, arguments, folder)
    curves = {name: theirs(case, text, arguments, same_weights=True, dtype=name, weights="copies" if name == "bf16" else
                           "autocast")["losses"] for name in ("bf16", "fp32")}
    differences = {name: max(abs(a - b) for a, b in zip(mine["losses"], losses)) for name, losses in curves.items()}
    good = (len(mine["losses"]) == case["steps"] and differences["bf16"] <= 2e-2 and mine["bits"] == again["bits"]
            and mine["losses"][-1] < mine["losses"][0] - case["falls"])
    note(arguments, {"what": "curve", "good": good, "differences": differences, "ours": mine, "torch": curves})
    print(f"curve: {case['steps']} steps, loss {mine['losses'][0]:.4f} to {mine['losses'][-1]:.4f} on "
          f"{mine['versions'].get('device', '?')}; largest difference from PyTorch in bf16 {differences['bf16']:.2e}, in fp32 "
          f"{differences['fp32']:.2e}; a second run has {'the same' if mine['bits'] == again['bits'] else 'OTHER'} bits")
    if not good:
        sys.exit("gpu_speed: the curves differ by more than 2e-2, do not repeat or do not fall; no speed is worth measuring")


# Needs no GPU, but a CPU for long: on any machine, into a file of its own that is added to the others.
def exact(arguments, folder):
    case = {**(TINY_CURVE if arguments.dry_run else CURVE), "precision": "fp32"}
    text = folder / "text.txt"
    write_text(text, 1 << 20)
    arguments.device = "cpu"
    losses = ours(case, text, arguments, folder)["losses"]
    note(arguments, {"what": "exact", "losses": losses})
    print(f"exact: {len(losses)} steps on the CPU in fp32, loss {losses[0]:.4f} to {losses[-1]:.4f}")


class GpuMemory(threading.Thread):
    """The most that nvidia-smi shows of each process, and of the GPU, asked twice a second while it is entered."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended, self.processes, self.used = threading.Event(), {}, 0

    def run(self):
        while not self.ended.wait(0.5):
            for line in self.ask("--query-compute-apps=pid,used_memory"):
                process, used = line.split(", ")
                if used.isdigit():
                    self.processes[process] = max(self.processes.get(process, 0), int(used))
            for line in self.ask("--query-gpu=memory.used"):
                self.used = max(self.used, int(line))

    @staticmethod
    def ask(what):
        try:
            answer = subprocess.run(["nvidia-smi", what, "--format=csv,noheader,nounits"], capture_output=True, text=True)
        except FileNotFoundError:
            return []
        return answer.stdout.split("\n")[:-1] if answer.returncode == 0 else []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()

    def text(self):
        each = sorted(self.processes.values())
        return f"{self.used} MiB of the GPU, processes {each}" if self.used else "not known"


def ranks(arguments, folder):
    case = {**(TINY_CURVE if arguments.dry_run else CURVE), "steps": 12, "accumulation": 1}
    text = folder / "text.txt"
    write_text(text, 1 << 20)
    layouts = [("1 rank", 1, "ofi"), ("2 ranks", 2, "ofi"), ("4 ranks", 4, "ofi")]
    if not arguments.dry_run:
        layouts.append(("1 rank with NCCL", 1, "nccl"))
    first, bad = None, []
    for name, count, plugin in layouts:
        settings = [f"resources.ranks_per_node={count}", f"batch.micro_batch={case['batch'] // count}",
                    f"resources.cpus_per_rank={max(1, min(16, os.cpu_count()) // count)}", f"communication.plugin={plugin}"]
        if not arguments.dry_run:
            settings.append(f"resources.ranks_per_gpu={count}")
        try:
            with GpuMemory() as memory:
                result = ours(case, text, arguments, folder, settings)
        except (Failed, subprocess.TimeoutExpired) as problem:
            print(f"ranks: {name}: FAILED: {problem}", flush=True)
            bad.append(name)
            continue
        first = first or result["losses"]
        difference = max(abs(a - b) for a, b in zip(first, result["losses"]))
        good = len(result["losses"]) == case["steps"] and difference <= 2e-2
        bad += [] if good else [name]
        note(arguments, {"what": "ranks", "layout": name, "good": good, "difference": difference, "ours": result,
                         "used_mib": memory.used, "processes_mib": memory.processes})
        print(f"ranks: {name}: losses within {difference:.1e} of the first's, {1e3 * statistics.median(result['seconds']):.0f} "
              f"ms a step; planned {result['memory_bytes'] >> 20} MiB a rank, nvidia-smi: {memory.text()}", flush=True)
    if bad:
        sys.exit(f"gpu_speed: {', '.join(bad)}: other losses, or none")


def offload(arguments, folder):
    """The moments travel once a step: what that costs a step of 524,288 tokens follows from a shorter one."""
    spec = ROOT / "jobs/llama-14b-one-gpu.toml"
    settings, device = ["optimizer.steps=3", "optimizer.warmup_steps=1", "checkpoint.at_end=false"], []
    if arguments.dry_run:
        device = ["resources.device=cpu", "resources.gpus_per_node=0", "resources.cpus_per_rank=1", "model.layers=2",
                  "model.hidden=64", "model.heads=4", "model.kv_heads=2", "model.ffn=96", "model.vocab=512",
                  "data.sequence_length=64", "batch.micro_batch=1"]
    sequences, usual = (2, 4) if arguments.dry_run else (32, 256)
    with GpuMemory() as memory:
        result = ours_of(spec, arguments, folder, [*settings, *device, f"batch.global_batch={sequences}"])
    step, update = result["seconds"][-1], result["traced"].get("update", float("nan"))
    usual_step = (step - update) * usual / sequences + update
    note(arguments, {"what": "offload", "ours": result, "sequences": sequences, "used_mib": memory.used})
    print(f"offload: losses {result['losses']}; a step of {sequences} sequences {step:.2f} s, of which the update {update:.2f}; "
          f"so one of {usual} {usual_step:.1f} s, {100 * update / usual_step:.1f} % of it the update; planned "
          f"{result['memory_bytes'] >> 20} MiB, nvidia-smi: {memory.text()}")


def check(side, model, losses):
    guess = math.log(model["vocab"]) + 0.02**2 * model["hidden"] / 2  # logits of weights drawn with 0.02 have that variance
    if abs(losses[0] / guess - 1) > 0.05 or not losses[-1] < losses[0]:
        raise Failed(f"{side}: losses {losses} do not begin near {guess:.2f} and fall")


def measured(size, side, variant, tokens, result):
    rates = [tokens / s for s in result["seconds"][WARM_STEPS:]]
    return {"what": "speed", "size": size, "side": side, "variant": variant, "tokens_per_second": statistics.median(rates),
            "low": min(rates), "high": max(rates), "memory_bytes": result["memory_bytes"], "losses": result["losses"],
            "kernels": "".join(f"; {of}: {result['versions'][of]}" for of in ("attention", "matrix products")
                               if of in result.get("versions", {})), "traced": result.get("traced")}


def speed(arguments, folder):
    end = time.time() + arguments.within
    if arguments.device == "cuda" and arguments.only != "shardrun":
        peak = json.loads(run([arguments.python, PEER, json.dumps({"measure": "product"})], arguments.limit).splitlines()[-1])
        note(arguments, {"what": "peak", **peak})
    for size in arguments.sizes:
        sizes = SIZES[size]
        text = folder / "text.txt"
        write_text(text, max(1 << 20, sizes["steps"] * sizes["tokens"]))
        base = {"model": sizes["model"], "length": sizes["length"], "steps": arguments.steps or sizes["steps"], "warmup": 2}
        jobs = []
        for i in range(max(len(sizes["ours"]), len(sizes["theirs"]))):  # alternating
            jobs += [("shardrun", v) for v in sizes["ours"][i : i + 1]] + [("torch", v) for v in sizes["theirs"][i : i + 1]]
        found = {"shardrun": 0, "torch": 0}
        for side, variant in jobs:
            if arguments.only and side != arguments.only:
                continue
            words = " ".join(str(word) for word in variant)
            try:
                if time.time() > end:
                    raise Failed("no time was left for it")
                case = {**base, "batch": variant[0],
                        "accumulation": sizes["tokens"] // (variant[0] * sizes["length"])}
                if side == "shardrun":
                    result = ours({**case, "checkpointing": variant[1]}, text, arguments, folder)
                else:
                    result = theirs(case, text, arguments, recompute=variant[1], compile=variant[2],
                                    attention=variant[3], weights=variant[4])
                check(side, sizes["model"], result["losses"])
            except (Failed, subprocess.TimeoutExpired) as problem:
                print(f"{size} {side} {words}: left out: {problem}", flush=True)
                note(arguments, {"what": "left out", "size": size, "side": side, "variant": words, "why": str(problem)})
                continue
            line = measured(size, side, words, sizes["tokens"], result)
            note(arguments, line)
            found[side] += 1
            print(f"{size} {side} {words}: {line['tokens_per_second']:.0f} tokens/s ({line['low']:.0f} … {line['high']:.0f}), "
                  f"{line['memory_bytes'] / 2**30:.1f} GiB{line['kernels']}", flush=True)
        missing = [side for side in found if found[side] == 0 and arguments.only in (None, side)]
        if missing:
            sys.exit(f"gpu_speed: nothing of {' and '.join(missing)} ran at {size}")


def report(arguments):
    rows = [json.loads(line) for line in open(arguments.output)]
    peak = next((row for row in reversed(rows) if row["what"] == "peak"), None)
    curves = [row for row in rows if row["what"] == "curve"]
    print(f"curve: {'within 2e-2' if curves and curves[-1]['good'] else 'NOT SHOWN'}"
          + (f", largest difference {curves[-1]['differences']['bf16']:.2e}" if curves else ""))
    references = [row for row in rows if row["what"] == "exact"]
    if curves and references:
        largest = max(abs(a - b) for a, b in zip(curves[-1]["ours"]["losses"], references[-1]["losses"], strict=True))
        print(f"from shardrun's curve on a CPU in fp32: largest difference {largest:.2e}"
              + ("" if largest <= 2e-2 else ", MORE THAN 2e-2"))
    sheet = DATASHEET_BF16.get(peak["gpu"]) if peak else None
    if peak:
        print(f"{peak['gpu']}: a bf16 product of 8192³ at {peak['flops'] / 1e12:.0f} TFLOP/s, datasheet "
              f"{sheet / 1e12 if sheet else float('nan'):.0f}")
    print(f"{'size':>5} {'shardrun':>10} {'PyTorch':>10} {'ratio':>6}  MFU of shardrun, causal / all scores: of the datasheet, of the product")
    for size in [s for s in SIZES if any(row.get("size") == s for row in rows)]:
        best = {side: max((row["tokens_per_second"] for row in rows if row["what"] == "speed" and row["size"] == size and
                           row["side"] == side), default=None) for side in ("shardrun", "torch")}
        mine, other = best["shardrun"], best["torch"]
        cells = []
        for flops in (sheet, peak and peak["flops"]):
            if flops and mine:
                cells.append(" / ".join(f"{100 * mine * f / flops:.1f} %" for f in
                                        flops_per_token(SIZES[size]["model"], SIZES[size]["length"])))
        print(f"{size:>5} {mine or 0:10.0f} {other or 0:10.0f} {mine / other if mine and other else float('nan'):6.2f}  {', '.join(cells)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["curve", "exact", "speed", "ranks", "offload", "report"])
    parser.add_argument("sizes", nargs="*", choices=[*SIZES, []], help="of speed")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--output", default="gpu_speed.jsonl")
    parser.add_argument("--only", choices=["shardrun", "torch"])
    parser.add_argument("--steps", type=int, help="of one run; otherwise as SIZES says")
    parser.add_argument("--limit", type=float, default=400, help="seconds of one run")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which speed begins no other run")
    parser.add_argument("--attention", choices=["auto", "cudnn", "own"], default="auto", help="of shardrun")
    parser.add_argument("--no-graphs", action="store_true", help="of shardrun")
    parser.add_argument("--fp8", action="store_true", help="of shardrun: the linear layers of its blocks")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.device = "cpu" if arguments.dry_run else "cuda"
    arguments.environment = environment(arguments)
    if arguments.task == "report" and not os.path.exists(arguments.output):
        sys.exit(f"gpu_speed: {arguments.output} is not there; measure something first, or name it with --output")
    if arguments.task == "report":
        return report(arguments)
    if not (arguments.build / "bin/shardrun").exists():
        sys.exit(f"gpu_speed: {arguments.build}/bin/shardrun is not there; build it, or name another folder with --build")
    with tempfile.TemporaryDirectory(prefix="gpu_speed.") as folder:
        tasks = {"curve": curve, "exact": exact, "speed": speed, "ranks": ranks, "offload": offload}
        try:
            tasks[arguments.task](arguments, pathlib.Path(folder).resolve())
        except (Failed, subprocess.TimeoutExpired) as problem:
            sys.exit(f"gpu_speed: {problem}")


main()

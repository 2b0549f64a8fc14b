"""Launchers beside each other; launchers.sh runs it inside of a virtual cluster: launchers.py BIN_DIR VENV ROUNDS."""
import glob
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

BIN, VENV, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
NODES, RANKS = 2, 2
LIMIT = 180.0

# Each rank tells of its first step by a file with its process id, and goes on until it is ended.
PROGRAM = '''
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1000000):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step == 0:
        path = os.path.join(os.environ["FIRST_STEPS"], os.environ["RANK"])
        with open(path + ".new", "w") as file: file.write(str(os.getpid()))
        os.rename(path + ".new", path)
    time.sleep(0.02)
'''

# What people write into their batch scripts; the ranks' names are torchrun's.
RANK_OF_SLURM = '''export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec "$0" "$@"' {python} train.py
'''
TORCHRUN = '''head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --ntasks-per-node=1 {venv}/bin/torchrun --nnodes {nodes} --nproc-per-node {ranks} --rdzv-backend c10d \\
  --rdzv-endpoint "$head:29501" --rdzv-id 1 train.py
'''
SUBMITIT = '''
import os, runpy, submitit
def train():
    place = submitit.JobEnvironment()
    os.environ.update(RANK=str(place.global_rank), LOCAL_RANK=str(place.local_rank), WORLD_SIZE=str(place.num_tasks),
                      MASTER_ADDR=place.hostnames[0], MASTER_PORT="29502")
    runpy.run_path("train.py", run_name="__main__")
if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
    executor.update_parameters(nodes={nodes}, tasks_per_node={ranks}, timeout_min=10, slurm_setup=["export PYTHONPATH=."])
    print(executor.submit(train).job_id)
'''


def run(words, **options):
    return subprocess.run(words, capture_output=True, text=True, **options)


def sbatch(script, tasks_per_node):
    with open("job.sh", "w") as file:
        file.write(f"#!/bin/bash\n#SBATCH --nodes={NODES}\n#SBATCH --ntasks-per-node={tasks_per_node}\n#SBATCH --output=job.out\n"
                   f"#SBATCH --export=ALL\n{script}")
    return run(["sbatch", "--parsable", "job.sh"], check=True).stdout.strip()


def submit_shardrun():
    out = run([f"{BIN}/shardrun", "submit", "-N", str(NODES), "-n", str(RANKS), "--", f"{VENV}/bin/python", "train.py"])
    found = re.search(r"submitted job (\d+)", out.stdout)
    if not found:
        sys.exit(out.stderr)
    return found.group(1)


def submit_submitit():
    with open("submit.py", "w") as file:
        file.write(SUBMITIT.format(nodes=NODES, ranks=RANKS))
    out = run([f"{VENV}/bin/python", "submit.py"])
    if out.returncode != 0:
        sys.exit(out.stderr)
    return out.stdout.split()[-1]


def submit_torchx():
    out = run([f"{VENV}/bin/torchx", "run", "-s", "slurm", "-cfg", "job_dir=torchx,nomem=True", "--workspace", "", "dist.ddp",
               "-j", f"{NODES}x{RANKS}", "--script", "train.py", "--cpu", "2", "--memMB", "500"])
    found = re.search(r"slurm://\S*/(\d+)", out.stdout + out.stderr)
    if not found:
        return None, out.stdout + out.stderr
    return found.group(1)


LAUNCHERS = {
    "shardrun": submit_shardrun,
    "sbatch, srun": lambda: sbatch(RANK_OF_SLURM.format(python=f"{VENV}/bin/python"), RANKS),
    "sbatch, torchrun": lambda: sbatch(TORCHRUN.format(venv=VENV, nodes=NODES, ranks=RANKS), 1),
    "submitit": submit_submitit,
    "torchx": submit_torchx,
}

# The lines in which somebody would find that a rank was killed, and which.
CAUSE = re.compile(r"(rank 1 .*SIGKILL|task 1: Killed|exitcode *: -9|exitcode: -9|Signal 9 \(SIGKILL\)|tasks? \[?1\]?: running.*"
                   r"|task 1: (Killed|Terminated))", re.I)


def state_of(job):
    out = run(["scontrol", "--oneliner", "show", "job", job]).stdout
    found = re.search(r"JobState=([A-Z_]+)", out)
    return found.group(1) if found else "GONE"


def wait_for(true, what):
    begin = time.time()
    while not true():
        if time.time() - begin > LIMIT:
            raise TimeoutError(what)
        time.sleep(0.02)


def output_of(name, job):
    """The text that the launcher's user reads, in the order in which he gets it."""
    if name == "shardrun":
        return run([f"{BIN}/shardrun", "logs", "-f", job]).stdout
    files = {"submitit": "logs/*_log.*", "torchx": "slurm-*"}.get(name, "job.out")
    found = sorted(glob.glob(files)) + sorted(glob.glob("torchx/**/slurm-*", recursive=True))
    return "".join(open(path, errors="replace").read() for path in found if os.path.isfile(path))


def measure(name):
    folder = os.path.join(os.getcwd(), re.sub(r"\W+", "-", name) + f"-{time.time():.0f}")
    os.makedirs(folder + "/first")
    before = os.getcwd()
    os.chdir(folder)
    try:
        with open("train.py", "w") as file:
            file.write(PROGRAM)
        os.environ["FIRST_STEPS"] = folder + "/first"
        began = time.time()
        job = LAUNCHERS[name]()
        if not isinstance(job, str):
            raise RuntimeError("was not submitted: " + job[1][-500:])
        ready = lambda: len([one for one in os.listdir("first") if not one.endswith(".new")]) == NODES * RANKS
        wait_for(lambda: ready() or state_of(job) in ("FAILED", "COMPLETED"), "the first step")
        if not ready():
            raise RuntimeError("ended before its first step: " + output_of(name, job)[-1500:])
        first = max(os.stat("first/" + one).st_mtime for one in os.listdir("first")) - began
        time.sleep(1.0)
        killed = time.time()
        os.kill(int(open("first/1").read()), signal.SIGKILL)
        wait_for(lambda: state_of(job) not in ("RUNNING", "COMPLETING"), "the end")
        end = time.time() - killed
        time.sleep(0.5)
        lines = [line for line in output_of(name, job).splitlines() if line.strip()]
        named = next((number for number, line in enumerate(lines, 1) if CAUSE.search(line)), None)
        last = bool(lines) and bool(CAUSE.search(lines[-1]))
        return first, end, len(lines), named, last, next((line for line in lines if CAUSE.search(line)), "")
    finally:
        os.chdir(before)
        if "job" in dir() and isinstance(job, str):
            run(["scancel", job])


def main():
    work = os.path.join(os.getcwd(), f"launchers.{os.getpid()}")
    os.makedirs(work)
    os.chdir(work)
    results = {name: [] for name in LAUNCHERS}
    for _ in range(ROUNDS):
        for name in LAUNCHERS:
            try:
                results[name].append(measure(name))
            except (TimeoutError, RuntimeError) as failure:
                print(f"{name}: {failure}", file=sys.stderr)
    with open("/proc/cpuinfo") as file:
        model = re.search(r"model name\s*: (.*)", file.read()).group(1)
    print(f"{model}, {os.cpu_count()} CPUs, {NODES} nodes of {RANKS} ranks, medians of {ROUNDS} rounds in turns")
    print("| launcher | first step | kill -9 to end | lines of output | cause first named | last line names it |")
    print("|---|---|---|---|---|---|")
    for name, rows in results.items():
        if not rows:
            print(f"| {name} | failed | | | | |")
            continue
        median = lambda column: statistics.median(row[column] for row in rows)
        named = [row[3] for row in rows if row[3]]
        print(f"| {name} | {median(0):.1f} s | {median(1):.1f} s | {median(2):.0f} | "
              f"{'line %.0f' % statistics.median(named) if named else 'nowhere'} | {'yes' if all(row[4] for row in rows) else 'no'} |")
        print(f"{name}: {rows[-1][5]}", file=sys.stderr)
    os.chdir("/")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()

"""Launchers beside each other; launchers.sh runs it inside of a virtual cluster: launchers.py BIN_DIR VENV ROUNDS ROWS."""
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

BIN, VENV, ROUNDS, ROWS = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
NODES, RANKS = 2, 2
LIMIT = 90.0
os.environ["PATH"] = f"{VENV}/bin:" + os.environ["PATH"]  # torchx starts torchrun by its name

# Each rank tells of its first step by a file with its process id and the sum of all ranks' numbers, which only ranks that found
# each other know, and goes on until it is ended.
PROGRAM = '''
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor(float(dist.get_rank()))
dist.all_reduce(ranks)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1000000):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step == 0:
        path = os.path.join(os.environ["FIRST_STEPS"], os.environ["RANK"])
        with open(path + ".new", "w") as file: file.write(f"{os.getpid()} {int(ranks)} {dist.get_world_size()}")
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
    out = run([f"{VENV}/bin/torchx", "run", "-s", "slurm", "--workspace", "", "dist.ddp",
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

# The lines in which somebody would find that a rank was killed: shardrun's, srun's and torchrun's words for it.
CAUSE = re.compile(r"rank 1 .*SIGKILL|task 1: Killed|exitcode *: *-9|Signal 9 \(SIGKILL\)")


def state_of(job):
    out = run(["scontrol", "--oneliner", "show", "job", job]).stdout
    found = re.search(r"JobState=([A-Z_]+)", out)
    return found.group(1) if found else "GONE"


def wait_for(true, what):
    begin = time.time()
    while not true():
        if time.time() - begin > LIMIT:
            raise TimeoutError(what)
        time.sleep(0.03)


def output_of(name, job):
    """The text that the launcher's user reads, in the order in which he gets it."""
    if name == "shardrun":
        return run([f"{BIN}/shardrun", "logs", "-f", job]).stdout
    files = {"submitit": "logs/*_log.*", "torchx": "slurm-*"}.get(name, "job.out")
    found = sorted(glob.glob(files))
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
        looked = [time.time()]

        def over():  # asked seldom: the ranks have the CPUs
            if time.time() - looked[0] < 5:
                return False
            looked[0] = time.time()
            return state_of(job) in ("FAILED", "COMPLETED")
        wait_for(lambda: ready() or over(), "the first step")
        if not ready():
            raise RuntimeError("ended before its first step: " + output_of(name, job)[-1500:])
        first = max(os.stat("first/" + one).st_mtime for one in os.listdir("first")) - began
        for rank in range(NODES * RANKS):
            _, total, world = open(f"first/{rank}").read().split()
            if (int(total), int(world)) != (sum(range(NODES * RANKS)), NODES * RANKS):
                raise RuntimeError(f"rank {rank} trains with others: {total} {world}")
        time.sleep(0.5)
        killed = time.time()
        os.kill(int(open("first/1").read().split()[0]), signal.SIGKILL)
        wait_for(lambda: state_of(job) not in ("RUNNING", "COMPLETING"), "the end")
        end = time.time() - killed
        time.sleep(0.5)
        lines = [line for line in output_of(name, job).splitlines() if line.strip()]
        named = next((number for number, line in enumerate(lines, 1) if CAUSE.search(line)), None)
        return {"launcher": name, "first_step": first, "end": end, "lines": len(lines), "named": named,
                "last_line_names_it": bool(lines) and bool(CAUSE.search(lines[-1])),
                "line": next((line for line in lines if CAUSE.search(line)), "")}
    finally:
        os.chdir(before)
        if "job" in dir() and isinstance(job, str):
            run(["scancel", job])
        wait_for(lambda: set(run(["sinfo", "-h", "-o", "%T"]).stdout.split()) == {"idle"}, "idle nodes")


def table(rows):
    with open("/proc/cpuinfo") as file:
        model = re.search(r"model name\s*: (.*)", file.read()).group(1)
    least = min(sum(row["launcher"] == name for row in rows) for name in LAUNCHERS)
    print(f"{model}, {os.cpu_count()} CPUs, {NODES} nodes of {RANKS} ranks, medians of {least} or more rounds in turns")
    print("| launcher | first step | kill -9 to end | lines of output | cause first named | last line names it |")
    print("|---|---|---|---|---|---|")
    for name in LAUNCHERS:
        of = [row for row in rows if row["launcher"] == name]
        if not of:
            print(f"| {name} | failed | | | | |")
            continue
        median = lambda key: statistics.median(row[key] for row in of)
        named = [row["named"] for row in of if row["named"]]
        print(f"| {name} | {median('first_step'):.1f} s | {median('end'):.1f} s | {median('lines'):.0f} | "
              f"{'line %.0f' % statistics.median(named) if named else 'nowhere'} | "
              f"{'yes' if all(row['last_line_names_it'] for row in of) else 'no'} |")


def main():
    work = os.path.join(os.getcwd(), f"launchers.{os.getpid()}")
    os.makedirs(work)
    os.chdir(work)
    for _ in range(ROUNDS):
        for name in LAUNCHERS:
            try:
                row = measure(name)
            except (TimeoutError, RuntimeError) as failure:
                print(f"{name}: {failure}", file=sys.stderr)
                continue
            with open(ROWS, "a") as file:
                file.write(json.dumps(row) + "\n")
    with open(ROWS) as file:
        table([json.loads(line) for line in file])
    os.chdir("/")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures what 1,000 idle strangers cost a training job over tcp: another user of this machine who connects to every port of the
job, says nothing, and comes again 5 s after he was closed.

    tests/peers/strangers_cost.py BIN [PAIRS]

BIN is the folder of shardrun. One job of two ranks trains all the time; windows of 6 s with the strangers and without follow one
another, so that whatever else the machine does is in both. Prints the medians of PAIRS (9) ratios: of step times, and of the CPU
time that all processes of the job take for a step, which other work on the machine changes less. Needs root, who can become
another user."""

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time

STRANGER, STRANGERS, WINDOW, SETTLE, AGAIN = 65534, 1000, 6.0, 1.5, 5.0

SPEC = """name = "besieged"
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
layers = 2
hidden = 64
heads = 4
kv_heads = 2
ffn = 176
vocab = 256
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 32
[batch]
micro_batch = 1
[communication]
provider = "tcp"
[optimizer]
steps = 100000000
[checkpoint]
at_end = false
"""


def descendants(pid):
    found = [pid]
    for one in found:
        with open(f"/proc/{one}/task/{one}/children", encoding="ascii") as children:
            found += [int(child) for child in children.read().split()]
    return found


def ports_of(processes):
    inodes = set()
    for process in processes:
        for name in os.listdir(f"/proc/{process}/fd"):
            try:
                target = os.readlink(f"/proc/{process}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = []
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in list(table)[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.append(int(fields[1].split(":")[1], 16))
    return sorted(ports)


def be_strangers(ports):
    """Runs in a process of its own until it is killed."""
    os.setgroups([])
    os.setgid(STRANGER)
    os.setuid(STRANGER)
    watched = select.epoll()
    open_ones, waiting = {}, [(0.0, ports[i % len(ports)]) for i in range(STRANGERS)]
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            port = waiting.pop(0)[1]
            caller = socket.socket()
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
            open_ones[caller.fileno()] = (caller, port)
            watched.register(caller, select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
        for number, _ in watched.poll(0.5, 256):
            caller, port = open_ones.pop(number)
            watched.unregister(caller)
            caller.close()
            waiting.append((time.monotonic() + AGAIN, port))


def steps_between(metrics, begin, end):
    seconds = []
    with open(metrics, encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                continue
            entry = json.loads(line)
            if "event" not in entry and begin <= entry["time"] < end:
                seconds.append(entry["step_seconds"])
    return seconds


def cpu_seconds(processes):
    total = 0
    for process in processes:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/schedstat", encoding="ascii") as account:
                total += int(account.read().split()[0])
    return total * 1e-9


def window(metrics, job, ports):
    child = 0
    if ports:
        child = os.fork()
        if child == 0:
            try:
                be_strangers(ports)
            finally:
                os._exit(1)
    time.sleep(SETTLE)
    processes = descendants(job)
    begin, used = time.time(), cpu_seconds(processes)
    time.sleep(WINDOW)
    used = cpu_seconds(processes) - used
    if child:
        assert os.waitpid(child, os.WNOHANG)[0] == 0, "the strangers have left"
        os.kill(child, 9)
        os.waitpid(child, 0)
    steps = steps_between(metrics, begin, begin + WINDOW)
    return statistics.fmean(steps), used / len(steps)  # the mean, so that a pause counts


def main():
    binary, pairs = os.path.abspath(sys.argv[1]) + "/shardrun", int(sys.argv[2]) if len(sys.argv) > 2 else 9
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as folder:
        os.chdir(folder)
        with open("job.toml", "w", encoding="utf-8") as spec:
            spec.write(SPEC)
        job = subprocess.Popen([binary, "run", "job.toml", "--quiet"], stdout=subprocess.DEVNULL)
        metrics = "runs/besieged/latest/metrics.jsonl"
        try:
            while not os.path.exists(metrics) or '"step"' not in open(metrics, encoding="utf-8").read():
                assert job.poll() is None, "the job did not start"
                time.sleep(0.1)
            time.sleep(2)
            ports = ports_of(descendants(job.pid))
            print(f"ports {ports}", flush=True)
            ratios, cpu_ratios = [], []
            for _ in range(pairs):
                alone, alone_cpu = window(metrics, job.pid, [])
                besieged, besieged_cpu = window(metrics, job.pid, ports)
                ratios.append(besieged / alone)
                cpu_ratios.append(besieged_cpu / alone_cpu)
                print(f"step {alone * 1e3:.3f} ms alone, {besieged * 1e3:.3f} ms with strangers, ratio {ratios[-1]:.4f}; "
                      f"CPU {alone_cpu * 1e3:.3f} ms and {besieged_cpu * 1e3:.3f} ms, ratio {cpu_ratios[-1]:.4f}", flush=True)
            assert job.poll() is None, "the job has ended"
        finally:
            job.terminate()
            job.wait(60)
        with open("runs/besieged/latest/events.jsonl", encoding="utf-8") as events:
            told = [json.loads(line)["line"] for line in events if '"strangers"' in line]
    print(f"told: {told}")
    for what, values in (("step time", ratios), ("CPU time of a step", cpu_ratios)):
        print(f"{STRANGERS} strangers: {what} {statistics.median(values):.4f}, the median of {pairs} pairs, "
              f"from {min(values):.4f} to {max(values):.4f}")


if __name__ == "__main__":
    main()

"""cluster-configs/grafana-dashboard.json is a dashboard of Grafana's, and a real Prometheus has rows for each of its queries.

    apt-get install prometheus prometheus-node-exporter
    python3 -m venv V && V/bin/pip install grafana-foundation-sdk
    V/bin/python tests/peers/dashboard.py build/ci/bin

Grafana's own SDK reads the file and writes it again: what it does not know, or has of another type, would be lost or changed. A run of
two ranks with checkpoints and validation hangs on the way, starts again and goes on; another one completes, and one fails. What
`status --prometheus` prints of them lies where node_exporter's textfile collector reads, as docs/clusters.md has it; a Prometheus scrapes
that, both on loopback; then every query of every panel is asked as Grafana asks it. Half a minute.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

DASHBOARD = pathlib.Path(__file__).parents[2] / "cluster-configs/grafana-dashboard.json"
# Longer than the check takes; it is ended.
JOB = """name = "watched"
[cluster]
instance = "c7i.8xlarge"  # whose peak is known
[resources]
ranks_per_node = 2
[program]
trainer = "llama"
[model]
layers = 2
hidden = 64
heads = 4
kv_heads = 2
ffn = 160
vocab = 256
[data]
files = ["/usr/share/common-licenses/GPL-3"]
validation = ["/usr/share/common-licenses/Artistic"]
sequence_length = 64
[batch]
global_batch = 8
[optimizer]
steps = 1000000
[logging]
every_steps = 1
validate_every_steps = 50
[checkpoint]
every_steps = 50
[fault_tolerance]
max_restarts = 2
hang_timeout = 10
"""
FAILS = 'name = "fails"\n[program]\ncommand = ["false"]\n'


def lost(ours, theirs, where=""):
    """What the SDK made otherwise of what is ours; it may have added members of its own."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [line for key, value in ours.items() for line in lost(value, theirs.get(key), f"{where}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [line for i, (a, b) in enumerate(zip(ours, theirs)) for line in lost(a, b, f"{where}[{i}]")]
    return [] if ours == theirs else [f"{where}: {ours!r} became {theirs!r}"]


def read_by_sdk(dashboard):
    plugins.register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    assert not (changed := lost(dashboard, again)), "\n".join(changed)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids), ids
    taken = [(x, y) for panel in dashboard["panels"] for grid in [panel["gridPos"]]
             for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])]
    assert len(set(taken)) == len(taken) and max(x for x, _ in taken) < 24, "panels overlap"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(what, test, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := test()):
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.2)
    return found


def descendants(pid):
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        queue += (more := children.get(queue.pop(), []))
        found += more
    return found


def a_rank(pid):
    """The process of one rank of the run whose conductor is `pid`: the program that has no children of its own."""
    ranks = [one for one in descendants(pid) if pathlib.Path(f"/proc/{one}/comm").read_text().strip() == "shardrun-rank"]
    return next((one for one in ranks if not descendants(one)), None)


def lines(folder, words):
    metrics = folder / "runs/watched/latest/metrics.jsonl"
    return sum(words in line for line in metrics.read_text().splitlines()) if metrics.exists() else 0


def tell(shardrun, folder):
    """What cron does once a minute."""
    text = subprocess.run([shardrun, "status", "--prometheus"], cwd=folder, check=True, capture_output=True, text=True).stdout
    (folder / "collected/.shardrun").write_text(text)
    os.rename(folder / "collected/.shardrun", folder / "collected/shardrun.prom")


def ask(port, path, **words):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(words)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{words}: {json.load(error)['error']}")
    except OSError:
        return None  # it does not listen yet


def rows(port, target):
    query = target["expr"].replace("$run", ".*")
    if target.get("instant"):
        return ask(port, "query", query=query)["result"]
    now = time.time()
    return ask(port, "query_range", query=query, start=now - 60, end=now, step=1)["result"]


def check(shardrun, folder, started):
    dashboard = json.loads(DASHBOARD.read_text())
    read_by_sdk(dashboard)
    (folder / "job.toml").write_text(JOB)
    (folder / "fails.toml").write_text(FAILS)
    (folder / "collected").mkdir()

    def start(*words):
        started.append(subprocess.Popen([str(word) for word in words], cwd=folder, stdout=subprocess.DEVNULL,
                                        stderr=open(folder / "log", "a", encoding="utf-8")))
        return started[-1]

    assert subprocess.run([shardrun, "run", "fails.toml", "--quiet"], cwd=folder, capture_output=True).returncode != 0
    done = ["--set", "name='done'", "--set", "optimizer.steps=10"]
    subprocess.run([shardrun, "run", "job.toml", "--quiet", *done], cwd=folder, check=True, capture_output=True)
    conductor = start(shardrun, "run", "job.toml", "--quiet")
    wait_for("checkpoint", lambda: lines(folder, '"checkpoint"'))
    os.kill(wait_for("rank", lambda: a_rank(conductor.pid)), signal.SIGSTOP)  # it hangs
    wait_for("step of the second attempt", lambda: lines(folder, '"attempt":1'))
    exporter, port = free_port(), free_port()
    start("prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile", "--collector.textfile.directory=collected",
          f"--web.listen-address=127.0.0.1:{exporter}")
    (folder / "prometheus.yml").write_text(
        f"scrape_configs:\n- {{job_name: node, scrape_interval: 1s, static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]}}\n")
    start("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", f"--web.listen-address=127.0.0.1:{port}")
    tell(shardrun, folder)
    wait_for("sample", lambda: (ask(port, "query", query="shardrun_run_state") or {}).get("result"))

    queries = 0
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            found = rows(port, target)
            assert found, (panel["title"], target["expr"])
            queries += 1
            print(f"{panel['title']}: {len(found)} row{'s' * (len(found) != 1)}, {sample(found[0])}")
    names = ask(port, "label/name/values", **{"match[]": "shardrun_run_state"})
    assert names == ["done", "fails", "watched"], names
    # What the figures must be: one run goes on, one has failed.
    titles = {panel["title"]: panel["targets"] for panel in dashboard["panels"]}
    for title, wanted in (("Runs that go on", "1"), ("Failed within the hour", "1"), ("Without a step for ten minutes", "0")):
        assert sample(rows(port, titles[title][0])[0]) == wanted, title
    table = {row["metric"]["name"]: row["metric"]["state"] for row in rows(port, titles["Runs"][0])}
    assert table == {"done": "completed", "fails": "failed", "watched": "running"}, table
    known = {name for name in ask(port, "label/__name__/values") if name.startswith("shardrun_")}
    unseen = {name for name in known if name not in DASHBOARD.read_text()}
    assert not unseen, f"no panel shows {unseen}"
    print(f"{queries} queries of {len(dashboard['panels'])} panels, {len(known)} families")


def sample(row):
    return (row.get("value") or row["values"][-1])[1]


def main():
    shardrun = os.path.abspath(f"{sys.argv[1]}/shardrun")
    with tempfile.TemporaryDirectory() as name:
        started, folder = [], pathlib.Path(name)
        try:
            check(shardrun, folder, started)
        except BaseException:
            log = folder / "log"
            sys.stderr.write("".join(log.read_text().splitlines(keepends=True)[-20:]) if log.exists() else "")
            raise
        finally:
            for one in reversed(started):
                one.terminate()
                one.wait()


if __name__ == "__main__":
    main()

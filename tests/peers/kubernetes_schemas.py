"""Manifests of `shardrun render --to kubernetes` and eksctl's files against the schemas of those who read them.

An MPIJob, PyTorchJob or TrainJob against its CRD, unknown keys refused; ConfigMaps and every pod template against Kubernetes' own
schema (kubernetes-validate, strict); cluster-configs/eks-*.yaml against eksctl's.

Usage: kubernetes_schemas.py SHARDRUN        run by tests/peers/cluster_schemas.sh
"""

import json
import pathlib
import subprocess
import sys

import jsonschema
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = pathlib.Path(__file__).parent / "schemas"
KUBERNETES = "1.33"


def load(name):
    return json.loads((SCHEMAS / name).read_text())


def check_keys(value, schema, place):
    """What an API server prunes, or refuses with strict validation: keys that the schema does not know."""
    if schema.get("x-pod-template"):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": value["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        return 1
    if isinstance(value, list):
        return sum(check_keys(one, schema.get("items", {}), f"{place}[]") for one in value)
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return 0
    pods = 0
    for key, one in value.items():
        known = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if known is None and place:
            raise ValueError(f"{place}.{key} is unknown")
        if isinstance(known, dict):
            pods += check_keys(one, known, f"{place}.{key}")
    return pods


def judge(text):
    kinds, pods = [], 0
    for document in yaml.safe_load_all(text):
        kind = document["kind"]
        if kind in ("MPIJob", "PyTorchJob", "TrainJob"):
            schema = load(kind.lower() + ".json")
            meant = schema["x-kubernetes-group-version-kind"][0]
            assert document["apiVersion"] == f"{meant['group']}/{meant['version']}", document["apiVersion"]
            jsonschema.validate(document, schema)
            pods += check_keys(document["spec"], schema["properties"]["spec"], "spec")
        else:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        kinds.append(kind)
    return kinds, pods


def refuses(text, what):
    try:
        judge(text)
    except Exception:
        return
    sys.exit(f"the judge is blind: {what} passed")


def render(shardrun, job, *more):
    done = subprocess.run([shardrun, "render", "--to", "kubernetes", str(job), "--image", "example.com/x:1", "--claim", "fsx", *more],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{job}: not rendered: {done.stderr}")
    return done.stdout


def main():
    shardrun, count = sys.argv[1], 0
    for job in sorted((ROOT / "jobs").glob("*.toml")):
        for kind in ("auto", "mpijob"):
            text = render(shardrun, job, "--kind", kind, "--set", "resources.time_limit=3600")
            kinds, pods = judge(text)
            assert yaml.safe_load_all(text) and pods >= 1
            if "ConfigMap" in kinds:
                config = next(yaml.safe_load_all(text))
                assert config["data"]["job.toml"] == job.read_text(), "job.toml changed on its way"
            print(f"{job.name} --kind {kind}: {' and '.join(kinds)}, {pods} pod templates")
            count += 1
    command = ROOT / "jobs/torch-fsdp2-llama.toml"
    no_restarts = ("--queue", "team", "--set", "fault_tolerance.max_restarts=0")
    trains = render(shardrun, command, "--kind", "trainjob", *no_restarts)
    elastic = render(shardrun, command, "--queue", "team", "--set", "resources.nodes=4", "--set", "batch.micro_batch=2",
                     "--set", "fault_tolerance.min_nodes=2")
    for text, kind in ((trains, "TrainJob"), (elastic, "PyTorchJob")):
        assert judge(text)[0] == [kind]
        assert yaml.safe_load(text)["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
        count += 1
    refuses(trains.replace("numProcPerNode", "procsPerNode"), "an unknown key of a TrainJob")
    refuses(trains.replace("claimName", "claim"), "an unknown key of a TrainJob's pods")
    refuses(elastic.replace("rdzvBackend", "backend"), "an unknown key of an elastic PyTorchJob")
    good = render(shardrun, ROOT / "jobs/llama-2-7b-p5.toml")
    refuses(good.replace("slotsPerWorker", "slotPerWorker"), "an unknown key of an MPIJob")
    refuses(good.replace("claimName", "claim"), "an unknown key of a pod")
    refuses(good.replace("replicas: 16", "replicas: sixteen"), "a count that is none")
    refuses(good.replace("cleanPodPolicy: Running", "cleanPodPolicy: 3"), "a policy that is a number")
    for path in sorted((ROOT / "cluster-configs").glob("eks-*.yaml")):
        document = yaml.safe_load(path.read_text())
        schema = load("eksctl.json")
        jsonschema.validate(document, schema)
        document["managedNodeGroups"][1]["efa"] = True
        try:
            jsonschema.validate(document, schema)
        except jsonschema.ValidationError:
            print(f"{path.name}: as eksctl wants it")
        else:
            sys.exit(f"{path.name}: eksctl's schema takes anything")
    print(f"{count} manifests hold")


main()

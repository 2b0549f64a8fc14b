"""AWS ParallelCluster's own package as the judge of what shardrun renders.

  templates, and 200 generated clusters   must load in its schema and pass every validator that needs no account
  broken clusters                         are put into its terms by the translation below, which knows nothing of our
                                          rules; what it says is compared with tests/unit/launcher/broken_clusters/pcluster.txt

Usage: cluster_schemas.py SHARDRUN [--write]     run by tests/peers/cluster_schemas.sh
The account's answers about instance types are played by cluster-configs/instances.toml.
"""

import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import tomllib
import types

os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")
logging.disable(logging.CRITICAL)

import marshmallow
import yaml
from pcluster.aws.aws_api import AWSApi
from pcluster.aws.aws_resources import InstanceTypeInfo
from pcluster.config.common import Resource
from pcluster.schemas.cluster_schema import ClusterSchema
from pcluster.validators.common import FailureLevel

ROOT = pathlib.Path(__file__).resolve().parents[2]
BROKEN = ROOT / "tests/unit/launcher/broken_clusters"
CATALOGUE = tomllib.loads((ROOT / "cluster-configs/instances.toml").read_text())
# What asks an account, or the network, and so says nothing here.
NEEDS_ACCOUNT = ("Unable to locate credentials", "Could not connect", "NoneType", "has no attribute", "nothing known of")


def instance_type_info(_self, name):
    known = CATALOGUE["instance"].get(name)
    if known is None:
        known = {"vcpus": 8, "threads_per_core": 2, "memory_mib": 32768, "efa_interfaces": 0, "network_cards": 1}
    cards = [{"NetworkCardIndex": i, "MaximumNetworkInterfaces": 2} for i in range(known["network_cards"])]
    data = {
        "InstanceType": name,
        "VCpuInfo": {"DefaultVCpus": known["vcpus"], "DefaultCores": known["vcpus"] // known["threads_per_core"],
                     "DefaultThreadsPerCore": known["threads_per_core"], "ValidThreadsPerCore": [1]},
        "MemoryInfo": {"SizeInMiB": known["memory_mib"]},
        "NetworkInfo": {"EfaSupported": known["efa_interfaces"] > 0, "MaximumNetworkCards": known["network_cards"],
                        "EfaInfo": {"MaximumEfaInterfaces": known["efa_interfaces"]}, "NetworkCards": cards},
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "EbsInfo": {"EbsOptimizedSupport": "default"},
        "SupportedUsageClasses": ["on-demand", "spot", "capacity-block"],
        "InstanceStorageSupported": False,
        "PlacementGroupInfo": {"SupportedStrategies": ["cluster", "partition", "spread"]},
    }
    if known.get("accelerator"):
        maker = CATALOGUE["accelerator"][known["accelerator"]]["maker"]
        kind = {"nvidia": "GpuInfo", "aws": "InferenceAcceleratorInfo"}[maker]
        part = {"nvidia": "Gpus", "aws": "Accelerators"}[maker]
        data[kind] = {part: [{"Manufacturer": maker.upper(), "Count": known["accelerators"], "Name": "x"}]}
    return InstanceTypeInfo(data)


def play_account():
    """An account in which every subnet is a zone of its own and every image is a plain one."""
    ec2 = AWSApi.instance().ec2.__class__
    ec2.get_instance_type_info = instance_type_info
    ec2.describe_subnets = lambda _self, subnet_ids: [
        {"SubnetId": one, "VpcId": "vpc-1", "AvailabilityZone": "az" + one[-1], "MapPublicIpOnLaunch": False,
         "CidrBlock": "10.0.0.0/16"} for one in subnet_ids]
    ec2.get_subnets_az_mapping = lambda _self, subnet_ids: {one: "az" + one[-1] for one in subnet_ids}
    ec2.get_subnet_avail_zone = lambda _self, subnet_id: "az" + subnet_id[-1]
    ec2.get_subnet_vpc = lambda _self, _id: "vpc-1"
    ec2.get_official_image_id = lambda _self, *_a, **_k: "ami-0123456789abcdef0"
    ec2.describe_image = lambda _self, _id: types.SimpleNamespace(
        id=_id, device_name="/dev/sda1", volume_size=35, architecture="x86_64", platform="Linux/UNIX", tags=[], name="x",
        state="available", description="", creation_date="", deprecation_time=None, original_image_data={})
    ec2.list_instance_types = lambda _self: sorted(CATALOGUE["instance"]) + ["m5.8xlarge", "c5.4xlarge", "c7i.4xlarge",
                                                                            "m5.large", "c6i.8xlarge"]


def judge(document, name):
    """The errors that the package finds: ('schema', text) or (validator, text), in its order."""
    try:
        config = ClusterSchema(cluster_name=name).load(document)
    except marshmallow.ValidationError as error:
        return [("schema", str(error.messages))]
    failures = []

    def run_sync(arguments, validator):
        try:
            failures.extend(validator.execute(**arguments))
        except Exception:  # needs the account
            pass
        return []

    def validate_self(self, context, suppressors):
        self._validators.clear()
        try:
            self._register_validators(context)
        except Exception:  # what it registered before it asked the account still counts
            pass
        for validator, arguments in self._validators:
            if not hasattr(validator, "execute_async"):
                run_sync(arguments, validator())

    Resource._validate_self = validate_self
    try:
        config.validate()
    except Exception as error:
        failures.append(type("Odd", (), {"level": FailureLevel.WARNING, "message": str(error), "validator_type": "-"}))
    return [(one.validator_type, one.message) for one in failures
            if one.level == FailureLevel.ERROR and not any(word in one.message for word in NEEDS_ACCOUNT)]


def translate(spec):
    """A cluster's TOML in the package's terms, key for key: a second implementation, without rules or defaults."""
    def put(target, key, value):
        if value is not None:
            target[key] = value
        return target

    def resource(own, name):
        out = put({}, "Name", own.get("name", name))
        put(out, "InstanceType", own.get("instance"))
        if "instances" in own:
            out["Instances"] = [{"InstanceType": one} for one in own["instances"]]
        put(out, "MinCount", own.get("min_count"))
        put(out, "MaxCount", own.get("max_count"))
        return put(out, "Efa", {"Enabled": own["efa"]} if "efa" in own else None)

    def queue(own):
        out = put({}, "Name", own.get("name"))
        capacity = {"on_demand": "ONDEMAND", "spot": "SPOT", "capacity_block": "CAPACITY_BLOCK"}
        put(out, "CapacityType", capacity.get(own.get("capacity"), own.get("capacity")))
        target = put({}, "CapacityReservationId", own.get("reservation"))
        put(target, "CapacityReservationResourceGroupArn", own.get("reservation_group"))
        put(out, "CapacityReservationTarget", target or None)
        out["Networking"] = put({}, "SubnetIds", own.get("subnets"))
        group = own.get("placement_group")
        if group is not None:
            out["Networking"]["PlacementGroup"] = {"Name": group} if isinstance(group, str) else {"Enabled": group}
        put(out["Networking"], "AssignPublicIp", own.get("public_ip"))
        if "gpu_health_check" in own:
            out["HealthChecks"] = {"Gpu": {"Enabled": own["gpu_health_check"]}}
        out["ComputeResources"] = [resource(one, None) for one in own["resource"]] if "resource" in own else [
            resource(own, own.get("name"))]
        known = {"name", "capacity", "reservation", "reservation_group", "subnets", "placement_group", "public_ip",
                 "gpu_health_check", "resource", "instance", "instances", "min_count", "max_count", "efa"}
        return out | {key: own[key] for key in own if key not in known}

    def storage(own):
        kind = {"fsx_lustre": "FsxLustre", "efs": "Efs"}.get(own.get("kind"), own.get("kind"))
        out = put(put(put({}, "Name", own.get("name")), "StorageType", kind), "MountDir", own.get("mount"))
        settings = put({}, "FileSystemId", own.get("id"))
        put(settings, "StorageCapacity", own.get("capacity_gib"))
        if kind == "FsxLustre":
            put(settings, "DeploymentType", own.get("deployment", None if "id" in own else "SCRATCH_2"))
            put(settings, "PerUnitStorageThroughput", own.get("throughput"))
        elif "throughput" in own:
            settings |= {"ThroughputMode": "provisioned", "ProvisionedThroughput": own["throughput"]}
        return put(out, kind + "Settings", settings or None)

    head = spec.get("head_node")
    out = put({}, "Region", spec.get("region"))
    out["Image"] = put(put({}, "Os", spec.get("os")), "CustomAmi", spec.get("custom_ami"))
    script = spec.get("on_node_configured")
    actions = {"OnNodeConfigured": put(put({}, "Script", script.get("script")), "Args", script.get("args"))} if script else None
    if head is not None:
        out["HeadNode"] = put({}, "InstanceType", head.get("instance"))
        out["HeadNode"]["Networking"] = put({}, "SubnetId", head.get("subnet"))
        put(out["HeadNode"], "LocalStorage", {"RootVolume": {"Size": head["disk_gib"]}} if "disk_gib" in head else None)
        put(out["HeadNode"], "CustomActions", actions)
        if "s3_read" in spec:
            out["HeadNode"]["Iam"] = {"S3Access": [{"BucketName": one} for one in spec["s3_read"]]}
    slurm = spec.get("slurm", {})
    settings = put({}, "ScaledownIdletime", slurm.get("idle_minutes"))
    if "settings" in slurm:
        settings["CustomSlurmSettings"] = [{key: value} for key, value in slurm["settings"].items()]
    if "accounting" in spec:
        own = spec["accounting"]
        database = put(put({}, "Uri", own.get("uri")), "UserName", own.get("user"))
        settings["Database"] = put(database, "PasswordSecretArn", own.get("password_secret"))
    out["Scheduling"] = {"Scheduler": "slurm"}
    put(out["Scheduling"], "SlurmSettings", settings or None)
    queues = spec.get("queue")
    if isinstance(queues, list):
        out["Scheduling"]["SlurmQueues"] = [queue(one) for one in queues]
    elif queues is not None:
        out["Scheduling"]["SlurmQueues"] = queue(queues)
    put(out, "SharedStorage", [storage(one) for one in spec["storage"]] if "storage" in spec else None)
    if "tags" in spec:
        out["Tags"] = [{"Key": key, "Value": value} for key, value in spec["tags"].items()]
    return put(out, "head", spec.get("head"))


def render(shardrun, path):
    done = subprocess.run([shardrun, "cluster", "render", str(path)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{path}: not rendered: {done.stderr}")
    return yaml.safe_load(done.stdout)


def generated(chance):
    """A cluster that keeps our rules, as TOML."""
    kinds = sorted(CATALOGUE["instance"])
    subnet = lambda i: f"subnet-{i:017x}"
    lines = [f'name = "c{chance.randrange(10**6)}"', f'region = "{chance.choice(["us-east-1", "eu-west-1", "ap-south-1"])}"',
             f'os = "{chance.choice(["alinux2023", "ubuntu2204", "ubuntu2404", "rhel9", "rocky8"])}"']
    if chance.random() < 0.3 or "rocky8" in lines[-1]:
        lines.append(f'custom_ami = "ami-{chance.randrange(16**17):017x}"')
    if chance.random() < 0.5:
        lines += ['s3_read = ["my-bucket"]', 's3_write = ["results"]']
    lines += ["[head_node]", f'instance = "{chance.choice(["m5.8xlarge", "c5.4xlarge"])}"', f'subnet = "{subnet(0)}"']
    if chance.random() < 0.5:
        lines += ['key = "k"', f"disk_gib = {chance.randrange(45, 500)}"]
    if chance.random() < 0.5:
        lines += ["[on_node_configured]", 'script = "s3://my-bucket/on-node.sh"', 'args = ["--neuron", "yes", "1e3"]']
    if chance.random() < 0.5:
        lines += ["[slurm]", f"idle_minutes = {chance.choice([-1, 1, 10, 60])}"]
        if chance.random() < 0.5:
            lines.append('settings = { MaxArraySize = "10000", SlurmctldDebug = "verbose" }')
    if chance.random() < 0.3:
        lines += ["[accounting]", 'uri = "db.example.com:3306"', 'user = "slurm"',
                  'password_secret = "arn:aws:secretsmanager:us-east-1:123456789012:secret:db"']
    if chance.random() < 0.6:
        lines += ["[[storage]]", 'name = "fsx"', 'kind = "fsx_lustre"', 'mount = "/fsx"']
        lines += chance.choice([["capacity_gib = 1200"], ["capacity_gib = 4800", 'deployment = "PERSISTENT_2"', "throughput = 500"],
                                ["capacity_gib = 2400", 'deployment = "PERSISTENT_1"', "throughput = 100", "keep = true"],
                                ["capacity_gib = 3600", 'deployment = "SCRATCH_1"'], ['id = "fs-0123456789abcdef0"']])
    if chance.random() < 0.6:
        lines += ["[[storage]]", 'name = "efs"', 'kind = "efs"', 'mount = "/shared"']
        lines += chance.choice([[], ["throughput = 512"], ["keep = true"], ['id = "fs-01234567"']])
    for i in range(chance.choice([1, 1, 2, 3, 10, 50])):
        kind, most = chance.choice(kinds), chance.randrange(1, 64)
        maker = CATALOGUE["accelerator"].get(CATALOGUE["instance"][kind].get("accelerator"), {}).get("maker")
        capacity = chance.choice(["on_demand", "spot", "capacity_block", "reserved"])
        lines += ["[[queue]]", f'name = "q-{i}"', f'instance = "{kind}"', f"max_count = {most}"]
        lines.append(f"min_count = {most if capacity == 'capacity_block' else chance.randrange(0, most + 1)}")
        if capacity != "on_demand":
            lines.append(f'capacity = "{"on_demand" if capacity == "reserved" else capacity}"')
        if capacity in ("capacity_block", "reserved"):
            lines.append(f'reservation = "cr-{i:017x}"')
        new_lustre = any(line.startswith("capacity_gib") for line in lines)
        zones = chance.choice([1, 1, 2]) if not new_lustre and capacity in ("on_demand", "spot") else 1
        lines.append("subnets = [" + ", ".join(f'"{subnet(j + 1)}"' for j in range(zones)) + "]")
        if zones == 1 and capacity != "capacity_block" and chance.random() < 0.3:
            lines.append(chance.choice(["placement_group = true", "placement_group = false", 'placement_group = "mine"']))
        if chance.random() < 0.3:
            lines.append("exclusive = true")
        if maker == "nvidia" and chance.random() < 0.3:
            lines.append("gpu_health_check = true")
    if chance.random() < 0.3:
        lines += ["[tags]"] + [f't{i} = "v {i}"' for i in range(chance.randrange(1, 40))]
    return "\n".join(lines) + "\n"


def main():
    shardrun, write = sys.argv[1], "--write" in sys.argv
    play_account()
    bad = 0
    templates = [path for path in sorted((ROOT / "cluster-configs").glob("*.toml")) if "head_node" in path.read_text()]
    for path in templates:
        errors = judge(render(shardrun, path), tomllib.loads(path.read_text())["name"])
        bad += bool(errors)
        print(f"template {path.name}: {errors or 'loads, and no validator objects'}")
    chance, good = random.Random(1), 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(200):
            text = generated(chance)
            path = pathlib.Path(folder) / "cluster.toml"
            path.write_text(text)
            errors = judge(render(shardrun, path), tomllib.loads(text)["name"])
            good += not errors
            if errors:
                print(f"variant {i}: {errors}\n{text}")
    print(f"variants: {good} of 200 load, and no validator objects")
    lines, refused = [], 0
    for path in sorted(BROKEN.glob("*.toml")):
        spec = tomllib.loads(path.read_text())
        errors = judge(translate(spec), spec.get("name", ""))
        refused += bool(errors)
        lines.append(f"{path.name}: {errors[0][0] if errors else '-'}\n")
    noted = BROKEN / "pcluster.txt"
    if write:
        noted.write_text("".join(lines))
    same = noted.read_text() == "".join(lines)
    print(f"broken: {refused} of {len(lines)} are refused by the package, too; {'as' if same else 'NOT as'} noted in {noted.name}")
    sys.exit(bad > 0 or good != 200 or not same)


main()
